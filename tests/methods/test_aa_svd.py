"""AA-SVD: its anchored objective against the printed formula, and compressed networks."""

import pytest
import torch
from toy_layer import toy

import lrcore
from lrcore.compression.solve.compress_layers import cross_moments
from lrcore.layers.statistics import CROSS, TAPS, Moments
from lrcore.methods import aa_svd, svd_llm, truncate
from lrcore.models.layers import clone, read_layer
from lrcore.models.stream import LayerStream

EXACT = aa_svd.AaSvdOptions(ridge=1e-8)


def perturbed_inputs(case) -> tuple[dict, Moments]:
    """Return dense and perturbed inputs of all taps, [tokens, n], and their moments."""
    g, inputs, values = torch.Generator().manual_seed(4), {}, {}
    dense = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    for tap, x in dense.items():
        noise = torch.randn(x.shape, generator=g, dtype=x.dtype)
        inputs[tap] = shifted = 0.8 * x + 0.3 * x.std() * noise
        values[tap, "second"], values[tap, CROSS] = (
            shifted.T @ shifted / len(x),
            x.T @ shifted / len(x),
        )
    return {tap: (x, inputs[tap]) for tap, x in dense.items()}, Moments(values, len(case.x))


@pytest.mark.parametrize("rank", [1, 4])
def test_factors_follow_the_printed_formula_and_their_values_are_the_error(rank: int) -> None:
    """The paper computes `SVD_r(W E[x x'^T] L^{-T}) L^{-1}` with `L L^T = E[x' x'^T]`."""
    case = toy(4, 2, "rotary", False, True)
    inputs, moments = perturbed_inputs(case)
    factors = aa_svd.factor(case.layer, moments, EXACT)
    small = truncate(case.layer, factors, dict.fromkeys(factors, rank)).matrices()
    for name, projection in case.layer.matrices().items():
        second, cross = moments.second(TAPS[name]), moments.cross(TAPS[name])
        lower = torch.linalg.cholesky(second)
        u, s, vt = torch.linalg.svd(projection.weight @ cross @ torch.linalg.inv(lower).T)
        literal = u[:, :rank] * s[:rank] @ vt[:rank] @ torch.linalg.inv(lower)
        assert torch.allclose(small[name].weight, literal, atol=1e-5), name
        x, shifted = inputs[TAPS[name]]

        def error(weight, w=projection.weight, x=x, shifted=shifted) -> float:
            return float((x @ w.T - shifted @ weight.T).square().sum(1).mean())

        target = projection.weight @ cross @ torch.linalg.inv(second)
        tail = float((factors[name].values[rank:] ** 2).sum())
        assert error(small[name].weight) == pytest.approx(error(target) + tail, rel=1e-5)
        assert torch.allclose(factors[name].values, s[: len(factors[name].values)], atol=1e-5)


def test_without_anchor_or_perturbation_it_equals_svd_llm() -> None:
    case = toy(4, 2, "rotary", True, True)
    _, moments = perturbed_inputs(case)
    for options, statistics in ((aa_svd.AaSvdOptions(anchor=0.0), moments), (EXACT, case.moments)):
        anchored, plain = (
            aa_svd.factor(case.layer, statistics, options),
            svd_llm.factor(case.layer, statistics),
        )
        for name, factor in plain.items():
            assert torch.equal(anchored[name].up, factor.up)
            assert torch.equal(anchored[name].down, factor.down)


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def small(model, story_file):
    """Return the tokens and the models compressed sequentially by SVD-LLM and AA-SVD."""
    recipe = lrcore.Recipe(data=str(story_file), samples=8, seq_len=48, ratio=0.5)
    recipe = recipe.with_(calibration_mode="sequential", refit="off")
    calibration = lrcore.calibrate(model, recipe)
    return calibration.tokens, {
        method: lrcore.compress(model, recipe.with_(method=method, options=options))
        for method, options in (("svd_llm", {}), ("aa_svd", {"ridge": 1e-8}))
    }


def streams(networks, tokens, layer: int) -> list[LayerStream]:
    made = [LayerStream(clone(network), tokens) for network in networks]
    for stream in made:
        for index in range(layer):
            stream.run(index)
    return made


@pytest.mark.parametrize(("tap", "name"), [("attn_in", "v"), ("attn_out", "o"), ("mlp_in", "up")])
def test_each_part_is_solved_on_the_outputs_of_the_parts_before_it(model, small, tap, name) -> None:
    """Each matrix of the final network has the lowest error at its rank, relative to the dense
    output.
    """
    tokens, models = small
    network = models["aa_svd"].network
    dense, compressed = streams([model.network, network], tokens, 1)
    moments = cross_moments(dense, compressed, 1, tap, name)
    layer = read_layer(model.network, 1)
    factor = aa_svd.factor(layer, moments, EXACT)[name]
    weight = read_layer(network, 1).matrices()[name].weight
    rank = int(torch.linalg.matrix_rank(weight.double(), rtol=1e-5))
    assert rank < min(weight.shape)
    expected = factor.truncate(layer, rank).matrices()[name].weight
    assert torch.allclose(weight, expected, atol=2e-3 * float(weight.abs().max()))


class StreamOfRows:
    """A stream that returns the same rows as the input of every projection."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows, self.hidden = rows, rows.unsqueeze(0).split(1)

    def input_of(self, index: int, number: int, reader: str) -> torch.Tensor:
        return self.rows.unsqueeze(0)


def test_moments_of_inputs_with_a_large_mean_are_exact() -> None:
    g = torch.Generator().manual_seed(6)
    x, shifted = (1000 + torch.randn(300, 4, generator=g) for _ in range(2))
    moments = cross_moments(StreamOfRows(x), StreamOfRows(shifted), 0, "attn_in", "q")
    x, shifted = x.double(), shifted.double()
    assert torch.allclose(moments.second("attn_in"), shifted.mT @ shifted / 300, rtol=0, atol=1e-4)
    assert torch.allclose(moments.cross("attn_in"), x.mT @ shifted / 300, rtol=0, atol=1e-4)


def test_non_finite_activations_of_the_compressed_network_raise() -> None:
    x = torch.ones(6, 4, dtype=torch.float16)
    shifted = x.clone()
    shifted[2, 1] = torch.inf
    with pytest.raises(lrcore.InputError, match=r"'mlp_in' of layer 3 are not finite.*float32"):
        cross_moments(StreamOfRows(x), StreamOfRows(shifted), 3, "mlp_in", "up")


def test_stream_is_closer_to_the_dense_stream_than_with_svd_llm(model, small) -> None:
    tokens, models = small
    networks = [model.network, *(compressed.network for compressed in models.values())]
    dense, plain, anchored = (stream.hidden[0] for stream in streams(networks, tokens, 2))
    assert (anchored - dense).square().mean() < 0.98 * (plain - dense).square().mean()
