"""The residual-corrected refit: its ridge solution and its effect on compressed models."""

import pytest
import torch
from tiny_models import family_folder, tiny

import lrcore
from lrcore.compression.pipeline.compress import has_refit
from lrcore.compression.solve import compress_layers as write_module
from lrcore.compression.solve import refit as refit_module
from lrcore.compression.solve import regression as regression_module
from lrcore.compression.solve.refit import TOKENS_PER_FIRST, first_tokens
from lrcore.compression.solve.regression import (
    MAX_TOKEN_WEIGHT,
    RIDGE,
    Readers,
    Regression,
    mean_squares,
    pre_norm_target,
    refit_projection,
    token_weights,
)
from lrcore.layers.forms import IdentityRows, Sparse, dense, quantize
from lrcore.layers.layer import Linear, LowRank
from lrcore.methods import METHODS
from lrcore.recipes.history import Compressed

pytestmark = pytest.mark.one_in(2)


def slow_ridge(x, y, start, ridge, bias):
    """Solve least squares on the rows, with one row per input for the ridge toward `start`."""
    if bias:
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
    pull = (ridge * (x**2).sum(0)).sqrt().diag()
    weight = torch.linalg.lstsq(torch.cat((x, pull)), torch.cat((y, pull @ start.mT))).solution.mT
    return weight, (mean_y - weight @ mean_x) if bias else None


