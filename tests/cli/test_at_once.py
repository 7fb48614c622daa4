"""Mistakes in arguments are said before torch is imported, which takes seconds."""

import subprocess
import sys

import pytest

from lrcore.cli.listing import summaries

MISTAKES = {
    "no such folder": ("evaluate", "/nonexistent"),
    "no such model": ("generate", "demo-lama", "--prompt", "x"),
    "no such model to compress": ("compress", "/nonexistent", "--out", "OUT"),
    "no such model to compare": ("compare", "/nonexistent", "demo-llama"),
    "no such model to shorten": ("shorten", "/nonexistent", "OUT", "--layers", "1"),
    "no such method": ("compress", "demo-llama", "--method", "a4", "--out", "OUT"),
    "no such option": ("compress", "demo-llama", "--option", "x=1", "--out", "OUT"),
    "no such value": ("allocate", "demo-llama", "--method", "a3", "--option", "mlp=x"),
    "no such policy option": ("allocate", "demo-llama", "--policy-option", "x=1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_at_once(mistake, tmp_path) -> None:
    summaries()  # kept from the first command on; making them takes torch
    arguments = [one.replace("OUT", str(tmp_path / "out")) for one in MISTAKES[mistake]]
    command = [sys.executable, "-X", "importtime", "-m", "lrcore", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert said[0].startswith("error: ")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lrcore.cli" in imported
    assert not imported & {"torch", "transformers"}
