"""Loss curves: the predicted increase in loss of a slot at each rank, from a few noisy probes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...layers.spectra import Spectrum
from ...ranks.evidence import LossCurve, Probe

# Smaller divergences are rounding errors of float32 log-probabilities. The bound also keeps the
# logarithm finite if truncating a slot changes nothing.
MIN_INCREASE = 1e-7
# Standard deviation of the logarithm of a slot's scale between probes without noise. A probe with a
# larger relative error has less weight than the mean of the slot.
SPREAD = 1.0
# Losses compound below the lowest probed rank: the curve grows with this power of 1 / rank there.
STEEPNESS = 2.0


def loss_curve(s: Spectrum, probes: Sequence[Probe]) -> LossCurve:
    """Return the predicted increase in loss (nats/token) at each rank of `s.cost.ranks()`.

    [ranks], float64, descending to 0 at full rank. It is the tail of the spectrum times a scale,
    whose logarithm is interpolated over rank between the probes, see `fitted_scales`. The scale is
    constant above the highest probed rank and grows as (lowest probed rank / rank) ** STEEPNESS
    below the lowest. The result is then made monotonic.
    """
    ranks = s.cost.ranks()
    grid = torch.tensor(ranks, dtype=torch.float64)
    if not probes:
        return LossCurve(ranks, torch.zeros_like(grid))
    tails = torch.tensor([s.tail(r) for r in ranks], dtype=torch.float64)
    tails = tails.clamp_min(float(tails.max()) * 1e-12 or 1.0)
    probes = sorted(probes, key=lambda probe: probe.rank)
    probed_ranks = torch.tensor([probe.rank for probe in probes], dtype=torch.float64)
    scales = fitted_scales(tails[torch.searchsorted(grid, probed_ranks)], probes)
    fitted = tails[torch.searchsorted(grid, probed_ranks)] * scales.exp()
    steepness = (probed_ranks[0] / grid).clamp_min(1) ** STEEPNESS
    curve = tails * interpolate(grid, probed_ranks, scales).exp() * steepness
    curve = torch.minimum(curve, _upper_bounds(grid, probed_ranks, fitted))
    curve[-1] = 0
    return LossCurve(ranks, curve.flip(0).cummax(0).values.flip(0))


def _upper_bounds(grid: Tensor, probed_ranks: Tensor, fitted: Tensor) -> Tensor:
    """Return an upper bound of the increase at each rank of the grid, [ranks].

    The bound is the increase fitted at the next lower probed rank: a larger rank does not lose
    more. Infinite below the lowest probed rank.

    It is needed if the tail is 0 at a probed rank and positive at the next lower one: the
    logarithms of their scales differ so much that the curve between them would exceed both.
    """
    # number of probed ranks that are at most the rank of the grid
    below = torch.searchsorted(probed_ranks, grid, right=True)
    return torch.cat((fitted.new_tensor([torch.inf]), fitted))[below]


def fitted_scales(tails: Tensor, probes: Sequence[Probe]) -> Tensor:
    """Return logarithms of the factors that scale the analytic tail to the probes, [k].

    tails [k] > 0 at the probed ranks; probes in ascending order of rank. Each scale is shrunk
    towards the weighted mean of the slot, the more the larger its relative error is compared to
    SPREAD: the shape of a noisy probe comes from the tail. Neighbors whose increase would grow with
    the rank then share a scale, the mean weighted by precision (isotonic regression).
    """
    increases = torch.tensor([probe.increase for probe in probes], dtype=torch.float64)
    errors = torch.tensor([probe.standard_error for probe in probes], dtype=torch.float64)
    increases = increases.clamp_min(MIN_INCREASE)
    measured, variances = (increases / tails).log(), (errors / increases) ** 2
    weights = 1 / (variances + SPREAD**2)
    mean = (weights * measured).sum() / weights.sum()
    scales = mean + (measured - mean) * weights * SPREAD**2
    return _falling(scales, tails, 1 / variances.clamp_min(1e-6))


def _falling(scales: Tensor, tails: Tensor, weights: Tensor) -> Tensor:
    """Return the scales [k], pooled so that tails * exp(scales) descends with the rank.

    Pool adjacent violators.
    """
    blocks: list[tuple[float, float, list[int]]] = []  # scale, weight, members
    for i, (scale, weight) in enumerate(zip(scales.tolist(), weights.tolist(), strict=True)):
        block = (scale, weight, [i])
        while blocks and _rises(blocks[-1], block, tails):
            scale, weight, members = blocks.pop()
            total = weight + block[1]
            mean = (scale * weight + block[0] * block[1]) / total
            block = (mean, total, members + block[2])
        blocks.append(block)
    result = torch.empty_like(scales)
    for scale, _, members in blocks:
        result[members] = scale
    return result


def _rises(
    low: tuple[float, float, list[int]], high: tuple[float, float, list[int]], tails: Tensor
) -> bool:
    """Return whether the increase rises from the end of one block to the start of the next."""
    return bool(tails[low[2][-1]].log() + low[0] < tails[high[2][0]].log() + high[0])


def interpolate(x: Tensor, known_x: Tensor, known_y: Tensor) -> Tensor:
    """Interpolate linearly between known points, constant outside; equivalent to `numpy.interp`.

    x [n], known_x [k] ascending, known_y [k] -> [n].
    """
    if len(known_x) == 1:
        return known_y.expand_as(x)
    right = torch.searchsorted(known_x, x).clamp(1, len(known_x) - 1)
    low, high = known_x[right - 1], known_x[right]
    share = ((x - low) / (high - low)).clamp(0, 1)
    return known_y[right - 1] + share * (known_y[right] - known_y[right - 1])
