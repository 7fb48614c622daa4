"""Nested checkpoints: a cut is the model that `compress` makes from the same ranks."""

import json

import pytest
import torch
from tiny_models import family_folder
from toy_layer import toy

import lrcore
from lrcore.checkpoints.nested import CUTS, PAIRS
from lrcore.compression.pipeline.nest import plan_within
from lrcore.layers.statistics import TAPS
from lrcore.methods import METHODS
from lrcore.methods.factors import FactoredMatrix
from lrcore.models.layers import read_layer
from lrcore.models.stream import LayerStream

FAMILIES = ("tiny_llama", "tiny_opt")
RATIOS = (0.35, 0.5)
UNEVEN = {"policy": "greedy"}  # some slots are dense at the smallest ratio


@torch.inference_mode()
def logits(model: lrcore.LoadedModel) -> torch.Tensor:
    return model.network(input_ids=torch.arange(3, 43).view(2, 20), use_cache=False).logits


@pytest.fixture(scope="module")
def recipe(story_file) -> lrcore.Recipe:
    base = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, ratio=0.15)
    return base.with_(method="svd_llm")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request) -> lrcore.LoadedModel:
    return lrcore.load(str(request.getfixturevalue(request.param)))


@pytest.fixture(scope="module")
def llama(tiny_llama) -> lrcore.LoadedModel:
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def folder(model, recipe, tmp_path_factory):
    nested = lrcore.compress_nested(model, recipe.with_(**UNEVEN), RATIOS)
    assert nested.pairs  # else the policy has no dense slot and the tests check half of the code
    return lrcore.save(nested, tmp_path_factory.mktemp("nested") / "small")


@pytest.mark.parametrize("kind", [(4, 2, "rotary", False, True), (3, 3, "none", True, False)])
@pytest.mark.parametrize("method", METHODS)
def test_methods_that_nest_are_those_whose_factors_are_plain_pairs(method: str, kind) -> None:
    case = toy(*kind)
    factors = METHODS[method].factor(case.layer, case.moments, METHODS[method].choose({}))
    is_plain = all(type(factor) is FactoredMatrix for factor in factors.values())
    assert METHODS[method].nests == is_plain


@pytest.mark.parametrize("ratio", [None, 0.15, *RATIOS])
def test_cut_equals_the_compressed_model_of_the_same_ranks(model, folder, ratio) -> None:
    cut = lrcore.load(folder, ratio=ratio)
    direct = lrcore.compress(model, cut.recipe)
    assert cut.recipe.ratio == (ratio or 0.15)
    assert cut.ranks == direct.ranks
    assert cut.size == direct.size
    assert torch.equal(logits(cut), logits(direct))
    assert cut.account == direct.account


def test_cut_is_saved_and_loaded_like_any_model(folder, tmp_path) -> None:
    cut = lrcore.load(folder, ratio=0.5)
    back = lrcore.load(lrcore.save(cut, tmp_path / "cut"))
    assert torch.equal(logits(back), logits(cut))
    assert back.provenance == cut.provenance
    with pytest.raises(lrcore.InputError, match="not a nested checkpoint"):
        lrcore.load(tmp_path / "cut", ratio=0.5)


def test_offloaded_and_converted_models_are_cut(folder) -> None:
    plain = logits(lrcore.load(folder, ratio=0.5))
    assert torch.equal(logits(lrcore.load(folder, ratio=0.5, offload=True)), plain)
    assert logits(lrcore.load(folder, dtype="bfloat16", ratio=0.5)).dtype == torch.bfloat16


def test_ratio_between_two_cuts_takes_the_smaller_model(folder) -> None:
    sizes = {r: lrcore.load(folder, ratio=r).size.parameters for r in (0.15, 0.2, 0.35, 0.4, 0.5)}
    assert sizes[0.15] > sizes[0.2] == sizes[0.35] > sizes[0.4] == sizes[0.5]
    fingerprints = {lrcore.load(folder, ratio=r).fingerprint for r in (0.15, 0.35, 0.5)}
    assert len(fingerprints) == 3
    for outside in (0.1, 0.6):
        with pytest.raises(lrcore.InputError, match=r"from 0\.15 to 0\.5"):
            lrcore.load(folder, ratio=outside)


