"""Loss curves through probes, with the shape of the spectrum's tail."""

import pytest
import torch

from lrcore.compression.evidence.curve import SPREAD, interpolate, loss_curve
from lrcore.compression.evidence.layer_probes import probed_ranks
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.ranks.evidence import Probe

COST = Cost(10, 3, 30)
S = Spectrum((0, "mlp"), torch.linspace(2, 0.2, 10, dtype=torch.float64), COST)


def curve_of(increases: dict[int, float], errors: dict[int, float]) -> dict[int, float]:
    """Return the curve by rank; errors are relative, 0 by default."""
    probes = [Probe(r, value, value * errors.get(r, 0)) for r, value in increases.items()]
    curve = loss_curve(S, probes)
    assert (curve.increase.diff() <= 0).all()
    return dict(zip(curve.ranks, curve.increase.tolist(), strict=True))


def test_curve_passes_through_its_probes_and_falls_to_zero() -> None:
    points = {r: 0.01 * (10 - r) ** 2 for r in probed_ranks(COST)}
    curve = curve_of(points, {})
    for rank, increase in points.items():
        assert curve[rank] == pytest.approx(increase, rel=1e-9)
    assert curve[10] == 0
    last = min(points)
    below = S.tail(1) / S.tail(last) * points[last]
    assert curve[1] == pytest.approx(below * (last / 1) ** 2)


def test_probe_below_its_noise_is_replaced_by_the_tail() -> None:
    sure = {3: 0.5, 5: 0.5 * S.tail(5) / S.tail(3)}
    for noisy in (1e-6, 0.05 * S.tail(9) / S.tail(3)):
        curve = curve_of(sure | {9: noisy}, {9: 0.1 / noisy})  # an error of 0.1 nats/token
        assert curve[9] == pytest.approx(0.5 * S.tail(9) / S.tail(3), rel=0.02)
        assert curve[3] == pytest.approx(0.5, rel=1e-9)


def test_probe_weight_depends_on_its_error_relative_to_the_spread() -> None:
    flat = {3: S.tail(3), 5: S.tail(5)}
    exact, unsure = curve_of(flat | {9: 0.01}, {}), curve_of(flat | {9: 0.01}, {9: SPREAD})
    assert exact[9] == pytest.approx(0.01, rel=1e-9)
    assert 1.5 * exact[9] < unsure[9] < 0.6 * S.tail(9)


def test_probes_that_increase_with_rank_share_one_scale() -> None:
    increases = {7: 0.01, 9: 0.02}  # impossible: the higher rank loses more
    even = curve_of(increases, {7: 0.1, 9: 0.1})
    assert even[7] / S.tail(7) == pytest.approx(even[9] / S.tail(9))
    first_noisy, second_noisy = (curve_of(increases, errors) for errors in ({7: 0.1}, {9: 0.1}))
    assert second_noisy[7] < even[7] < first_noisy[7]
    assert second_noisy[7] == pytest.approx(0.01, rel=0.05)


def test_curve_between_two_probes_stays_between_their_values() -> None:
    """If the tail ends at a probed rank, the logarithms of the two scales differ greatly."""
    values = torch.tensor([2, 1.5, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0], dtype=torch.float64)
    curve = loss_curve(Spectrum((0, "mlp"), values, COST), [Probe(9, 1e-6, 0), Probe(5, 0.1, 0)])
    at = dict(zip(curve.ranks, curve.increase.tolist(), strict=True))
    assert at[5] == pytest.approx(0.1)
    assert all(at[9] <= at[rank] <= at[5] for rank in (6, 7, 8))


def test_slot_with_zero_losses_has_a_finite_curve() -> None:
    curve = curve_of({3: 0.0, 9: 0.0}, {})
    assert 0 < curve[9] <= curve[3] < 1e-6


def test_slot_without_probes_has_a_zero_curve() -> None:
    assert set(curve_of({}, {}).values()) == {0.0}


def test_interpolation_is_linear_inside_and_constant_outside() -> None:
    x, known_x, known_y = (
        torch.tensor(v, dtype=torch.float64)
        for v in ([0.0, 1.0, 1.5, 3.0, 9.0], [1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    )
    assert interpolate(x, known_x, known_y).tolist() == [10, 10, 15, 10, 0]
