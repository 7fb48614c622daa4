"""Random tiny models of all families, compressed, saved, loaded and exported."""

import collections
import shutil
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import torch
from campaign import SEED, long, run_campaign, short
from hypothesis import strategies as st
from random_models import by_size, changes, configs, counted, exactness, logits, write_model

import lrcore
from lrcore.compression.calibration.calibrate import all_needs
from lrcore.compression.calibration.collect import missing_layers
from lrcore.compression.evidence import latency
from lrcore.models.architectures import architecture_of
from lrcore.models.hybrid_families import HYBRIDS

Counts = collections.Counter[str]


@pytest.fixture
def check(tiny_llama, story_file, tmp_path, monkeypatch):
    """Return a check of a random model, and the counter of its outcomes."""
    monkeypatch.setattr(latency, "_seconds", by_size)
    counts: Counts = collections.Counter()
    workspace = tmp_path / "model"

    def check_drawn(drawn_config: tuple, changed: dict, stock: bool) -> None:
        shutil.rmtree(workspace, ignore_errors=True)
        family, fields = drawn_config
        folder = write_model(family, fields, tiny_llama, workspace / "dense")
        recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=2, seq_len=16, **changed)
        check_model(family, recipe, stock, workspace, counts)

    return check_drawn, counts


def check_model(
    family: str, recipe: lrcore.Recipe, stock: bool, workspace: Path, counts: Counts
) -> None:
    """Check that a compressed model is as small as planned, and equal to the bit after saving,
    exporting and loading. Reject a model that is refused with a message.
    """
    dense = lrcore.load(recipe.model, dtype=recipe.dtype)
    before = logits(dense)
    try:
        small = lrcore.compress(dense, recipe)
    except lrcore.InputError as error:
        counts[f"refused: {str(error)[:60]}"] += 1
        hypothesis.reject()
    assert torch.equal(logits(dense), before)
    calibration = lrcore.calibrate(dense, recipe)  # the stored calibration is read
    layers = range(calibration.layers)
    assert not missing_layers(dense, all_needs(), calibration.folder, layers)
    small_logits, exact = logits(small), not architecture_of(small.network).experts
    assert torch.isfinite(small_logits).all()
    assert small.account is not None
    planned = replace(small.account.model, latency=None).to_dict()  # latency is not counted
    assert planned == pytest.approx(counted(small, recipe.seq_len), rel=1e-12)
    if small.account.budget != "kv":  # latents save cached numbers, not parameters
        assert small.size.parameters <= dense.size.parameters
    if recipe.rounding == "down":
        tolerance = exactness(small.account, len(small.ranks), recipe.seq_len)
        assert small.account.achieved >= small.account.planned.requested - tolerance

    def assert_equal_model(folder: Path) -> None:
        loaded = lrcore.load(folder)
        assert loaded.size == small.size
        assert loaded.ranks == small.ranks
        loaded_logits = logits(loaded)
        # the last bit of grouped products depends on the memory address of a weight
        assert (
            torch.equal(loaded_logits, small_logits)
            if exact
            else torch.allclose(loaded_logits, small_logits, atol=1e-4)
        )

    lrcore.save(small, workspace / "saved")
    assert_equal_model(workspace / "saved")
    lrcore.export(small, workspace / "exported")
    assert_equal_model(workspace / "exported")
    counts[family] += 1
    if stock:
        try:
            lrcore.export(small, workspace / "stock", standard=True)
        except lrcore.InputError:
            assert not (workspace / "stock").exists()
            return
        stock_logits = logits(lrcore.load(workspace / "stock", dtype="auto"))
        # multiplying out rounds once more, and linear attention adds up the rounding of all tokens
        rounding = 0.1 if family in HYBRIDS else 0.05
        tolerance = rounding if recipe.dtype == "bfloat16" else 1e-3
        assert torch.allclose(
            stock_logits.double(),
            small_logits.double(),
            atol=tolerance * float(small_logits.abs().max()),
        )
        counts["stock"] += 1


def test_a_few_random_models_are_compressed_and_restored(check):
    check_drawn, _ = check
    recipes = changes(("uniform", "softmax", "energy"))
    assert run_campaign(short(5), check_drawn, configs(), recipes, st.booleans()) > 1


@pytest.mark.soak
def test_many_random_models_are_compressed_and_restored(check, capsys):
    check_drawn, counts = check
    count = run_campaign(long(2_000), check_drawn, configs(), changes(), st.booleans())
    with capsys.disabled():
        print(f"\nseed {SEED}: {count} models; {dict(counts)}")