def test_ranks_never_grow_and_keep_the_budget(model, recipe) -> None:
    """The previous plan is that of another policy, so that many ranks of this one are above it."""
    uneven = recipe.with_(ratio=0.3, policy="softmax", temperature=0.1)
    factors = lrcore.prepare(model, uneven)
    previous = lrcore.allocate(factors, uneven)
    wanted = recipe.with_(ratio=0.4, policy="uniform")
    free = lrcore.allocate(factors, wanted)
    assert any(rank > previous.ranks[slot] for slot, rank in free.ranks.items())
    limited, plan = plan_within(factors, wanted, previous)
    assert all(rank <= previous.ranks[slot] for slot, rank in plan.ranks.items())
    assert lrcore.allocate(factors, limited).ranks == plan.ranks
    assert 0.4 <= plan.account.achieved < 0.42


@pytest.mark.parametrize("changes", [{"refit": "on"}, {"calibration_mode": "sequential"}])
def test_pairs_are_optimal_for_the_inputs_in_the_compressed_model(
    model, recipe, changes, tmp_path
) -> None:
    """Compare each pair with the SVD of `W S^{1/2}` of the model of the smallest ratio."""
    recipe = recipe.with_(**UNEVEN, **changes)
    nested = lrcore.compress_nested(model, recipe, RATIOS)
    direct = lrcore.compress(model, recipe)
    assert torch.allclose(logits(nested.model), logits(direct), atol=1e-4)
    folder = lrcore.save(nested, tmp_path / "small")
    cut = lrcore.load(folder, ratio=0.5)
    stream = LayerStream(direct.network, lrcore.calibrate(model, recipe).tokens)
    compared = 0
    for index in range(2):
        before, after = read_layer(direct.network, index), read_layer(cut.network, index)
        moments = stream.run(index, {(tap, "second") for tap in TAPS.values()})
        for row in (row for row in cut.ranks if row.layer == index and row.rank < row.full):
            values, vectors = torch.linalg.eigh(moments.second(TAPS[row.component]))
            root = vectors * values.clamp_min(0).sqrt()
            weight = before.matrices()[row.component].weight.double()
            gap = weight - after.matrices()[row.component].weight.double()
            tail = torch.linalg.svdvals(weight @ root)[row.rank :].square().sum()
            total = (weight @ root).square().sum()
            assert float((gap @ root).square().sum()) == pytest.approx(
                float(tail), rel=1e-3, abs=1e-6 * float(total)
            )
            compared += 1
    assert compared > 6


@pytest.mark.parametrize(
    ("changes", "ratios", "message"),
    [
        ({"method": "fused"}, RATIOS, "Choose one of svd, svd_llm"),
        ({"options": {"stored": "pivots"}}, RATIOS, "stored=pairs"),
        ({"budget": "bytes", "policy": "probed"}, RATIOS, "bytes"),
        ({}, (), "got none"),
        ({}, (0.1, 0.5), "got 0.1, 0.5"),
        ({}, (0.5, 1.0), "got 0.5, 1"),
    ],
)
def test_unsuitable_settings_are_refused(llama, recipe, changes, ratios, message) -> None:
    with pytest.raises(lrcore.InputError, match=message):
        lrcore.compress_nested(llama, recipe.with_(**changes), ratios)


def test_models_with_experts_are_refused(recipe, tiny_llama, tmp_path) -> None:
    experts = lrcore.load(str(family_folder("mixtral", tiny_llama, tmp_path / "experts")))
    with pytest.raises(lrcore.InputError, match="routed experts"):
        lrcore.compress_nested(experts, recipe, RATIOS)


@pytest.mark.parametrize(
    "text", ["{}", '{"format": 2, "cuts": []}', '{"format": 1, "cuts": [{"ratio": 0.5}]}', "{"]
)
def test_damaged_files_are_reported(llama, recipe, text, tmp_path) -> None:
    folder = lrcore.save(lrcore.compress_nested(llama, recipe, RATIOS), tmp_path / "small")
    described = json.loads((folder / CUTS).read_text())
    (folder / CUTS).write_text(text)
    with pytest.raises(lrcore.InputError):
        lrcore.load(folder, ratio=0.5)
    (folder / CUTS).write_text(json.dumps(described))
    (folder / PAIRS).write_bytes(b"")
    with pytest.raises(lrcore.InputError):
        lrcore.load(folder, ratio=0.5)
