"""Training of quantized matrices with the straight-through estimator (LatentLLM appendix I.1, eq.
239-242).

The forward pass uses the rounded numbers, `B - B.detach() + Q[B.detach()]`, and the gradient is
applied to the underlying numbers as if they were not rounded. Q is the grid between the extremes of
each chunk, which follows the numbers; matrices of `quantize` keep the grids that it selected.
After training the rounded numbers are stored, with the same number of bits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....layers.forms import FORMS, Form, Matrix, Quantized, extremes, quantize, tensors_of
from ....layers.modules.projections import StoredLinear


class StraightThrough(StoredLinear):
    """A quantized matrix with trainable numbers.

    numbers: of the matrix, or of the part of the form that has numbers, in full precision; they
    start as the dequantized ones. fixed_grids: whether the grids are those of the original matrix.
    """

    numbers: nn.Parameter

    def __init__(self, stored: StoredLinear, fixed_grids: bool = False) -> None:
        nn.Module.__init__(self)
        form = stored.form
        assert isinstance(form, Quantized)
        self.kind, self.settings, self.bias = stored.kind, stored.settings, stored.bias
        self._quantized, self._fixed_grids = (
            form,
            fixed_grids,
        )  # with the codes from before training
        self.numbers = nn.Parameter(_numbers(form.matrix).detach().clone(), requires_grad=False)

    @property
    def form(self) -> Form:
        """The current numbers, quantized."""
        original = self._quantized
        fixed = (original.low, original.step)
        grid = (lambda _groups, _bits: fixed) if self._fixed_grids else extremes
        matrix = self._with_numbers(self.numbers.detach())
        rounded = quantize(matrix, original.bits, original.chunk, grid)
        assert isinstance(rounded, Quantized)
        return rounded

    def _with_numbers(self, numbers: Tensor) -> Matrix:
        """Return the matrix, or form, with these numbers."""
        original = self._quantized
        if original.inner == "dense":
            return numbers
        orders = (original.order,) if original.order.numel() else ()
        lead = (original.lead,) if original.inner == "passed_rows" else ()
        return FORMS[original.inner](numbers, *orders, *lead)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rounded = self.form
        assert isinstance(rounded, Quantized)
        through = self.numbers + (_numbers(rounded.matrix) - self.numbers).detach()
        matrix = self._with_numbers(through)
        if isinstance(matrix, Tensor):
            return torch.nn.functional.linear(x, matrix, self.bias)
        y = matrix.apply(x)
        return y if self.bias is None else y + self.bias


def use_straight_through(network: nn.Module, fixed_grids: bool = False) -> None:
    """Replace each quantized matrix of a network by a `StraightThrough`."""
    _exchange(
        network,
        lambda m: type(m) is StoredLinear and m.kind == "quantised",
        partial(StraightThrough, fixed_grids=fixed_grids),
    )


def restore_quantized(network: nn.Module) -> None:
    """Replace each `StraightThrough` of a network by the rounded matrix."""
    _exchange(
        network,
        lambda m: isinstance(m, StraightThrough),
        lambda m: StoredLinear(m.form, m.bias),
    )


def _numbers(matrix: Matrix) -> Tensor:
    """Return the numbers of a matrix, or of the part of the form that has numbers."""
    return matrix if isinstance(matrix, Tensor) else next(iter(tensors_of(matrix).values()))


def _exchange(
    network: nn.Module, matches: Callable[[Any], bool], make: Callable[[Any], nn.Module]
) -> None:
    """Replace modules; a module that is used several times gets a single replacement."""
    replacements: dict[int, nn.Module] = {}
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if matches(child):
                if id(child) not in replacements:
                    replacements[id(child)] = make(child)
                setattr(parent, name, replacements[id(child)])
