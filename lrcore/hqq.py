"""Half-quadratic quantisation (HQQ, Badri and Shaji 2023): where the grid of a group of numbers
lies, found without any data.

Codes stand for `low + step * code`. The step is that of the extremes of a group, (max - min) /
(2^bits - 1); what is free is where the grid begins. With code the nearest place to w and r = w -
(low + step * code), the mean of |r|^P with P < 1 is made small: a few large errors are let stand so
that the many small ones vanish. Splitting r into e and a rest whose square has the weight beta,
which grows, each of the two halves has a closed form:

    e = sign(r) relu(|r| - |r|^(P - 1) / beta), low = mean of (w - e - step * code) over the group.

As in the published code, the result is the one with the least mean |r| among those met; here group
by group and not over a whole matrix, so that no group is worse off than with a grid between its
extremes.
"""

import torch
from torch import Tensor

P, BETA, GROWTH, STEPS = (
    0.7,
    10.0,
    1.01,
    20,
)  # those of the published code; for small weights e is zero, and low makes up for the mean
# share: while as many numbers lie above their places as below, moving the grid changes nothing but
# the last bits
TIE = 1e-9
AT_ONCE = (
    2**15
)  # groups; a matrix of a large model in float64 would take eight times its room several times over


def half_quadratic(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """low [n] and step [n] of the grids of groups [n, size], each of 2^bits places; float64
    inside, the groups' dtype out.
    """
    parts = [_solve(part.double(), 2**bits - 1) for part in groups.split(AT_ONCE)]
    low, step = (torch.cat(each).to(groups.dtype) for each in zip(*parts, strict=True))
    return low, step


def _solve(w: Tensor, top: int) -> tuple[Tensor, Tensor]:
    low = w.amin(1, keepdim=True)
    step = (w.amax(1, keepdim=True) - low) / top
    unit = torch.where(step > 0, step, 1)
    best, error = low, torch.full_like(low, torch.inf)
    for number in range(STEPS + 1):
        on_grid = step * ((w - low) / unit).round().clamp(0, top)
        residual = w - low - on_grid
        size = residual.abs()
        now = size.mean(1, keepdim=True)
        better = now < error * (1 - TIE)
        best, error = torch.where(better, low, best), torch.where(better, now, error)
        outlier = (
            residual.sign()
            * (size - size.clamp_min(1e-12) ** (P - 1) / (BETA * GROWTH**number)).relu()
        )
        low = (w - outlier - on_grid).mean(1, keepdim=True)
    return best.squeeze(1), step.squeeze(1)
