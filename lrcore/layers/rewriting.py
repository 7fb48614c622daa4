"""Projections with matrices in another form, such as quantized or sparse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from .forms import Matrix, dense, memory_of
from .layer import Linear, LowRank, Projection, Stored
from .obs import second_factor

# Returns a matrix [out, in] in another form, from the second moment [in, in] of the input, which is
# None if no text is read.
Rewrite = Callable[[Matrix, Tensor | None], Matrix]


def rewrite_projection(p: Projection, rewrite: Rewrite, moment: Tensor | None) -> Projection:
    """Return a projection with rewritten matrices.

    moment [in, in]: second moment of the input, or None. The second of two factors is first solved
    again on the outputs of the rewritten first factor, for white inputs without a moment; its input
    is these outputs. A second factor in a stored form is not solved again.
    """
    if isinstance(p, LowRank):
        down, up = rewrite(p.down, moment), p.up
        after = dense(down)
        if isinstance(up, Tensor):
            up = second_factor(up, dense(p.down), after, moment)
        if moment is not None:
            after = after.to(moment.dtype)
            moment = after @ moment @ after.mT
        return replace(p, down=down, up=rewrite(up, moment))
    form = rewrite(p.form if isinstance(p, Stored) else p.weight, moment)
    return Linear(form, p.bias) if isinstance(form, Tensor) else Stored(form, p.bias)


def once_each(rewrite: Rewrite) -> Rewrite:
    """Return a function that rewrites a matrix only once, so that shared factors stay shared."""
    seen: dict[Any, tuple[Matrix, Matrix]] = {}  # holds the matrices, so addresses stay unique

    def rewrite_once(matrix: Matrix, moment: Tensor | None) -> Matrix:
        key = memory_of(matrix)
        if key not in seen:
            seen[key] = matrix, rewrite(matrix, moment)
        return seen[key][1]

    return rewrite_once
