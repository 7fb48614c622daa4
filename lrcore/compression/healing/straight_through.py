"""Training of quantised matrices by the straight-through estimator (LatentLLM appendix I.1,
eq. 239-242).

A pass computes with the rounded numbers, `B - B.detach() + Q[B.detach()]`, and the gradient goes to
the numbers behind them as if nothing were rounded. Q is the grid between the extremes of every
chunk, which follows the numbers as they move; of what `quantise` made the grids that it chose stay.
At the end the rounded ones are stored, in the bits that there were.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...forms import FORMS, Form, Matrix, Quantised, extremes, quantise, tensors_of
from ...modules.projections import StoredLinear


class StraightThrough(StoredLinear):
    """A matrix in few bits whose numbers are parameters.

    numbers: those of the quantised matrix, or of the part of its form that has numbers, in full
    precision. It begins as the matrix that it stands for. own_grids: they stay as they are.
    """

    numbers: nn.Parameter

    def __init__(self, stored: StoredLinear, own_grids: bool = False) -> None:
        nn.Module.__init__(self)
        form = stored.form
        assert isinstance(form, Quantised)
        self.kind, self.settings, self.bias = stored.kind, stored.settings, stored.bias
        self._quantised, self._own_grids = form, own_grids  # with the codes from before training
        self.numbers = nn.Parameter(_numbers(form.matrix).detach().clone(), requires_grad=False)

    @property
    def form(self) -> Form:
        """The numbers as they are now, quantised."""
        was = self._quantised
        grid = (lambda _groups, _bits: (was.low, was.step)) if self._own_grids else extremes
        rounded = quantise(self._holding(self.numbers.detach()), was.bits, was.chunk, grid)
        assert isinstance(rounded, Quantised)
        return rounded

    def _holding(self, numbers: Tensor) -> Matrix:
        """The matrix, or form, with these numbers."""
        was = self._quantised
        if was.inner == "dense":
            return numbers
        orders = (was.order,) if was.order.numel() else ()
        lead = (was.lead,) if was.inner == "passed_rows" else ()
        return FORMS[was.inner](numbers, *orders, *lead)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rounded = self.form
        assert isinstance(rounded, Quantised)
        through = self.numbers + (_numbers(rounded.matrix) - self.numbers).detach()
        held = self._holding(through)
        if isinstance(held, Tensor):
            return torch.nn.functional.linear(x, held, self.bias)
        y = held.apply(x)
        return y if self.bias is None else y + self.bias


def let_through(network: nn.Module, own_grids: bool = False) -> None:
    """Put a `StraightThrough` in the place of every quantised matrix of a network."""
    _exchange(
        network,
        lambda m: type(m) is StoredLinear and m.kind == "quantised",
        partial(StraightThrough, own_grids=own_grids),
    )


def round_again(network: nn.Module) -> None:
    """Put the rounded matrices in the places of all `StraightThrough`."""
    _exchange(
        network,
        lambda m: isinstance(m, StraightThrough),
        lambda m: StoredLinear(m.form, m.bias),
    )


def _numbers(matrix: Matrix) -> Tensor:
    """The numbers of a matrix, or of the part of its form that has some."""
    return matrix if isinstance(matrix, Tensor) else next(iter(tensors_of(matrix).values()))


def _exchange(
    network: nn.Module, wanted: Callable[[Any], bool], made: Callable[[Any], nn.Module]
) -> None:
    """Exchange modules; one that stands in several places is exchanged for one."""
    done: dict[int, nn.Module] = {}
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if wanted(child):
                if id(child) not in done:
                    done[id(child)] = made(child)
                setattr(parent, name, done[id(child)])
