"""The benchmark beside other projects, with a script of the test in place of a project."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lrcore
from benchmarks import peers
from benchmarks.subjects import Subject

COPY = """
import shutil, sys
from safetensors.torch import load_file
_, folder, windows, out = sys.argv[1:]
assert load_file(windows)["tokens"].shape == (2, 16)
shutil.copytree(folder, out)
"""
PROJECT = peers.Project("copier", (), "copy_model.py")
TASK = peers.Task("copy", "copy", "quantize", ("--bits", "8"), (PROJECT,), True)


@pytest.fixture
def subject(monkeypatch, tmp_path) -> Subject:
    monkeypatch.setattr(peers, "REAL_MODEL", "demo-llama")
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)
    monkeypatch.setattr(peers, "environment", lambda _: Path(sys.executable))
    recipe = lrcore.Recipe("demo-llama", samples=2, seq_len=16)
    return Subject("demo-llama", recipe, "stories", windows=2, length=32)


def test_both_projects_are_measured_once(subject, monkeypatch, tmp_path) -> None:
    (tmp_path / "copy_model.py").write_text(COPY)
    sections: list[str] = []
    monkeypatch.setattr(peers, "TASKS", (TASK,))
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(peers, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(peers, "reference_text", lambda _: tmp_path)
    monkeypatch.setattr(peers, "real_subject", lambda _: subject)
    monkeypatch.setattr(peers, "write_section", lambda _, text: sections.append(text))
    peers.peers([])
    ours, copied = json.loads(peers.RESULTS.read_text()).values()
    dense = lrcore.evaluate(lrcore.load("demo-llama"), subject.evaluation).perplexity
    assert copied["perplexity"] == pytest.approx(dense)
    assert ours["perplexity"] != copied["perplexity"]
    assert min(ours["seconds"], copied["seconds"]) > 0
    assert min(ours["memory"], copied["memory"]) > 10**7
    assert "copier" in sections[-1]
    monkeypatch.setattr(peers, "measure", None)  # would raise if it were called
    peers.peers([])


def test_a_failing_script_raises(subject, tmp_path) -> None:
    (tmp_path / "copy_model.py").write_text("raise SystemExit(3)")
    with pytest.raises(subprocess.CalledProcessError):
        peers.measure(TASK, PROJECT, subject, tmp_path)
