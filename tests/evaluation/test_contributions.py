"""Contributions of components, exchanged one by one as in table 11 of A3."""

from dataclasses import replace

import pytest
import torch
from tiny_models import family_folder

import lrcore
from lrcore.evaluation.contributions import contributions, mix_models
from lrcore.models.architectures import ARCHITECTURES


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_opt"])
def pair(request, story_file):
    folder = request.getfixturevalue(request.param)
    dense = lrcore.load(str(folder))
    recipe = lrcore.Recipe(
        model=str(folder), data=str(story_file), samples=4, seq_len=32, ratio=0.4, method="modegpt"
    )
    return dense, lrcore.compress(dense, recipe)


def test_mixing_all_parts_gives_the_compressed_model_and_no_parts_the_dense_one(pair):
    ids = torch.arange(24).view(2, 12)
    with torch.inference_mode():
        logits = [
            model.network(input_ids=ids).logits
            for model in (*pair, mix_models(*pair, ()), mix_models(*pair, ("qk", "ov", "mlp")))
        ]
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[3])


@pytest.mark.parametrize(
    "family", [name for name, row in ARCHITECTURES.items() if row.native_attention or row.mixer]
)
def test_matrices_of_native_attention_belong_to_a_single_part(
    family, tiny_llama, story_file, tmp_path
):
    folder = family_folder(family, tiny_llama, tmp_path / family)
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=32, method="svd")
    dense = lrcore.load(str(folder))
    small = lrcore.compress(dense, recipe.with_(ratio=0.4))
    ids = torch.arange(24).view(2, 12)
    with torch.inference_mode():
        mixed_logits = mix_models(dense, small, ("qk", "ov", "mlp")).network(input_ids=ids).logits
        assert torch.equal(mixed_logits, small.network(input_ids=ids).logits)


def test_rows_of_the_table_equal_separate_evaluations(pair, story_file):
    dense, small = pair
    result = contributions(dense, small, str(story_file), samples=4, seq_len=16)
    rows = {row["parts"]: row for row in result.rows}
    assert list(rows) == ["qk", "ov", "mlp", "qk + ov", "qk, ov", "all"]
    settings = {"samples": 4, "seq_len": 16}
    assert result.dense_perplexity == pytest.approx(
        lrcore.evaluate(dense, str(story_file), **settings).perplexity, rel=1e-6
    )
    assert rows["all"]["perplexity"] == pytest.approx(
        lrcore.evaluate(small, str(story_file), **settings).perplexity, rel=1e-6
    )
    assert (
        rows["qk + ov"]["delta_perplexity"]
        == rows["qk"]["delta_perplexity"] + rows["ov"]["delta_perplexity"]
    )
    recipe = small.recipe
    factors = lrcore.prepare(dense, recipe)
    plan = lrcore.allocate(factors, recipe)
    only = {
        slot: rank if slot[1] == "qk" else plan.spectra[slot].cost.full
        for slot, rank in plan.ranks.items()
    }
    alone = lrcore.evaluate(
        lrcore.compress(dense, recipe, factors, replace(plan, ranks=only)),
        str(story_file),
        **settings,
    )
    assert rows["qk"]["perplexity"] == pytest.approx(alone.perplexity, rel=1e-6)


def test_models_of_different_families_are_refused(tiny_llama, tiny_opt, story_file):
    with pytest.raises(lrcore.InputError, match="is not a compressed"):
        contributions(
            lrcore.load(str(tiny_llama)),
            lrcore.load(str(tiny_opt)),
            str(story_file),
            samples=1,
            seq_len=8,
        )
