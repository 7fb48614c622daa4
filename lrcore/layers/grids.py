"""Uniform grids of groups of numbers, with the least squared error of rounding."""

import torch
from torch import Tensor

# Each group starts from its least and largest number, and from shorter ranges around their middle.
RANGES, STEPS = (1.0, 0.9, 0.8, 0.7, 0.6), 5
MIN_WEIGHT = 1e-12  # of a number, as a share of the mean weight
AT_ONCE = 2**15  # groups; a complete matrix of a large model would need too much memory in float64


def least_squares_grids(
    groups: Tensor, bits: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return low [n] and step [n] of the grids of groups [n, size], with 2^bits points each.

    The points are low + step * code, code in 0 ... 2^bits - 1. weights [n, size], >= 0: of the
    squared errors; None for equal ones. From each of the RANGES, two steps alternate: each number
    takes its nearest code, and low and step are the weighted regression of the numbers on the
    codes. Both lower the error, and the best result is returned: no group is worse than between its
    extremes.

    Computed in float64; the results have the dtype of the groups.
    """
    if weights is None:
        weights = torch.ones_like(groups)
    weights = weights + (MIN_WEIGHT * weights.mean() or 1.0)  # equal ones if all are zero
    parts = zip(groups.split(AT_ONCE), weights.split(AT_ONCE), strict=True)
    grids = [_best_grid(part.double(), share.double(), 2**bits - 1) for part, share in parts]
    low, step = (torch.cat(tensors).to(groups.dtype) for tensors in zip(*grids, strict=True))
    return low, step


def _best_grid(w: Tensor, weights: Tensor, largest_code: int) -> tuple[Tensor, Tensor]:
    weights = weights / weights.sum(1, keepdim=True)
    lowest, highest = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    best_low, best_step, error = lowest, lowest, torch.full_like(lowest, torch.inf)
    for share in RANGES:
        step = share * (highest - lowest) / largest_code
        low = (lowest + highest - step * largest_code) / 2
        for iteration in range(STEPS + 1):
            codes = nearest_codes(w, low, step, largest_code)
            squared = (weights * (w - low - step * codes).square()).sum(1, keepdim=True)
            better = squared < error
            best_low = torch.where(better, low, best_low)
            best_step = torch.where(better, step, best_step)
            error = torch.where(better, squared, error)
            if iteration < STEPS:
                low, step = _regression(w, codes, weights, step)
    return best_low.squeeze(1), best_step.squeeze(1)


def nearest_codes(w: Tensor, low: Tensor, step: Tensor, largest_code: int) -> Tensor:
    """Return the codes, in 0 ... largest_code, of the nearest points of grids low + step * code.

    w [...]; low and step are broadcast to it. A step of 0 has the grid of step 1.
    """
    return ((w - low) / torch.where(step > 0, step, 1)).round().clamp(0, largest_code)


def _regression(w: Tensor, codes: Tensor, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return low and step [n, 1] with the least error for the codes [n, size].

    step [n, 1] stays if all codes of a group are equal. The weights of a group sum to 1.
    """
    mean_code, mean = ((weights * x).sum(1, keepdim=True) for x in (codes, w))
    centered = codes - mean_code
    variance = (weights * centered.square()).sum(1, keepdim=True)
    covariance = (weights * centered * (w - mean)).sum(1, keepdim=True)
    step = torch.where(variance > 0, covariance / torch.where(variance > 0, variance, 1), step)
    return mean - step * mean_code, step
