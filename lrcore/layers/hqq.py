"""Half-quadratic quantization (HQQ, Badri and Shaji 2023): zero points of groups, without data.

A quantized weight q stands for `low + step * q`. The step is that of min-max quantization, (max -
min) / (2^bits - 1); only `low`, the start of the grid, is optimized. With q the nearest grid point
to w and r = w - (low + step * q), the mean of |r|^P with P < 1 is minimized: it tolerates a few
large errors in exchange for many small errors that vanish. r is split into e and a remainder, whose
square has an increasing weight beta. Both subproblems have a closed form:

    e = sign(r) relu(|r| - |r|^(P - 1) / beta), low = mean of (w - e - step * q) over the group.

For weights as small as those of language models e is zero, so the steps correct the mean error of
a group. The published code stops all groups of a matrix at the same step. Here each group keeps the
`low` with the smallest squared error, which is at most that of min-max quantization.
"""

import torch
from torch import Tensor

from .grids import nearest_codes

P, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20  # of the published code
AT_ONCE = 2**15  # groups; a complete matrix of a large model would need too much memory in float64


def half_quadratic(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return low [n] and step [n] of the grids of groups [n, size], with 2^bits points each.

    Computed in float64; the results have the dtype of the groups.
    """
    parts = [_solve(part.double(), 2**bits - 1) for part in groups.split(AT_ONCE)]
    low, step = (torch.cat(tensors).to(groups.dtype) for tensors in zip(*parts, strict=True))
    return low, step


def _solve(w: Tensor, largest_code: int) -> tuple[Tensor, Tensor]:
    low = w.amin(1, keepdim=True)
    step = (w.amax(1, keepdim=True) - low) / largest_code
    best, error = low, torch.full_like(low, torch.inf)
    for iteration in range(STEPS + 1):
        on_grid = step * nearest_codes(w, low, step, largest_code)
        residual = w - low - on_grid
        magnitude = residual.abs()
        squared = residual.square().sum(1, keepdim=True)
        better = squared < error
        best, error = torch.where(better, low, best), torch.where(better, squared, error)
        outlier = (
            residual.sign()
            * (
                magnitude - magnitude.clamp_min(1e-12) ** (P - 1) / (BETA * GROWTH**iteration)
            ).relu()
        )
        low = (w - outlier - on_grid).mean(1, keepdim=True)
    return best.squeeze(1), step.squeeze(1)
