"""Half-quadratic quantisation (HQQ, Badri and Shaji 2023): the zero point of a group, without data.

A quantised weight q stands for `low + step * q`. The step is that of min-max quantisation, (max -
min) / (2^bits - 1); only `low`, where the grid begins, is optimised. With q the nearest grid point
to w and r = w - (low + step * q), the mean of |r|^P with P < 1 is minimised: it tolerates a few
large errors so that the many small ones vanish. With r split into e and a rest whose square has a
growing weight beta, both halves have a closed form:

    e = sign(r) relu(|r| - |r|^(P - 1) / beta), low = mean of (w - e - step * q) over the group.

As in the published code, the iterate with the least mean |r| is the result; here per group instead
of per matrix, so that no group is worse than with min-max quantisation.
"""

import torch
from torch import Tensor

# As in the published code; for small weights e is zero, and `low` corrects the mean error.
P, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20
# Relative improvement that counts: where as many weights lie above their grid points as below,
# shifting the grid changes only the last bits.
TIE = 1e-9
AT_ONCE = 2**15  # groups; a large model's whole matrix in float64 would take too much memory


def half_quadratic(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """low [n] and step [n] of the grids of groups [n, size], 2^bits points each.

    Float64 inside; the results have the groups' dtype.
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
