"""The forms in which a factor is stored where a plain tensor would waste memory. Each knows its dense matrix and how to apply itself.

A matrix M [out, in] acts on row activations, `apply(x) = x M^T`. What is known without being stored (identity blocks, zeros) is never
stored: `parameters` counts the numbers kept. Orders of columns and rows are int32 and not counted, as kept rotary pairs are not.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IdentityColumns:
    """Per head `[I, R]` up to the order of the columns (LatentLLM eq. 9), heads stacked along the rows and reading the same input.

    rest R [heads, s, n - s]; order [heads, n]: the columns of the identity, then those of R. `s (n - s)` numbers per head instead of `s n`.
    Where s > n a head is `[I; 0]` with n columns, rest is [heads, s, 0] and nothing is stored.
    """

    rest: Tensor
    order: Tensor
    DTYPES: ClassVar = {"order": torch.int32}

    @property
    def shape(self) -> tuple[int, int]:
        return self.rest.shape[0] * self.rest.shape[1], self.order.shape[1]

    @property
    def parameters(self) -> int:
        return self.rest.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., heads * s]."""
        count, size, _ = self.rest.shape
        picked = x[..., self.order]  # [..., heads, n]
        out = picked[..., :size]
        if size > out.shape[-1]:
            out = torch.nn.functional.pad(out, (0, size - out.shape[-1]))
        elif self.rest.shape[2]:
            out = out + _by_head(picked[..., size:], self.rest)
        return out.reshape(*x.shape[:-1], count * size)


@dataclass(frozen=True, eq=False)
class IdentityRows:
    """Per head `[I; R]` up to the order of the rows, heads block-diagonal: head h reads its own slice of the input.

    rest R [heads, s - r, r]; place [heads, s]: for every row, where it stands in `[I; R]`. `r (s - r)` numbers per head instead of `s r`.
    """

    rest: Tensor
    place: Tensor
    DTYPES: ClassVar = {"place": torch.int32}

    @property
    def shape(self) -> tuple[int, int]:
        return self.place.numel(), self.rest.shape[0] * self.rest.shape[2]

    @property
    def parameters(self) -> int:
        return self.rest.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., heads * r] -> [..., heads * s]."""
        count, _, rank = self.rest.shape
        own = x.unflatten(-1, (count, rank))
        out = torch.cat((own, _by_head(own, self.rest)), -1)  # [..., heads, s]
        return out.gather(-1, self.place.long().expand(*out.shape)).flatten(-2)


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """blocks [heads, s, r] along the diagonal: head h reads its own slice of the input. No zeros are stored."""

    blocks: Tensor
    DTYPES: ClassVar = {}

    @property
    def shape(self) -> tuple[int, int]:
        count, size, rank = self.blocks.shape
        return count * size, count * rank

    @property
    def parameters(self) -> int:
        return self.blocks.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., heads * r] -> [..., heads * s]."""
        return _by_head(x.unflatten(-1, (self.blocks.shape[0], -1)), self.blocks).flatten(-2)


Form = IdentityColumns | IdentityRows | BlockDiagonal
Matrix = Tensor | Form
FORMS: dict[str, type[Form]] = {"identity_columns": IdentityColumns, "identity_rows": IdentityRows, "block_diagonal": BlockDiagonal}


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., heads, n], weight [heads, m, n] -> [..., heads, m]."""
    if len(weight) == 1:
        return torch.nn.functional.linear(x, weight[0])
    return torch.einsum("...hn,hmn->...hm", x, weight)


def kind_of(form: Form) -> str:
    """The name of a form in `FORMS`."""
    return next(name for name, kind in FORMS.items() if isinstance(form, kind))


def tensors_of(form: Form) -> dict[str, Tensor]:
    """The tensors of a form by field name."""
    return {field.name: getattr(form, field.name) for field in fields(form)}


def dense(matrix: Matrix) -> Tensor:
    """The matrix itself, [out, in]."""
    if isinstance(matrix, Tensor):
        return matrix
    first = next(t for t in tensors_of(matrix).values() if t.is_floating_point())
    return matrix.apply(torch.eye(matrix.shape[1], dtype=first.dtype, device=first.device)).mT


def count(matrix: Matrix) -> int:
    """The numbers that the matrix keeps."""
    return matrix.numel() if isinstance(matrix, Tensor) else matrix.parameters


def cast(matrix: Matrix, dtype: torch.dtype) -> Matrix:
    """The same matrix with its numbers in another dtype; orders stay whole numbers."""
    if isinstance(matrix, Tensor):
        return matrix.to(dtype)
    return type(matrix)(**{name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors_of(matrix).items()})
