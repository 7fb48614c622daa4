"""Refit of matrices that are a dictionary and sparse codes."""

from dataclasses import replace

import pytest
import torch
from test_pairs import IN, sums

import lrcore
from lrcore.compression.solve import refit
from lrcore.compression.solve.refit_codes import refit_codes, sharing_dictionary
from lrcore.compression.solve.refit_pairs import refit_target
from lrcore.layers.forms import SparseCodes, dense, sparse_codes
from lrcore.layers.layer import LowRank
from lrcore.methods.codes import Coding, coded_matrices, fitted
from lrcore.models.layers import read_layer

ATOMS, ENTRIES = 8, 4


def pairs(old, sizes=(5, 4)):
    """Return the dense weights as codes of a common dictionary, without moments."""
    left, values, _ = torch.linalg.svd(old.weight, full_matrices=False)
    product = left * values
    codes, mask, down = fitted(product, left[:, :ATOMS], old.weight, ENTRIES, 3)
    biases = [None] * len(sizes) if old.bias is None else old.bias.split(sizes)
    parts = zip(codes.split(sizes), mask.split(sizes), biases, strict=True)
    ups = {f"matrix {i}": (sparse_codes(c, m), bias) for i, (c, m, bias) in enumerate(parts)}
    return {name: LowRank(down, up, bias) for name, (up, bias) in ups.items()}


@pytest.mark.parametrize("bias", [True, False])
def test_codes_are_fitted_to_the_rows_with_the_same_sizes(bias):
    x, y, weights, old, fit = sums(bias)
    before = pairs(old)
    after = refit_codes(before, fit, old.weight)
    target = refit_target(fit, old.weight, bias)
    codes = torch.cat([dense(pair.up) for pair in after.values()])
    (down,) = {id(pair.down): pair.down for pair in after.values()}.values()
    # the dictionary is the least-squares solution for the codes
    residual = codes @ down - target.weight
    assert torch.allclose(codes.mT @ residual, torch.zeros(ATOMS, IN).double(), atol=1e-6)
    assert bool(((codes != 0).sum(1) == ENTRIES).all())
    for name, pair in after.items():
        assert pair.parameters == before[name].parameters
        assert (pair.bias is None) == (not bias)

    def error(projections):
        outputs = [x @ p.weight.mT + (0 if p.bias is None else p.bias) for p in projections]
        return float(weights @ (torch.cat(outputs, 1) - y).square().sum(1))

    assert error(after.values()) < error(before.values())


def test_codes_are_grouped_by_their_dictionary_and_other_matrices_are_left_out():
    layer = read_layer(lrcore.load("demo-llama").network, 0)
    case = coded_matrices(
        layer,
        ("gate", "up"),
        torch.eye(layer.attention.q.weight.shape[1]),
        None,
        Coding(2, 0, True),
    )
    both = case.truncate(layer, 4)
    names = ["gate", "up", "down"]
    assert [set(group) for group in sharing_dictionary(both, names)] == [{"gate", "up"}]
    up = both.matrices()["up"]
    apart = both.with_matrices(up=replace(up, down=up.down.clone()))
    assert [set(group) for group in sharing_dictionary(apart, names)] == [{"gate"}, {"up"}]
    assert sharing_dictionary(layer, names) == []


@pytest.fixture
def requested(request, story_file):
    """Return a recipe with sparse codes in the MLPs of both layers, half of their parameters."""

    def recipe(kind, slot):
        return lrcore.Recipe(
            str(request.getfixturevalue(kind)),
            data=str(story_file),
            samples=64,
            seq_len=32,
            method="fused",
            options={"forms": "codes"},
            ratio=0.2,
            rank_overrides={f"{layer}.{slot}": 5 for layer in range(2)},
        )

    return recipe


@pytest.mark.parametrize(("kind", "slot"), [("tiny_llama", "joint_gate_up"), ("tiny_opt", "up")])
def test_refit_of_codes_lowers_the_error_and_keeps_the_size(
    kind, slot, requested, tmp_path, monkeypatch
):
    recipe = requested(kind, slot)
    model = lrcore.load(recipe.model, dtype="float64")
    tokens = lrcore.calibrate(model, recipe).tokens
    refit_all = lrcore.compress(model, recipe)
    layer = read_layer(refit_all.network, 1)
    names = ["gate", "up"] if slot == "joint_gate_up" else ["up"]
    assert all(isinstance(layer.matrices()[name].up, SparseCodes) for name in names)
    monkeypatch.setattr(refit, "sharing_dictionary", lambda layer, names: [])
    refit_others = lrcore.compress(model, recipe)
    assert refit_all.size == refit_others.size
    with torch.inference_mode():
        expected, *errors = (
            m.network(tokens, output_hidden_states=True).hidden_states[-2]
            for m in (model, refit_all, refit_others)
        )
    assert (errors[0] - expected).square().mean() < (errors[1] - expected).square().mean()
    lrcore.save(refit_all, tmp_path / "small")
    loaded = lrcore.load(str(tmp_path / "small"))
    assert loaded.size == refit_all.size
    with torch.inference_mode():
        assert torch.equal(loaded.network(tokens).logits, refit_all.network(tokens).logits)