def rows(bias: bool):
    g = torch.Generator().manual_seed(5)
    x = (
        torch.randn(200, 12, generator=g, dtype=torch.float64)
        @ torch.randn(12, 12, generator=g, dtype=torch.float64)
        + 0.5
    )
    y = torch.randn(200, 6, generator=g, dtype=torch.float64)
    start = Linear(
        torch.randn(6, 12, generator=g, dtype=torch.float64),
        torch.randn(6, dtype=torch.float64) if bias else None,
    )
    fit = Regression()
    for part in range(4):
        fit.add(
            x[50 * part : 50 * part + 50].view(5, 10, 12),
            y[50 * part : 50 * part + 50].view(5, 10, 6),
        )
    return x, y, start, fit


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_ridge_solution_equals_least_squares_on_the_rows(bias, ridge):
    x, y, start, fit = rows(bias)
    got, (weight, shift) = fit.solve(start, ridge), slow_ridge(x, y, start.weight, ridge, bias)
    assert torch.allclose(got.weight, weight, atol=1e-6)
    assert (got.bias is None) == (not bias)
    assert not bias or torch.allclose(got.bias, shift, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_refit_with_biases_is_accurate_for_inputs_with_a_large_mean(dtype):
    x, y, start, _ = rows(bias=True)
    x, y = (x + 1000).to(dtype), (y + 50).to(dtype)
    fit = Regression()
    for part in range(4):
        fit.add(x[50 * part : 50 * part + 50], y[50 * part : 50 * part + 50])
    weight, _ = slow_ridge(x.double(), y.double(), start.weight, 0.1, bias=True)
    assert torch.allclose(fit.solve(start, 0.1).weight, weight, atol=1e-4)


def test_projections_with_the_same_input_share_one_solution(monkeypatch):
    g = torch.Generator().manual_seed(3)
    dense_input = torch.randn(300, 12, generator=g, dtype=torch.float64) + 2.0
    x = dense_input + 0.5 * torch.randn(300, 12, generator=g, dtype=torch.float64)
    fit, solutions = Regression(), []
    fit.add(x, dense_input)
    solution = Regression.solution
    monkeypatch.setattr(
        Regression,
        "solution",
        lambda self, *args: solutions.append(args) or solution(self, *args),
    )
    readers = Readers(fit)
    for out, bias in ((3, False), (7, True), (5, False), (4, True)):
        shift = torch.randn(out, generator=g, dtype=torch.float64) if bias else None
        start = Linear(torch.randn(out, 12, generator=g, dtype=torch.float64), shift)
        outputs = dense_input @ start.weight.mT + (0.0 if shift is None else shift)
        got, (weight, moved) = (
            readers.refit(start),
            slow_ridge(x, outputs, start.weight, RIDGE, bias),
        )
        assert torch.allclose(got.weight, weight, atol=1e-9)
        assert (got.bias is not None) == bias
        assert not bias or torch.allclose(got.bias, moved, atol=1e-9)
    assert len(solutions) == 2  # with means and without


@pytest.mark.parametrize("bias", [True, False])
def test_token_weights_give_weighted_least_squares(bias):
    x, y, start, _ = rows(bias)
    weights = torch.rand(200, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    fit = Regression()
    fit.add(x.view(4, 50, 12), y.view(4, 50, 6), weights.view(4, 50))
    if bias:
        mean_x, mean_y = ((weights @ rows_of_side) / weights.sum() for rows_of_side in (x, y))
        x, y = x - mean_x, y - mean_y
    roots = weights.sqrt().unsqueeze(1)
    weight, _ = slow_ridge(roots * x, roots * y, start.weight, 0.3, bias=False)
    got = fit.solve(start, 0.3)
    assert torch.allclose(got.weight, weight, atol=1e-6)
    assert not bias or torch.allclose(got.bias, mean_y - weight @ mean_x, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_regression_through_a_projection_equals_regression_on_its_outputs(bias):
    x, y, _, fit = rows(bias)
    g = torch.Generator().manual_seed(7)
    shift = torch.randn(5, generator=g, dtype=torch.float64) if bias else None
    old = Linear(torch.randn(5, 6, generator=g, dtype=torch.float64), shift)
    direct = Regression()
    direct.add(x, y @ old.weight.mT + (0.0 if shift is None else shift))
    start = Linear(torch.randn(5, 12, generator=g, dtype=torch.float64), shift)
    got, expected = fit.through(old).solve(start), direct.solve(start)
    assert torch.allclose(got.weight, expected.weight)
    assert not bias or torch.allclose(got.bias, expected.bias)


def test_token_weights_are_inverse_squares_up_to_a_maximum():
    stream = torch.ones(2, 8, 4)
    stream[0, 0], stream[0, 2], stream[1, 3], stream[1, 4] = 1000.0, 2.0, 1e-6, 0.0
    squares = mean_squares(stream)
    weights = token_weights(squares, squares.median())
    assert weights[0, 0] == pytest.approx(1e-6)
    assert weights[0, 1:3].tolist() == [1, 0.25]
    assert weights[1, 3] == weights[1, 4] == MAX_TOKEN_WEIGHT
    assert token_weights(torch.zeros(1, 2), torch.tensor(0.0)).tolist() == [[1.0, 1.0]]


def test_refit_keeps_the_down_factor():
    x, y, start, fit = rows(bias=True)
    down = torch.randn(4, 12, dtype=torch.float64)
    old = LowRank(down, torch.randn(6, 4, dtype=torch.float64), start.bias)
    new = refit_projection(old, fit)
    assert torch.equal(new.down, down)
    weight, shift = slow_ridge(x @ down.mT, y, old.up, 0.3, bias=True)
    assert torch.allclose(new.up, weight, atol=1e-6)
    assert torch.allclose(new.bias, shift, atol=1e-6)


def test_refit_keeps_identity_rows_codes_and_sparse_terms():
    x, y, start, fit = rows(bias=True)
    g = torch.Generator().manual_seed(9)
    down = torch.randn(4, 12, generator=g, dtype=torch.float64)
    fixed = LowRank(
        down,
        IdentityRows(torch.randn(1, 2, 4, dtype=torch.float64), torch.arange(6).int().unsqueeze(0)),
        start.bias,
    )
    assert refit_projection(fixed, fit) is fixed
    sparse = Sparse(torch.ones(3, dtype=torch.float64), torch.tensor([1, 20, 70]).int(), (6, 12))
    up = torch.randn(6, 4, generator=g, dtype=torch.float64)
    new = refit_projection(LowRank(down, up, start.bias, sparse), fit)
    weight, shift = slow_ridge(x @ down.mT, y - sparse.apply(x), up, 0.3, bias=True)
    assert new.sparse is sparse
    assert torch.allclose(new.up, weight, atol=1e-6)
    assert torch.allclose(new.bias, shift, atol=1e-6)
    coded = refit_projection(LowRank(down, quantize(up, 8, 8), start.bias), fit)
    assert (coded.up.bits, coded.up.chunk) == (8, 8)
    assert torch.allclose(
        dense(coded.up), slow_ridge(x @ down.mT, y, up, 0.3, bias=True)[0], atol=0.05
    )


def recipe(folder, story_file, **changes):
    requested = {
        "samples": 8,
        "seq_len": 32,
        "ratio": 0.3,
        "method": "fused",
        "dtype": "float64",
    } | changes
    return lrcore.Recipe(model=str(folder), data=str(story_file), **requested)


def stream_error(model, small, tokens):
    """Return the mean squared distance of the last hidden states, before the final norm."""
    hidden = [
        m.network(tokens, output_hidden_states=True).hidden_states[-2] for m in (model, small)
    ]
    return float(((hidden[0] - hidden[1]) ** 2).mean())


def check_refit_lowers_the_error(requested):
    """Return models without and with a refit; check that it lowers the error at equal size."""
    model = lrcore.load(requested.model, dtype="float64")
    tokens = lrcore.calibrate(model, requested).tokens
    plain, refit = (lrcore.compress(model, requested.with_(refit=word)) for word in ("off", "on"))
    with torch.inference_mode():
        assert stream_error(model, refit, tokens) < stream_error(model, plain, tokens)
    assert refit.size == plain.size
    return plain, refit


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fused", {}),
        ("a3", {}),
        ("svd_llm", {}),
        ("latentllm", {}),
        ("latentllm", {"bits": 8, "vo": "joint"}),
        ("latentllm", {"sparse": 0.05}),
    ],
)
def test_refit_lowers_the_error_of_the_residual_stream_at_the_same_size(
    kind, method, options, request, story_file
):
    requested = recipe(request.getfixturevalue(kind), story_file, method=method, options=options)
    plain, refit = check_refit_lowers_the_error(requested)
    assert refit.step(Compressed).calibration["refit"]
    assert not plain.step(Compressed).calibration["refit"]


def test_refit_accounts_for_the_residual_multiplier(tiny_llama, story_file, tmp_path, monkeypatch):
    folder = family_folder("granite", tiny_llama, tmp_path)
    requested = recipe(folder, story_file, method="svd_llm", refit="on")
    model = lrcore.load(requested.model, dtype="float64")
    tokens = lrcore.calibrate(model, requested).tokens
    refit, plain = (lrcore.compress(model, requested.with_(refit=word)) for word in ("on", "off"))
    monkeypatch.setattr(regression_module, "residual_multiplier", lambda network: 1.0)
    without = lrcore.compress(model, requested)
    with torch.inference_mode():
        error, *other_tokens = (
            stream_error(model, candidate, tokens) for candidate in (refit, plain, without)
        )
    assert error < min(other_tokens)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "glm4", "exaone4"])
