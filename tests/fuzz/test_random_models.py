"""Random tiny models of all families through compress, save, load and export."""

import collections
import shutil
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
import torch
from campaign import SEED, drawn, long, short
from hypothesis import strategies as st
from random_models import by_size, changes, configs, counted, exactness, logits, write_model

import lrcore
from lrcore.compression.calibration.calibrate import all_needs
from lrcore.compression.calibration.collect import missing_layers
from lrcore.compression.evidence import latency
from lrcore.models.architectures import architecture_of

Counts = collections.Counter[str]


@pytest.fixture
def check(tiny_llama, story_file, tmp_path, monkeypatch):
    """The check, with a folder and texts given; its counter says what came out how often."""
    monkeypatch.setattr(latency, "_seconds", by_size)
    counts: Counts = collections.Counter()
    place = tmp_path / "one"

    def one(drawn_config: tuple, changed: dict, stock: bool) -> None:
        shutil.rmtree(place, ignore_errors=True)
        family, fields = drawn_config
        folder = write_model(family, fields, tiny_llama, place / "dense")
        recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=2, seq_len=16, **changed)
        check_model(family, recipe, stock, place, counts)

    return one, counts


def check_model(
    family: str, recipe: lrcore.Recipe, stock: bool, place: Path, counts: Counts
) -> None:
    """Compressed, it is smaller as planned; saved, exported and loaded it is the same to the bit.

    A model that is refused in a sentence is passed over.
    """
    dense = lrcore.load(recipe.model, dtype=recipe.dtype)
    before = logits(dense)
    try:
        small = lrcore.compress(dense, recipe)
    except lrcore.InputError as error:
        counts[f"refused: {str(error)[:60]}"] += 1
        hypothesis.reject()
    assert torch.equal(logits(dense), before)
    calibration = lrcore.calibrate(dense, recipe)  # what is on disk is read
    layers = range(calibration.layers)
    assert not missing_layers(dense, all_needs(), calibration.folder, layers)
    own, exact = logits(small), not architecture_of(small.network).experts
    assert torch.isfinite(own).all()
    assert small.account is not None
    planned = replace(small.account.model, latency=None).to_dict()  # time is not counted
    assert planned == pytest.approx(counted(small, recipe.seq_len), rel=1e-12)
    if small.account.budget != "kv":  # latents save cached numbers, not parameters
        assert small.size.parameters <= dense.size.parameters
    if recipe.rounding == "down":
        within = exactness(small.account, len(small.ranks), recipe.seq_len)
        assert small.account.achieved >= small.account.planned.requested - within

    def same(folder: Path) -> None:
        again = lrcore.load(folder)
        assert again.size == small.size
        assert again.ranks == small.ranks
        found = logits(again)
        # the last bit of experts' grouped products depends on where a weight lies in memory
        assert torch.equal(found, own) if exact else torch.allclose(found, own, atol=1e-4)

    lrcore.save(small, place / "saved")
    same(place / "saved")
    lrcore.export(small, place / "exported")
    same(place / "exported")
    counts[family] += 1
    if stock:
        try:
            lrcore.export(small, place / "stock", standard=True)
        except lrcore.InputError:
            assert not (place / "stock").exists()
            return
        found = logits(lrcore.load(place / "stock", dtype="auto"))
        # what is multiplied out is rounded once more
        within = 0.05 if recipe.dtype == "bfloat16" else 1e-3
        assert torch.allclose(found.double(), own.double(), atol=within * float(own.abs().max()))
        counts["stock"] += 1


def test_a_few_random_models_come_back_as_they_were(check):
    one, _ = check
    recipes = changes(("uniform", "softmax", "energy"))
    assert drawn(short(5), one, configs(), recipes, st.booleans()) > 1


@pytest.mark.soak
def test_many_random_models(check, capsys):
    one, counts = check
    count = drawn(long(2_000), one, configs(), changes(), st.booleans())
    with capsys.disabled():
        print(f"\nseed {SEED}: {count} models; {dict(counts)}")
