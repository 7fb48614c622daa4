"""Commands as processes: closed streams, readers that stop, unusual encodings, a deleted working
folder, and Ctrl+C during the start.
"""

import os
import subprocess
import sys

import pytest
from fresh import ROOT
from interrupts import hears_ctrl_c

pytestmark = pytest.mark.one_in(3)

LRCORE = f"{sys.executable} -m lrcore"


@pytest.fixture
def shell(tmp_path):
    """Return a function that runs a line of bash in an empty folder."""

    def run(line: str, **environment: str) -> subprocess.CompletedProcess:
        environment_variables = (
            os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | environment
        )
        call = ["bash", "-c", line.replace("lrcore ", f"{LRCORE} ", 1)]
        how = {"capture_output": True, "text": True, "preexec_fn": hears_ctrl_c}
        done = subprocess.run(call, cwd=tmp_path, env=environment_variables, **how)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        return done

    return run


@pytest.mark.parametrize("words", ["methods", "methods --json", "--help"])
def test_a_reader_that_stops_early_causes_no_error(words, shell):
    done = shell(f"lrcore {words} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_reader_of_errors_does_not_change_the_exit_code(shell):
    assert shell("lrcore compress /no 2>&1 | true; exit ${PIPESTATUS[0]}").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_stop_a_command(closed, shell, tiny_llama, story_file, tmp_path):
    quick = f"--data {story_file} --samples 2 --seq-len 16"
    assert shell(f"lrcore compress {tiny_llama} {quick} --out out {closed}").returncode == 0
    assert (tmp_path / "out" / "report.json").is_file()


def test_a_full_disk_under_stdout_is_reported(shell):
    done = shell("lrcore methods >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: A file cannot be written: the disk is full.")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_outside_the_encoding_are_escaped(encoding, shell):
    assert shell("lrcore methods", PYTHONIOENCODING=encoding).returncode == 0


def test_a_deleted_working_folder_is_reported(shell):
    done = shell("mkdir gone; cd gone; rmdir ../gone; lrcore runs")
    assert done.returncode == 2
    assert done.stderr == (
        "error: The working folder no longer exists. Change to another folder.\n"
    )


def test_ctrl_c_during_imports_is_reported_as_canceled(shell, tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = shell("lrcore methods", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "canceled\n")
