"""Errors in arguments, reported before torch is imported, which takes seconds."""

import subprocess
import sys

import pytest

from lrcore.cli.listing import summaries

pytestmark = pytest.mark.one_in(2)

MISTAKES = {
    "no such folder": ("evaluate", "/nonexistent"),
    "no such model": ("generate", "demo-lama", "--prompt", "x"),
    "no such model to compress": ("compress", "/nonexistent", "--out", "OUT"),
    "no such model to compare": ("compare", "/nonexistent", "demo-llama"),
    "no such model to prune": ("prune-layers", "/nonexistent", "OUT", "--layers", "1"),
    "no such method": ("compress", "demo-llama", "--method", "a4", "--out", "OUT"),
    "no such option": ("compress", "demo-llama", "--option", "x=1", "--out", "OUT"),
    "no such value": ("allocate", "demo-llama", "--method", "a3", "--option", "mlp=x"),
    "no such policy option": ("allocate", "demo-llama", "--policy-option", "x=1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_in_arguments_is_reported_without_importing_torch(mistake, tmp_path) -> None:
    summaries()  # cached by the first command; computing them imports torch
    arguments = [argument.replace("OUT", str(tmp_path / "out")) for argument in MISTAKES[mistake]]
    command = [sys.executable, "-X", "importtime", "-m", "lrcore", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    error_lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(error_lines) == 1
    assert error_lines[0].startswith("error: ")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lrcore.cli" in imported
    assert not imported & {"torch", "transformers"}


# on a terminal, `waits_for` announces that something is loaded
RECORD_WAIT = """
import sys
from lrcore.cli import main
from lrcore.cli.console import ProgressLine

def waits_for(line, stage):
    print("torch" in sys.modules)
    raise KeyboardInterrupt

ProgressLine.waits_for = waits_for
main(sys.argv[1:])
"""
WAITING = {
    "calibrate": ("demo-llama",),
    "spectra": ("demo-llama",),
    "allocate": ("demo-llama",),
    "compress": ("demo-llama", "--out", "OUT"),
    "evaluate": ("demo-llama",),
    "compare": ("demo-llama", "demo-opt"),
    "tasks": ("demo-llama",),
    "cost": ("demo-llama",),
    "generate": ("demo-llama", "--prompt", "x"),
    "answers": ("demo-llama", "--prompts", "FILE"),
    "prune-layers": ("demo-llama", "OUT", "--layers", "1"),
    "prune-experts": ("demo-llama", "OUT", "--experts", "1"),
    "slice": ("demo-llama", "OUT"),
    "share": ("demo-llama", "OUT"),
    "quantize": ("demo-llama", "OUT"),
    "sparsify": ("demo-llama", "OUT"),
    "heal": ("demo-llama", "--out", "OUT"),
    "export": ("demo-llama", "OUT"),
    "sweep": ("RECIPE", "--out", "OUT"),
}


@pytest.mark.parametrize("command", WAITING)
def test_a_command_announces_loading_before_importing_torch(command, tmp_path) -> None:
    summaries()
    for name, text in {"FILE": '["x"]', "RECIPE": '{"model": "demo-llama"}'}.items():
        (tmp_path / f"{name}.json").write_text(text)
    paths = {name: str(tmp_path / f"{name}.json") for name in ("FILE", "RECIPE")}
    paths["OUT"] = str(tmp_path / "out")
    arguments = [command, *(paths.get(argument, argument) for argument in WAITING[command])]
    done = subprocess.run(
        [sys.executable, "-c", RECORD_WAIT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr
