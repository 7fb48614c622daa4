"""Refit of both factors of a pair by reduced-rank regression."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny

import lrcore
from lrcore.compression.solve import refit_pairs as pairs
from lrcore.compression.solve.refit_pairs import (
    INDEPENDENT,
    METRIC_RIDGE,
    PER_INPUT,
    can_refit_pair,
    refit_pair,
)
from lrcore.compression.solve.regression import Regression
from lrcore.layers.forms import IdentityColumns, quantize
from lrcore.layers.layer import Linear, LowRank
from lrcore.methods.latentllm.junction import join
from lrcore.models.layers import read_layer

RANK, IN, OUT = 4, 12, 9


def random_tensor(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sums(bias):
    """Return rows x and y, their weights, the factored dense projection, and the regression."""
    x = random_tensor(300, IN, seed=1) @ random_tensor(IN, IN, seed=2) + 0.5
    dense = Linear(random_tensor(OUT, IN, seed=3), random_tensor(OUT, seed=4) if bias else None)
    y = x @ dense.weight.mT + random_tensor(300, OUT, seed=5)
    weights = torch.rand(300, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    fit = Regression()
    for rows in torch.arange(300).split(100):
        fit.add(x[rows], y[rows], weights[rows])
    return x, y, weights, dense, fit


def pair(dense, form):
    """Return the dense weights truncated to RANK, without moments."""
    up, values, down = torch.linalg.svd(dense.weight, full_matrices=False)
    up, down = up[:, :RANK] * values[:RANK], down[:RANK]
    if form == "identity":
        up, down = join(up[None], down[None], values[None, :RANK], "right_identity")
    return LowRank(down, up, dense.bias)


def augmented(x, y, weights, dense):
    """Return the rows of least squares with the ridge, and the rows of the metric."""
    if dense.bias is not None:
        x, y = (rows_ - (weights @ rows_) / weights.sum() for rows_ in (x, y))
    x, y = (weights.sqrt()[:, None] * rows_ for rows_ in (x, y))
    sizes = (x**2).sum(0).sqrt()
    pull = (PER_INPUT * IN / weights.sum()).sqrt() * sizes.diag()
    rows, target = torch.cat((x, pull)), torch.cat((y, pull @ dense.weight.mT))
    return rows, target, torch.cat((x, METRIC_RIDGE**0.5 * sizes.diag()))


def cut(weight, rows):
    """Return the Eckart-Young truncation of the weight in the metric of the rows."""
    _, _, right = torch.linalg.svd(rows @ weight.mT, full_matrices=False)
    return right[:RANK].mT @ right[:RANK] @ weight


@pytest.mark.parametrize("form", ["plain", "identity"])
@pytest.mark.parametrize("bias", [True, False])
def test_pair_equals_the_reduced_rank_regression_on_the_rows(bias, form):
    x, y, weights, dense, fit = sums(bias)
    old = pair(dense, form)
    new = refit_pair(old, fit, dense)
    rows, target, metric = augmented(x, y, weights, dense)
    expected = cut(torch.linalg.lstsq(rows, target).solution.mT, metric)
    assert torch.allclose(new.weight, expected, atol=1e-6)
    assert isinstance(new.down, IdentityColumns) == (form == "identity")
    assert (new.rank, new.parameters) == (old.rank, old.parameters)
    assert (new.bias is None) == (not bias)
    if bias:
        mean_x, mean_y = ((weights @ projection) / weights.sum() for projection in (x, y))
        assert torch.allclose(new.bias, mean_y - expected @ mean_x, atol=1e-6)
    new_error, old_error = (
        float(((rows @ projection.weight.mT - target) ** 2).sum()) for projection in (new, old)
    )
    assert new_error < old_error


def test_pair_of_an_exact_fit_is_the_truncated_weight():
    """If y = W x, the result is W truncated in the metric of the inputs."""
    x, _, weights, dense, _ = sums(bias=False)
    fit = Regression()
    fit.add(x, x @ dense.weight.mT, weights)
    new = refit_pair(pair(dense, "plain"), fit, dense)
    *_, metric = augmented(x, x @ dense.weight.mT, weights, dense)
    assert torch.allclose(new.weight, cut(dense.weight, metric), atol=1e-6)


def test_only_independent_pairs_can_be_refit(monkeypatch):
    layer = read_layer(tiny("llama"), 0)
    dense = layer.matrices()

    def cut(name, seed):
        rows, columns = dense[name].weight.shape
        return LowRank(
            random_tensor(RANK, columns, seed=seed), random_tensor(rows, RANK, seed=seed + 1)
        )

    small = layer.with_matrices(**{name: cut(name, 2 * i) for i, name in enumerate(dense)})
    able = {name for name in dense if can_refit_pair(small, name, dense[name])}
    assert able == set(INDEPENDENT)
    assert not any(can_refit_pair(layer, name, dense[name]) for name in dense)  # no pairs
    up = small.matrices()["up"]
    shared = small.with_matrices(gate=replace(small.matrices()["gate"], down=up.down))
    assert not can_refit_pair(shared, "up", dense["up"])
    assert not can_refit_pair(shared, "gate", dense["gate"])
    for changed in (
        replace(up, up=quantize(up.up, 8, 4)),
        replace(up, down=quantize(up.down, 8, 4)),
    ):
        assert not can_refit_pair(small.with_matrices(up=changed), "up", dense["up"])
    fewer = replace(up, up=up.up[:-1])  # one neuron less
    narrow = small.with_matrices(up=fewer)
    assert not can_refit_pair(narrow, "up", dense["up"])
    monkeypatch.setattr(pairs, "MAX_SIDE", min(dense["up"].weight.shape) - 1)
    assert not can_refit_pair(small, "up", dense["up"])


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_opt"])
@pytest.mark.parametrize("method", ["svd_llm", "latentllm"])
def test_refit_of_both_factors_lowers_the_error_of_the_residual_stream(
    kind, method, request, story_file, monkeypatch
):
    requested = lrcore.Recipe(
        str(request.getfixturevalue(kind)),
        data=str(story_file),
        samples=64,
        seq_len=32,
        method=method,
        ratio=0.4,
        refit="on",
    )
    model = lrcore.load(requested.model, dtype="float64")
    tokens = lrcore.calibrate(model, requested).tokens
    refit_both = lrcore.compress(model, requested)
    monkeypatch.setattr(pairs, "INDEPENDENT", ())  # refit the up factors only
    refit_up = lrcore.compress(model, requested)
    assert refit_both.size == refit_up.size
    with torch.inference_mode():
        dense, *errors = (
            m.network(tokens, output_hidden_states=True).hidden_states[-2]
            for m in (model, refit_both, refit_up)
        )
    assert (errors[0] - dense).square().mean() < (errors[1] - dense).square().mean()


def test_refit_keeps_a_factor_that_queries_keys_and_values_share(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="latentllm",
        options={"attention": "joint_qkv"},
        ratio=0.3,
    )
    model = lrcore.load(recipe.model)
    refit = lrcore.compress(model, recipe.with_(refit="on"))
    assert refit.size == lrcore.compress(model, recipe.with_(refit="off")).size