@pytest.mark.parametrize("method", ["fused", "svd_llm"])
def test_refit_lowers_the_error_if_components_are_normed_before_the_addition(
    family, method, tiny_llama, story_file, tmp_path
):
    folder = family_folder(family, tiny_llama, tmp_path)
    check_refit_lowers_the_error(recipe(folder, story_file, method=method))


def root_mean_square_norm(gain):
    norm = torch.nn.RMSNorm(len(gain), eps=1e-12, dtype=torch.float64)
    norm.weight.data = gain
    return norm


def test_pre_norm_target_gives_the_target_after_the_norm():
    g = torch.Generator().manual_seed(3)
    dense_out, target_out = torch.randn(2, 2, 5, 8, generator=g, dtype=torch.float64)
    norm = root_mean_square_norm(torch.rand(8, generator=g, dtype=torch.float64) + 0.5)
    got = pre_norm_target(norm, norm(target_out), dense_out)
    assert torch.allclose(norm(got), norm(target_out), atol=1e-3)
    assert torch.allclose(mean_squares(got), mean_squares(dense_out), rtol=1e-3)
    assert torch.equal(pre_norm_target(norm, norm(dense_out), dense_out), dense_out)


def test_pre_norm_target_ignores_channels_with_zero_gain():
    norm = root_mean_square_norm(torch.tensor([1.0, 0.0, 1e-5, 1.0], dtype=torch.float64))
    dense_out = torch.ones(1, 3, 4, dtype=torch.float64)
    moved = pre_norm_target(norm, norm(dense_out) + 1, dense_out) - dense_out
    assert torch.equal(moved[..., 1], torch.zeros(1, 3))
    assert moved[..., 2].abs().max() < 1
    assert torch.allclose(moved[..., [0, 3]], torch.ones(1, 3, 2).double(), rtol=1e-3)


