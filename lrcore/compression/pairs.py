"""Both factors of a low-rank pair solved again in the refit.

With the moments of the refit, and W the weights that were factored, W* minimises

    E w |y - (W* x^ + b)|^2 + ridge |(W* - W) diag(E[w x^ x^^T])^{1/2}|^2,

and the first sum grows by |(B A - W*) M^{1/2}|^2 where B A stands for it, M = E[w x^ x^^T]. So B A
is W* cut to rank r in the metric of M, with CUT of its diagonal added: reduced-rank regression
(Izenman 1975). Solving B alone, whose input A fixes, leaves the row space that fits the dense
model's inputs. A whole matrix has more numbers to fit, so the ridge grows with the inputs that
there are for each token. In M so large a ridge would hide how the inputs go together.
"""

from dataclasses import replace

from torch import Tensor

from ..forms import IdentityColumns
from ..layer import Layer, LowRank, Projection
from ..linalg import balanced, whitened_svd
from ..methods.latentllm.junction import join
from .regression import Regression

# The ridge, as a share of the diagonal, is so many times the inputs over the tokens. Of 0.1, 0.3
# and 1 the best was 0.1 where 64 to 172 inputs had 35,000 tokens and 128 to 344 had 17,000, and 1
# where 576 to 1,536 had 17,000.
PER_INPUT, CUT = 16.0, 0.1
# The smaller side of a matrix, beyond which its up factor alone is solved: the decomposition of its
# Gram matrix would take longer than the rest.
MOST = 2048
# Those that are factored by themselves. Queries and keys make scores together, which the fit of one
# alone does not see: with them stories260K loses up to a tenth more.
ALONE = ("v", "o", "gate", "up", "down")


def pairs_key() -> tuple[float | int, ...]:
    """What solving pairs again depends on besides their sums."""
    return PER_INPUT, CUT, MOST


def can_resolve(layer: Layer, name: str, dense: Projection) -> bool:
    """Whether a projection of a compressed layer is a pair that stands alone: plain factors, or an
    identity block in the down factor, which no other projection reads; of the size of the dense
    one, and not too large.
    """
    matrices = layer.matrices()
    pair = matrices[name]
    if name not in ALONE or not isinstance(pair, LowRank) or pair.sparse is not None:
        return False
    if any(getattr(one, "down", None) is pair.down for one in matrices.values() if one is not pair):
        return False
    down, up = pair.down, pair.up
    plain = isinstance(down, Tensor) or (isinstance(down, IdentityColumns) and len(down.rest) == 1)
    if not plain or not isinstance(up, Tensor):
        return False
    shape = dense.weight.shape
    return min(shape) <= MOST and (len(up), down.shape[1]) == shape


def resolved(pair: LowRank, fit: Regression, dense: Projection) -> LowRank:
    """A pair that `can_resolve` takes, solved again on the sums, in its form and its rank; dense:
    what was factored.
    """
    assert isinstance(pair.up, Tensor)  # as can_resolve says
    ridge = PER_INPUT * pair.down.shape[1] / fit.count
    found = fit.solution(dense.weight, ridge, pair.bias is not None)
    metric = found.second
    metric.diagonal().mul_((1 + CUT) / (1 + ridge))
    up, values, down = whitened_svd(found.weight / found.scale, metric)
    up, down = up[:, : pair.rank], down[: pair.rank] * found.scale
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
