"""Methods on a device other than the CPU: equal results and few synchronizations.

No tensor is on the wrong device, and no method waits for the device per rank or neuron.
"""

from functools import cache

import pytest
import torch
from pretended_device import Away, Device, moved
from test_contract import EVERY, ROWS, solve
from toy_layer import KINDS, toy

from lrcore.layers.statistics import Moments
from lrcore.methods import truncate
from lrcore.methods.factors import spectrum
from lrcore.methods.latentllm import hosvd

# Limit per layer or slot: damping a matrix or reading a set of pivots waits once. The toy layer has
# 40 neurons, so waiting once per neuron exceeds the limit.
WAITS = 24
ROUNDS = 2 * 2 * hosvd.ROUNDS  # joint QK and VO: the gain of each round, and its longest step
STEPS = ("vo", "attention")  # conjugate gradients wait in each of hundreds of steps
CASES = [
    case
    for case in EVERY
    if case.values[1] == KINDS[-1] or (case.values[1] == KINDS[0] and not case.values[0][1])
]
CASES = [case for case in CASES if STEPS not in case.values[0][1].items()]


def test_spectra_are_on_the_cpu() -> None:
    layer, moments = _on_device(KINDS[0])
    with Device():
        for row in (ROWS["a3"], ROWS["flap"]):
            for name, factor in row.factor(layer, moments, row.choose({})).items():
                s = spectrum(0, name, factor)
                assert not any(isinstance(tensor, Away) for tensor in (s.values, s.heads, s.scores))


@cache
def _on_device(kind: tuple):
    case = toy(*kind)
    return moved(case.layer), Moments(moved(dict(case.moments.values)), case.moments.tokens)


@pytest.mark.one_in(2, each="method")
@pytest.mark.parametrize(("method", "kind"), CASES)
def test_methods_give_the_results_of_the_cpu_on_another_device(
    method: tuple[str, dict], kind
) -> None:
    case, factors = solve(method, kind)
    row, (layer, moments) = ROWS[method[0]], _on_device(kind)
    with Device() as device:
        away = row.factor(layer, moments, row.choose(method[1]))
    assert device.waits.total() <= WAITS, device.waits
    for name, factor in factors.items():
        rank = factor.cost.ranks()[len(factor.cost.ranks()) // 2]
        with Device() as device:
            small = truncate(layer, away, {name: rank}).matrices()
            weights = {
                matrix: small[matrix].weight for matrix in row.matrices_of(name) if matrix in small
            }
        allowed = WAITS + (ROUNDS if name.startswith("joint_") else 0)
        assert device.waits.total() <= allowed, device.waits
        expected = truncate(case.layer, factors, {name: rank}).matrices()
        for matrix, weight in weights.items():
            assert isinstance(weight, Away), matrix
            assert torch.allclose(weight.cpu_tensor, expected[matrix].weight, rtol=0, atol=1e-9), (
                matrix
            )


def test_fake_device_raises_like_a_gpu_and_counts_waits() -> None:
    with Device() as device:
        x = Away(torch.ones(3))
        with pytest.raises(RuntimeError, match="of the CPU"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="of the CPU"):
            x[torch.tensor([1, 0])]
        assert isinstance(torch.zeros(3, device=x.device) + x * 2, Away)
        assert isinstance(torch.tensor([1, 0], device=x.device), Away)
        assert not device.waits
        assert float(x.sum()) == 3.0
        assert not isinstance(x.cpu(), Away)
        assert x.tolist() == [1, 1, 1]
    assert device.waits.total() == 3
