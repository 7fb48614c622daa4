"""Results in the local store of trackio, written by the command line in a process without network
access.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main
from lrcore.runs.tracking import Tracker

installed = pytest.mark.skipif(
    importlib.util.find_spec("trackio") is None, reason="trackio is not installed"
)

ALONE = """
import socket, sys

def refused(*_, **__):
    raise AssertionError("the process used the network")

socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refused
from lrcore.cli import main
if main(sys.argv[2:]):
    sys.exit(1)
from trackio.sqlite_storage import SQLiteStorage as store
import json
project = sys.argv[1]
records = []
for record in store.get_run_records(project):
    config = store.get_run_config(project, run_id=record["id"])
    logs = store.get_logs(project, run_id=record["id"])
    records.append({"name": record["name"], "config": config, "logs": logs})
print("\\n@" + json.dumps(records, default=str))
"""


@pytest.fixture
def tracked(tmp_path):
    """Return a function that runs a command and returns name, config and logs of the runs of a
    project.
    """
    elsewhere = {
        "TRACKIO_DIR": str(tmp_path / "store"),
        "TRACKIO_SPACE_ID": "somebody/space",
        "TRACKIO_WEBHOOK_URL": "https://example.org",
        "HF_TOKEN": "hf_none",
        "PYTHONPATH": os.pathsep.join([str(Path(lrcore.__file__).parents[1]), *sys.path]),
    }

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-c", ALONE, "study", *map(str, words)],
            env=os.environ | elsewhere,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.rpartition("\n@")[2])

    return run


@installed
def test_a_sweep_logs_each_cell_as_a_run_once(tracked, tiny_llama, story_file, tmp_path):
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    base = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    file.write_text(
        json.dumps(
            base.to_dict() | {"evaluation": {"data": str(story_file), "samples": 2, "seq_len": 16}}
        )
    )
    words = (
        "sweep",
        file,
        "--out",
        out,
        "--methods",
        "a3,svd",
        "--ratios",
        "0.3",
        "--trackio",
        "study",
    )
    result = {entry["name"]: entry for entry in tracked(*words)}
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert list(result) == [
        f"dense on {story_file}",
        *(f"{name} uniform 30%, {story_file} on {story_file}" for name in ("a3", "svd")),
    ]
    for row, entry in zip(rows, result.values(), strict=True):
        assert [log["perplexity"] for log in entry["logs"]] == [row["perplexity"]]
        assert entry["logs"][0]["parameters"] == row["parameters"]
        assert entry["config"]["protocol"] == row["protocol"]
    assert {entry["name"]: entry for entry in tracked(*words)} == result


@installed
def test_compress_and_evaluate_log_runs(tracked, tiny_llama, story_file, tmp_path):
    requested = ("--data", story_file, "--samples", 4, "--seq-len", 32, "--trackio", "study")
    (made,) = tracked(
        "compress", tiny_llama, "--out", tmp_path / "small", "--ratio", 0.4, *requested
    )
    assert made["config"]["ratio"] == 0.4
    assert made["logs"][0]["parameters"] == lrcore.load(str(tmp_path / "small")).size.parameters
    assert made["logs"][0]["seconds/compress"] > 0
    measured = tracked("evaluate", tmp_path / "small", *requested)[-1]
    expected = lrcore.evaluate(
        lrcore.load(str(tmp_path / "small")), str(story_file), samples=4, seq_len=32
    )
    assert measured["logs"][0]["perplexity"] == pytest.approx(expected.perplexity)
    assert measured["config"]["protocol"]["tokens"] == expected.protocol["tokens"]


@installed
def test_saved_runs_are_logged_on_request(tracked, tiny_llama, story_file, tmp_path):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4
    )
    runs = lrcore.Runs(tmp_path / "runs")
    run = runs.write("first", recipe, lrcore.compress(lrcore.load(str(tiny_llama)), recipe))
    runs.add_evaluation(
        run.id,
        {
            "protocol": {"source": "stories", "name": "strided"},
            "perplexity": 2.5,
            "kl": float("nan"),
        },
    )
    (result,) = tracked("runs", "--folder", runs.folder, "track", "study", "first")
    assert (result["name"], result["config"]["ratio"]) == ("first", 0.4)
    assert result["logs"][0]["stories, strided/perplexity"] == 2.5
    assert not any(name.endswith("/kl") for name in result["logs"][0])
    runs.add_evaluation(
        run.id, {"protocol": {"source": "stories", "name": "strided"}, "perplexity": 3.5}
    )
    assert [
        log["stories, strided/perplexity"]
        for log in tracked("runs", "--folder", runs.folder, "track", "study")[0]["logs"]
    ] == [
        2.5,
        3.5,
    ]


@installed
def test_project_names_that_trackio_refuses_are_reported():
    with pytest.raises(lrcore.InputError, match="no name for a project"):
        Tracker("registry-mine")


def test_missing_trackio_is_reported_before_any_work(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio.sqlite_storage", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert main(["evaluate", "no such model", "--trackio", "study"]) == 2
    assert "pip install trackio" in capsys.readouterr().err
