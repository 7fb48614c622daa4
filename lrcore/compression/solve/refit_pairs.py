"""Refit of both factors of a low-rank pair.

With the moments of the refit, and W the weights that were factored, W* minimizes

    E w |y - (W* x^ + b)|^2 + ridge |(W* - W) diag(E[w x^ x^^T])^{1/2}|^2.

If B A replaces W*, the first sum grows by |(B A - W*) M^{1/2}|^2, M = E[w x^ x^^T]. So B A is W*
truncated to rank r in the metric of M, with METRIC_RIDGE of the diagonal added: reduced-rank
regression (Izenman 1975). If only B were solved, with the input fixed by A, the row space would
remain that of the dense model's inputs. A full matrix has more numbers to fit, so the ridge grows
with the number of inputs per token. In M so large a ridge would hide the correlations of the
inputs.
"""

from dataclasses import replace

from torch import Tensor

from ...layers.forms import IdentityColumns, memory_of
from ...layers.layer import Layer, LowRank, Projection
from ...layers.linalg import balanced, whitened_svd
from ...layers.statistics import TAPS
from ...methods.latentllm.junction import join
from .regression import Regression, Solution

# The ridge, as a share of the diagonal, is PER_INPUT times inputs / tokens. Of 0.1, 0.3 and 1, the
# best was 0.1 for 64 to 172 inputs with 35,000 tokens and for 128 to 344 inputs with 17,000 tokens,
# and 1 for 576 to 1,536 inputs with 17,000 tokens.
PER_INPUT, METRIC_RIDGE = 16.0, 0.1
# Limit of the smaller side of a matrix; beyond it only the up factor is solved: decomposing the
# Gram matrix would take longer than the rest.
MAX_SIDE = 2048
# Projections that are factored separately. Queries and keys form scores together, which a separate
# fit ignores: with them, stories260K loses up to a tenth more.
INDEPENDENT = ("v", "o", "gate", "up", "down")


def pairs_key() -> tuple[float | int, ...]:
    """Return the constants that the refit of pairs depends on."""
    return PER_INPUT, METRIC_RIDGE, MAX_SIDE


def can_refit_pair(layer: Layer, name: str, dense: Projection) -> bool:
    """Return whether both factors of a projection can be solved.

    They can if it is a pair of plain factors, or of a plain up factor and an identity block in the
    down factor, that no other projection shares, of the size of the dense projection and not too
    large.
    """
    matrices = layer.matrices()
    pair = matrices[name]
    is_independent = name in INDEPENDENT or name not in TAPS  # found by structure
    if not is_independent or not isinstance(pair, LowRank) or pair.sparse is not None:
        return False
    downs = [memory_of(p.down) for p in matrices.values() if isinstance(p, LowRank)]
    if downs.count(memory_of(pair.down)) > 1:
        return False
    down, up = pair.down, pair.up
    has_identity = isinstance(down, IdentityColumns) and len(down.rest) == 1
    if not (isinstance(down, Tensor) or has_identity) or not isinstance(up, Tensor):
        return False
    shape = dense.weight.shape
    return min(shape) <= MAX_SIDE and (len(up), down.shape[1]) == shape


def refit_target(fit: Regression, weight: Tensor, centered: bool) -> Solution:
    """Return W* and M for factors of a dense weight [out, in], both for inputs times `scale`.

    centered: whether means are subtracted, which a bias requires.
    """
    ridge = PER_INPUT * weight.shape[1] / fit.count
    solution = fit.solution(weight, ridge, centered)
    solution.second.diagonal().mul_((1 + METRIC_RIDGE) / (1 + ridge))
    return solution


def refit_pair(pair: LowRank, fit: Regression, dense: Projection) -> LowRank:
    """Return a pair solved again on the sums, with the same form and rank.

    pair: as accepted by `can_refit_pair`. dense: the projection that was factored.
    """
    assert isinstance(pair.up, Tensor)  # can_refit_pair requires it
    solution = refit_target(fit, dense.weight, pair.bias is not None)
    up, values, down = whitened_svd(solution.weight / solution.scale, solution.second)
    up, down = up[:, : pair.rank], down[: pair.rank] * solution.scale
    dtype = pair.up.dtype
    bias = fit.bias(up @ down, pair, dtype)
    if isinstance(pair.down, Tensor):
        up, down = balanced(up, down)
        return replace(pair, up=up.to(dtype), down=down.to(dtype), bias=bias)
    block, form = join(up[None], down[None], values[None, : pair.rank], "right_identity")
    assert isinstance(block, Tensor)  # of one head
    assert isinstance(form, IdentityColumns)
    form = replace(form, rest=form.rest.to(dtype))
    return replace(pair, up=block.to(dtype), down=form, bias=bias)
