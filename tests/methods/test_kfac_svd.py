"""Pairs in the metric of inputs and outputs, compared with the SVD of `R^{1/2} W C^{1/2}`.

The methods are `kfac_svd`, and `svd_llm` with outputs=curvature.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy_layer import toy

from lrcore.compression.evidence.kind import cache_file
from lrcore.layers.statistics import SAMPLED_CURVATURE, TAPS, TEXT_CURVATURE, Moments
from lrcore.methods import METHODS, kfac_svd, spectrum, svd_llm

KINDS = [(3, 3, "none", True, False), (4, 2, "rotary", False, True)]
DAMPED = svd_llm.SvdLlmOptions(outputs="curvature", damping=0.2)


def root(m: torch.Tensor, power: float = 0.5) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(m)
    return (vectors * values**power) @ vectors.T


def identity_like(m: torch.Tensor) -> torch.Tensor:
    """Return the multiple of the identity with the trace of m."""
    return torch.eye(len(m), dtype=m.dtype) * m.diagonal().mean()


def metrics(case, method: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return R [out, out] and C [in, in] of a matrix."""
    second = case.moments.second(TAPS[name])
    if method == "svd_llm":
        r = case.moments.values[name, SAMPLED_CURVATURE]
        return r + 0.2 * identity_like(r), second
    r = case.moments.values[name, TEXT_CURVATURE]
    return 0.7 * r + 0.3 * identity_like(r), 0.9 * second + 0.1 * identity_like(second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["svd_llm", "kfac_svd"])
def test_pair_is_optimal_in_the_metric_of_inputs_and_outputs(method: str, kind: tuple) -> None:
    case = toy(*kind)
    options = DAMPED if method == "svd_llm" else kfac_svd.DEFAULT
    for name, factor in METHODS[method].factor(case.layer, case.moments, options).items():
        weight = case.layer.matrices()[name].weight
        r, c = metrics(case, method, name)
        u, s, vt = torch.linalg.svd(root(r) @ weight @ root(c), full_matrices=False)
        for rank in (1, 5, factor.cost.cap):
            small = factor.truncate(case.layer, rank).matrices()[name].weight
            gap = root(r) @ (weight - small) @ root(c)
            assert float((gap**2).sum()) == pytest.approx(float((s[rank:] ** 2).sum()), rel=1e-7)
            assert spectrum(0, name, factor).tail(rank) == pytest.approx(
                float((s[rank:] ** 2).sum()), rel=1e-7
            )
            best = root(r, -0.5) @ u[:, :rank] @ s[:rank].diag() @ vt[:rank] @ root(c, -0.5)
            assert torch.allclose(small, best, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_scale_of_the_curvature_does_not_matter_and_damping_weakens_it(kind: tuple) -> None:
    case = toy(*kind)

    def weights(options: svd_llm.SvdLlmOptions, scale: float = 1.0) -> dict:
        values = {
            need: value * (scale if need[1] == SAMPLED_CURVATURE else 1.0)
            for need, value in case.moments.values.items()
        }
        moments = Moments(values, case.moments.tokens)
        factors = svd_llm.factor(case.layer, moments, options)
        return {
            name: factor.truncate(case.layer, 5).matrices()[name].weight
            for name, factor in factors.items()
        }

    plain, damped = weights(svd_llm.DEFAULT), weights(DAMPED)
    scaled, without = weights(DAMPED, 1e-12), weights(DAMPED, 0.0)
    nearly = weights(replace(DAMPED, damping=10.0))
    for name, weight in plain.items():
        assert torch.allclose(damped[name], scaled[name], atol=1e-7)
        assert torch.allclose(weight, without[name], atol=1e-7)
        assert (nearly[name] - weight).norm() < 0.5 * (damped[name] - weight).norm()


def test_cache_key_of_the_default_options_does_not_contain_later_options() -> None:
    def file(options: object) -> Path:
        calibration = SimpleNamespace(key="a calibration")
        factors = SimpleNamespace(
            calibration=calibration, method="svd_llm", spectra={}, options=options
        )
        return cache_file("probes", factors)

    @dataclass(frozen=True)
    class Former:
        stored: str = "pairs"

    assert file(svd_llm.DEFAULT) == file(Former())
    assert len({file(svd_llm.DEFAULT), file(DAMPED), file(replace(DAMPED, damping=0.3))}) == 3
