"""What earlier versions wrote loads, or is refused with what to do; caches of other formats are
never read. One fixture per format stays: tests/fixtures/format_1 was written by the first version,
tests/fixtures/first_reports by a later one (tests/checkpoints/test_first_reports.py), caches, cells
of sweeps and states of healing of this one are in tests/test_upgrades.py, and records of jobs in
tests/workbench/test_job_records.py.
"""

import importlib
import re
import shutil
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main

FIRST = Path(__file__).parent / "fixtures" / "format_1"
ROOT = Path(__file__).parent.parent / "lrcore"
CACHED = (  # modules whose files lie in the cache, under names that their format is a part of
    "analyse",
    "calibration.calibrate",
    "calibration.gradients",
    "compression.evidence.joint",
    "compression.evidence.latency",
    "compression.evidence.probing",
    "compression.settle",
    "models.gguf",
)
# read by their format; tests/test_upgrades.py has the last two
KEPT = ("checkpoints.description", "runs.sweep_store", "compression.healing.distillation")


def test_every_format_named_in_the_source_is_held_by_a_test():
    named = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
        if re.search(r"^FORMAT = ", path.read_text(encoding="utf-8"), re.M)
    }
    assert named == {*CACHED, *KEPT}


def test_a_checkpoint_of_the_first_format_is_refused_with_what_to_do():
    with pytest.raises(lrcore.InputError) as error:
        lrcore.load(str(FIRST / "checkpoint"))
    sentence = str(error.value)
    assert "has checkpoint format 1, but this version reads 2" in sentence
    assert "lrcore compress --recipe" in sentence


def test_a_recipe_of_the_first_format_is_read_and_can_be_run(tiny_llama, story_file, tmp_path):
    path = FIRST / "checkpoint" / "recipe.json"
    recipe = lrcore.Recipe.read(path)
    assert recipe == lrcore.Recipe(
        "dense",
        data="story.txt",
        samples=2,
        seq_len=16,
        method="svd_llm",
        ratio=0.3,
        budget="params",
    )
    shutil.copytree(tiny_llama, tmp_path / "dense")
    again = ["compress", str(tiny_llama), "--recipe", str(path), "--data", str(story_file)]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    assert lrcore.load(str(tmp_path / "again")).ranks


def test_a_cache_of_the_first_format_is_listed_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LRCORE_CACHE", str(shutil.copytree(FIRST / "cache", tmp_path / "cache")))
    assert main(["cache"]) == 0
    assert re.search(r"moments +1 ", capsys.readouterr().out)
    assert main(["cache", "--clear"]) == 0
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_files_of_another_format_in_the_cache_are_not_read(
    tiny_llama, story_file, tmp_path, monkeypatch
):
    def made() -> list:
        recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
        dense, ranks = lrcore.load(str(tiny_llama)), []
        for policy in ("probed", "fisher"):
            one = recipe.with_(policy=policy, method="svd_llm", ratio=0.3)
            factors = lrcore.prepare(dense, one)
            ranks.append(lrcore.settle(dense, factors, one).ranks)
        table = lrcore.analyse(dense, lrcore.calibrate(dense, recipe)).table(0.9)
        return [*ranks, table.round(6).to_dict()]

    cache = tmp_path / "cache"
    monkeypatch.setenv("LRCORE_CACHE", str(cache))
    with monkeypatch.context() as before:
        for name in CACHED:
            module = importlib.import_module(f"lrcore.{name}")
            before.setattr(module, "FORMAT", module.FORMAT - 1)
        expected = made()
    old = [path for path in cache.rglob("*") if path.is_file()]
    for path in old:
        path.write_bytes(b"of another format")
    assert made() == expected
    assert {path.read_bytes() for path in old} == {b"of another format"}
    assert {path.relative_to(cache).parts[0] for path in old} >= {
        "moments",
        "gradients",
        "spectra",
        "probes",
    }
