"""From a few noisy probes of a slot to its predicted increase in loss at every rank."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...evidence import LossCurve, Probe
from ...spectra import Spectrum

# Divergences below this are rounding of float32 log-probabilities; it also keeps the logarithm
# finite where truncating a slot changes nothing.
LEAST_INCREASE = 1e-7
# How far the logarithm of a slot's scale moves between its probes by itself: a standard deviation.
# A probe whose relative error is larger says less about the scale than the others do.
SPREAD = 1.0
# Below the lowest probed rank nothing was measured, and losses compound there: the curve grows with
# this power of the rank.
STEEP = 2.0


def loss_curve(s: Spectrum, probes: Sequence[Probe]) -> LossCurve:
    """Predicted increase in loss (nats/token) at every rank of `s.cost.ranks()`, [ranks], float64,
    falling to 0 at full rank.

    The tail of the spectrum times a scale whose logarithm is interpolated over rank between the
    probes, see `fitted_scales`. The scale is constant above the highest probed rank, and grows as
    (lowest probed rank / rank) ** STEEP below the lowest. The result is then made monotonic.
    """
    ranks = s.cost.ranks()
    grid = torch.tensor(ranks, dtype=torch.float64)
    if not probes:
        return LossCurve(ranks, torch.zeros_like(grid))
    tails = torch.tensor([s.tail(r) for r in ranks], dtype=torch.float64)
    tails = tails.clamp_min(float(tails.max()) * 1e-12 or 1.0)
    probes = sorted(probes, key=lambda probe: probe.rank)
    at = torch.tensor([probe.rank for probe in probes], dtype=torch.float64)
    scales = fitted_scales(tails[torch.searchsorted(grid, at)], probes)
    fitted = tails[torch.searchsorted(grid, at)] * scales.exp()
    curve = tails * interpolate(grid, at, scales).exp() * (at[0] / grid).clamp_min(1) ** STEEP
    curve = torch.minimum(curve, _most(grid, at, fitted))
    curve[-1] = 0
    return LossCurve(ranks, curve.flip(0).cummax(0).values.flip(0))


def _most(grid: Tensor, at: Tensor, fitted: Tensor) -> Tensor:
    """The increase fitted at the next probed rank below each rank of the grid, [ranks]: what a
    larger rank does not exceed. Infinite below the lowest.

    Where the tail is 0 at a probed rank and not at the next one below, the logarithms of their
    scales are so far apart that the curve between them would rise beyond both.
    """
    below = torch.searchsorted(at, grid, right=True)  # how many probed ranks are at most this one
    return torch.cat((fitted.new_tensor([torch.inf]), fitted))[below]


def fitted_scales(tails: Tensor, probes: Sequence[Probe]) -> Tensor:
    """Logarithms of the factors that take the analytic tail to the probes, [k].

    tails [k] > 0 at the probed ranks; probes in ascending order of their ranks. Each scale is drawn
    towards the weighted mean of the slot's, as far as its relative error is large beside SPREAD: a
    probe below its noise leaves the shape to the tail. Neighbours by which the increase would grow
    with the rank then share one scale, the mean by their precision (isotonic regression).
    """
    increases = torch.tensor([probe.increase for probe in probes], dtype=torch.float64)
    errors = torch.tensor([probe.standard_error for probe in probes], dtype=torch.float64)
    increases = increases.clamp_min(LEAST_INCREASE)
    own, variances = (increases / tails).log(), (errors / increases) ** 2
    weights = 1 / (variances + SPREAD**2)
    common = (weights * own).sum() / weights.sum()
    scales = common + (own - common) * weights * SPREAD**2
    return _falling(scales, tails, 1 / variances.clamp_min(1e-6))


def _falling(scales: Tensor, tails: Tensor, weights: Tensor) -> Tensor:
    """The scales [k] with those of neighbours pooled until tails * exp(scales) falls with the rank
    (pool adjacent violators).
    """
    blocks: list[tuple[float, float, list[int]]] = []  # scale, weight, members
    for i, (scale, weight) in enumerate(zip(scales.tolist(), weights.tolist(), strict=True)):
        block = (scale, weight, [i])
        while blocks and _rises(blocks[-1], block, tails):
            scale, weight, members = blocks.pop()
            both = weight + block[1]
            mean = (scale * weight + block[0] * block[1]) / both
            block = (mean, both, members + block[2])
        blocks.append(block)
    result = torch.empty_like(scales)
    for scale, _, members in blocks:
        result[members] = scale
    return result


def _rises(
    low: tuple[float, float, list[int]], high: tuple[float, float, list[int]], tails: Tensor
) -> bool:
    """Whether the block of lower ranks ends below where that of higher ranks begins."""
    return bool(tails[low[2][-1]].log() + low[0] < tails[high[2][0]].log() + high[0])


def interpolate(x: Tensor, known_x: Tensor, known_y: Tensor) -> Tensor:
    """Piecewise linear through the known points, constant outside; equivalent to `numpy.interp`.

    x [n], known_x [k] ascending, known_y [k] -> [n].
    """
    if len(known_x) == 1:
        return known_y.expand_as(x)
    right = torch.searchsorted(known_x, x).clamp(1, len(known_x) - 1)
    low, high = known_x[right - 1], known_x[right]
    share = ((x - low) / (high - low)).clamp(0, 1)
    return known_y[right - 1] + share * (known_y[right] - known_y[right - 1])