def test_layers_at_full_rank_are_not_refit(tiny_opt, story_file):
    requested = recipe(tiny_opt, story_file, refit="on", ratio=0.01)
    model = lrcore.load(requested.model, dtype="float64")
    factors = lrcore.prepare(model, requested)
    plan = lrcore.allocate(factors, requested)
    plan.ranks.update({slot: s.cost.full for slot, s in plan.spectra.items()})
    small = lrcore.compress(model, requested, factors, plan)
    tokens = factors.calibration.tokens
    with torch.inference_mode():
        assert torch.allclose(model.network(tokens).logits, small.network(tokens).logits, atol=1e-9)


def test_refit_auto_follows_the_method_if_the_family_supports_it():
    network = tiny("llama")
    for name, row in METHODS.items():
        assert has_refit(lrcore.Recipe(method=name), network) == row.refit
    assert METHODS["fused"].refit
    assert not has_refit(lrcore.Recipe(method="fused", refit="off"), network)
    assert has_refit(lrcore.Recipe(method="fused"), tiny("olmo2"))
    assert not has_refit(lrcore.Recipe(method="fused"), tiny("gemma3n_text"))
    with pytest.raises(lrcore.InputError, match="Layers of family gemma3n_text add more"):
        has_refit(lrcore.Recipe(refit="on"), tiny("gemma3n_text"))


def test_first_tokens_are_drawn_from_the_calibration_windows():
    tokens = torch.arange(320).view(8, 40)
    firsts = first_tokens(tokens)
    assert firsts.shape == (320 // TOKENS_PER_FIRST, 1)
    assert len({*firsts.flatten().tolist()} & {*range(320)}) == len(firsts)
    assert len({int(first) // 40 for first in firsts}) > 4
    assert torch.equal(firsts, first_tokens(tokens))
    assert first_tokens(tokens[:1, :1]).tolist() == [[0]]


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_opt"])
def test_refit_also_fits_first_tokens_of_other_windows(kind, request, story_file, monkeypatch):
    requested = recipe(request.getfixturevalue(kind), story_file, samples=4, seq_len=64)
    model = lrcore.load(requested.model, dtype="float64")
    other_tokens = lrcore.calibrate(model, requested.with_(samples=64, seq_len=8, seed=5)).tokens
    fitted = lrcore.compress(model, requested)
    monkeypatch.setattr(write_module, "with_first_tokens", lambda streams, _tokens: (streams,))
    without = lrcore.compress(model, requested)
    with torch.inference_mode():
        errors = [
            stream_error(model, candidate, other_tokens[:, :1]) for candidate in (fitted, without)
        ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_opt"])
def test_refit_of_projections_that_read_the_stream_lowers_the_error(
    kind, request, story_file, monkeypatch
):
    requested = recipe(request.getfixturevalue(kind), story_file, method="a3", refit="on")
    model = lrcore.load(requested.model, dtype="float64")
    tokens = lrcore.calibrate(model, requested).tokens
    all_tokens = lrcore.compress(model, requested)
    monkeypatch.setattr(refit_module, "READ_BY", dict.fromkeys(refit_module.READ_BY, ()))
    without = lrcore.compress(model, requested)
    with torch.inference_mode():
        assert stream_error(model, all_tokens, tokens) < stream_error(model, without, tokens)
    assert all_tokens.size == without.size
