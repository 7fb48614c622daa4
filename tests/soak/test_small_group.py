"""Calibration and factorization with more memory than their control group has: a message before the
system kills the process.
"""

import pytest
import torch
from killing import error_lines
from memory_group import group_of, run_in
from transformers import LlamaConfig, LlamaForCausalLM

from lrcore.cli import main

SIZE = 700 * 2**20
WIDTHS = {"calibrate": 10_000, "factorize": 7_000}  # widths of an MLP with moments that do not fit


@pytest.fixture
def group():
    yield from group_of(SIZE)


@pytest.mark.soak
@pytest.mark.parametrize("command", WIDTHS)
def test_operations_that_exceed_a_control_group_are_refused(
    group, command, tiny_llama, story_file, tmp_path, monkeypatch
):
    config = LlamaConfig.from_pretrained(tiny_llama)
    config.intermediate_size, config.num_hidden_layers = WIDTHS[command], 1
    with torch.no_grad():
        LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    for file in tiny_llama.glob("token*"):
        (tmp_path / "wide" / file.name).write_bytes(file.read_bytes())
    windows = [tmp_path / "wide", "--data", story_file, "--samples", 2, "--seq-len", 16]
    arguments = ["calibrate", *windows]
    if command == "factorize":
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
        assert main([*map(str, arguments)]) == 0  # without a limit
        arguments = ["allocate", *windows, "--method", "aa_svd"]
    done = run_in(group, arguments, tmp_path / "cache")
    lines = error_lines(done)
    assert (done.returncode, len(lines), done.stdout) == (2, 1, ""), done.stderr[-600:]
    subject = "Hidden states of" if command == "calibrate" else "The decompositions of a layer"
    assert lines[0].startswith(f"error: {subject}")
    assert "are free" in lines[0]
