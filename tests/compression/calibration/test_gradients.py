"""Gradients and their statistics by layer, and the baselines FWSVD and Taylor scores."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny
from toy_layer import toy

import lrcore
from lrcore.compression.calibration.gradients import PASSES, WINDOWS, collect, window_gradients
from lrcore.layers.layer import ACROSS, Linear
from lrcore.methods import METHODS, a3, svd
from lrcore.models.layers import clone, read_layer, write_layer

TOKENS = torch.randint(3, 250, (3, 12), generator=torch.Generator().manual_seed(0))


def loss(network, window: torch.Tensor) -> float:
    with torch.no_grad():
        logits = network(window.unsqueeze(0), use_cache=False).logits[0, :-1].double()
    return float(torch.nn.functional.cross_entropy(logits, window[1:]))


@pytest.mark.parametrize(
    ("family", "step"),
    [
        ("llama", 1e-4),
        ("opt", 1e-6),
        ("gpt2", 1e-6),
        ("phi3", 1e-4),
        ("gpt_neox", 1e-6),
        ("qwen3", 1e-4),
    ],
)
def test_gradients_equal_central_differences(family: str, step: float) -> None:
    """Compare along a random direction in each matrix.

    Families with RMS norms compute them in float32, which limits the step from below; the kinks of
    ReLU limit it from above.
    """
    network = tiny(family).double().requires_grad_(False)
    g = torch.Generator().manual_seed(1)
    slopes = next(window_gradients(network, TOKENS))
    for index in (0, len(slopes) - 1):
        layer = read_layer(network, index)
        for name, projection in layer.matrices().items():
            direction = torch.randn(projection.weight.shape, generator=g, dtype=torch.float64)
            sides = []
            for way in (step, -step):
                moved = clone(network)
                write_layer(
                    moved,
                    layer.with_matrices(
                        **{name: Linear(projection.weight + way * direction, projection.bias)}
                    ),
                )
                sides.append(loss(moved, TOKENS[0]))
            result = float((slopes[index].matrices()[name].weight * direction).sum())
            assert result == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-2, abs=5e-3)
    assert all(p.grad is None and not p.requires_grad for p in network.parameters())


def test_statistics_are_means_over_windows(tiny_llama) -> None:
    network = lrcore.load(str(tiny_llama)).network
    result, by_entry = (
        collect(network, TOKENS, lambda *_: None, PASSES[name]) for name in ("vectors", "entries")
    )
    for index, moments in enumerate(result):
        weights = read_layer(network, index).matrices()
        slopes = [layers[index].matrices() for layers in windows(network)]
        for name, projection in weights.items():
            grads = [slope[name].weight.double() for slope in slopes]
            assert torch.allclose(
                moments.values[name, "fisher"], sum((g**2).sum(0) for g in grads) / 3, rtol=1e-6
            )
            product, dim = projection.weight.double() * sum(grads) / 3, ACROSS[name]
            curved = projection.weight.double() ** 2 * sum(g**2 for g in grads) / 3
            for kind, expected in {
                "taylor": product.sum(dim),
                "param_first": product.abs().sum(dim),
                "param_second": curved.sum(dim),
                "param_mix": (product - curved / 2).abs().sum(dim),
            }.items():
                measured = (moments if kind == "taylor" else by_entry[index]).values[name, kind]
                assert torch.allclose(measured, expected, rtol=1e-4, atol=1e-8), (name, kind)


def windows(network) -> list:
    """Return copies of all gradients, because each window overwrites the previous gradients."""
    expected_parts = []
    for layers in window_gradients(network, TOKENS):
        expected_parts.append(
            [
                x.with_matrices(
                    **{
                        name: replace(p, weight=p.weight.clone())
                        for name, p in x.matrices().items()
                    }
                )
                for x in layers
            ]
        )
    return expected_parts


@pytest.mark.parametrize("name", ["q", "v", "o", "gate", "down"])
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_fwsvd_equals_the_formula_of_the_paper(name: str, rank: int) -> None:
    """The paper computes `svd(I W)` of W [in, out] with `I = diag(f)^{1/2}`, then `A = I^{-1} U S`
    and `B = V^T`.
    """
    case = toy(4, 2, "rotary", True, True)
    projection, fisher = case.layer.matrices()[name], case.moments.values[name, "fisher"]
    u, s, vt = torch.linalg.svd(fisher.sqrt().diag() @ projection.weight.T, full_matrices=False)
    literal = fisher.rsqrt().diag() @ u[:, :rank] @ s[:rank].diag() @ vt[:rank]
    factor = svd.factor(case.layer, case.moments, svd.SvdOptions(weights="fisher"))[name]
    assert torch.allclose(
        factor.truncate(case.layer, rank).matrices()[name].weight, literal.T, atol=1e-9
    )
    assert torch.allclose(factor.values, s, atol=1e-9)


def test_fwsvd_of_a_matrix_without_gradients_is_the_plain_svd() -> None:
    case = toy(4, 2, "rotary", True, True)
    without_gradients = replace(
        case.moments,
        values={
            need: value * (need != ("o", "fisher")) for need, value in case.moments.values.items()
        },
    )
    plain, fisher = (
        svd.factor(case.layer, without_gradients),
        svd.factor(case.layer, without_gradients, svd.SvdOptions(weights="fisher")),
    )
    assert torch.equal(fisher["o"].up, plain["o"].up)
    assert not torch.allclose(fisher["v"].values, plain["v"].values)


@pytest.mark.parametrize("kind", ["abs", "wanda", "taylor"])
@pytest.mark.parametrize("gated", [False, True])
def test_mlp_neurons_are_ranked_by_the_baseline_scores(kind: str, gated: bool) -> None:
    case = toy(4, 2, "rotary", True, gated)
    m, values = case.layer.mlp, case.moments.values
    scores = []
    for j in range(len(m.up.weight)):
        vectors = {"up": m.up.weight[j], "down": m.down.weight[:, j]} | (
            {"gate": m.gate.weight[j]} if gated else {}
        )
        scores.append(
            {
                "abs": sum(float(v.abs().sum()) for v in vectors.values()),
                "wanda": float(vectors["down"].abs().sum())
                * float((case.z[:, j] ** 2).mean()) ** 0.5,
                "taylor": sum(abs(float(values[name, "taylor"][j])) for name in vectors),
            }[kind]
        )
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:7]
    factor = a3.factor(case.layer, case.moments, a3.A3Options(mlp=kind))["mlp"]
    assert torch.equal(factor.truncate(case.layer, 7).mlp.up.weight, m.up.weight[sorted(best)])
    default = a3.factor(case.layer, case.moments)["mlp"]
    assert sorted(factor.values.tolist()) == sorted(
        default.values.tolist()
    )  # the losses of A3, in a different order


def test_taylor_score_predicts_the_change_of_the_loss(tiny_opt) -> None:
    """Scaling a weight by 1 - t changes the loss by -t times the score, up to t^2."""
    network = lrcore.load(str(tiny_opt), dtype="float64").network
    moments, layer, step = (
        collect(network, TOKENS, lambda *_: None, PASSES["vectors"])[1],
        read_layer(network, 1),
        1e-4,
    )
    base = sum(loss(network, w) for w in TOKENS) / 3
    for j in (0, 5, 11):
        down = layer.mlp.down.weight.clone()
        down[:, j] *= 1 - step
        moved = clone(network)
        write_layer(moved, layer.with_matrices(down=Linear(down, layer.mlp.down.bias)))
        change = sum(loss(moved, w) for w in TOKENS) / 3 - base
        assert change == pytest.approx(
            -step * float(moments.values["down", "taylor"][j]), rel=0.02, abs=1e-9
        )


@pytest.mark.parametrize(
    "reader", [("svd", {"weights": "fisher"}), ("a3", {"mlp": "taylor"})], ids=["svd", "a3"]
)
@pytest.mark.parametrize("calibration", ["independent", "sequential"])
def test_compress_collects_gradients_once_and_only_if_read(
    tiny_llama, story_file, tmp_path, monkeypatch, reader: tuple[str, dict], calibration: str
) -> None:
    method, options = reader
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file),
        samples=4,
        seq_len=32,
        method=method,
        ratio=0.4,
        calibration_mode=calibration,
    )
    plain = lrcore.compress(model, recipe)
    assert not (tmp_path / "gradients").exists()
    small = lrcore.compress(model, recipe.with_(options=options))
    assert len(list((tmp_path / "gradients").rglob("*.safetensors"))) == 3
    assert small.fingerprint != plain.fingerprint
    monkeypatch.setattr(
        "lrcore.compression.calibration.gradients.collect",
        lambda *_: pytest.fail("the cache was not used"),
    )
    recompressed = lrcore.compress(model, recipe.with_(options=options))
    ids = TOKENS[:1]
    with torch.inference_mode():
        assert torch.equal(recompressed.network(ids).logits, small.network(ids).logits)
        assert not torch.equal(plain.network(ids).logits, small.network(ids).logits)


def test_gradients_work_in_inference_mode_and_raise_for_unsupported_models(
    tiny_llama, story_file
) -> None:
    model = lrcore.load(str(tiny_llama))
    with torch.inference_mode():
        inside = next(window_gradients(model.network, TOKENS))[0].attention.q.weight.clone()
    assert torch.equal(inside, next(window_gradients(model.network, TOKENS))[0].attention.q.weight)
    recipe = lrcore.Recipe(
        data=str(story_file), samples=2, seq_len=16, method="svd", options={"weights": "fisher"}
    )
    with pytest.raises(lrcore.InputError, match="without offload, or change weights=fisher of svd"):
        lrcore.compress(lrcore.load(str(tiny_llama), offload=True), recipe)
    with pytest.raises(lrcore.InputError, match=r"Change weights=fisher of svd, or start from"):
        lrcore.compress(lrcore.compress(model, recipe.with_(options={})), recipe)
    assert WINDOWS >= 32
    assert METHODS["svd"].gradients(svd.SvdOptions(weights="fisher")) == {"fisher"}
