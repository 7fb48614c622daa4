"""The forms in which a factor is stored where a plain tensor would waste memory.

Each knows its dense matrix and how to apply itself.

A matrix M [out, in] acts on row activations, `apply(x) = x M^T`. What is known without being stored
(identity blocks, zeros) is never stored: `parameters` counts the numbers kept. Orders of columns
and rows are int32 and not counted, as kept rotary pairs are not.
Codes count as the numbers they stand for, whatever their width; an index of a sparse entry counts
like the entry.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IdentityColumns:
    """Per head `[I, R]` up to the order of the columns (LatentLLM eq. 9), heads stacked along the
    rows and reading the same input.

    rest R [heads, s, n - s]; order [heads, n]: the columns of the identity, then those of R.
    `s (n - s)` numbers per head instead of `s n`. Where s > n a head is `[I; 0]` with n columns,
    rest is [heads, s, 0] and nothing is stored.
    """

    rest: Tensor
    order: Tensor
    WEIGHTS: ClassVar = ("rest",)
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
    """Per head `[I; R]` up to the order of the rows, heads block-diagonal: head h reads its own
    slice of the input.

    rest R [heads, s - r, r]; place [heads, s]: for every row, where it stands in `[I; R]`.
    `r (s - r)` numbers per head instead of `s r`.
    """

    rest: Tensor
    place: Tensor
    WEIGHTS: ClassVar = ("rest",)
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
    """blocks [heads, s, r] along the diagonal: head h reads its own slice of the input.

    No zeros are stored.
    """

    blocks: Tensor
    WEIGHTS: ClassVar = ("blocks",)
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


@dataclass(frozen=True, eq=False)
class Sparse:
    """Some entries of a matrix of the given shape: values [k], index [k] int32 into the rows
    laid end to end. The rest is zero.
    """

    values: Tensor
    index: Tensor
    shape: tuple[int, int]
    WEIGHTS: ClassVar = ("values",)
    DTYPES: ClassVar = {"index": torch.int32}

    @property
    def parameters(self) -> int:
        return 2 * self.values.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the matrix exists for the length of the product."""
        flat = self.values.new_zeros(self.shape[0] * self.shape[1]).index_copy(
            0, self.index.long(), self.values
        )
        return torch.nn.functional.linear(x, flat.view(*self.shape))


@dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix, plain or of another form, whose numbers are codes of `bits` bits (LatentLLM eq.
    241-242): `low + step * code` per chunk.

    codes uint8, two to a byte where bits <= 4; low, step [chunks], chunks of `chunk` numbers in the
    order in which they lie in `whole`. inner: the kind of the form, "dense" for a plain matrix;
    whole: the shape of its numbers; order: its order, empty where it has none.
    """

    codes: Tensor
    low: Tensor
    step: Tensor
    order: Tensor
    inner: str
    whole: tuple[int, ...]
    bits: int
    chunk: int
    WEIGHTS: ClassVar = ()
    DTYPES: ClassVar = {"codes": torch.uint8, "order": torch.int32}

    @property
    def matrix(self) -> "Matrix":
        """The matrix that the codes stand for."""
        count = math.prod(self.whole)
        codes = (
            self.codes
            if self.bits > 4
            else torch.stack((self.codes & 15, self.codes >> 4), 1).flatten()[:count]
        )
        low, step = (t.repeat_interleave(self.chunk)[:count] for t in (self.low, self.step))
        numbers = (low + step * codes.to(self.low.dtype)).view(*self.whole)
        if self.inner == "dense":
            return numbers
        return (
            FORMS[self.inner](numbers, self.order)
            if self.order.numel()
            else FORMS[self.inner](numbers)
        )

    @property
    def shape(self) -> tuple[int, int]:
        if self.inner == "identity_columns":
            return self.whole[0] * self.whole[1], self.order.shape[1]
        if self.inner == "identity_rows":
            return self.order.numel(), self.whole[0] * self.whole[2]
        if self.inner == "block_diagonal":
            return self.whole[0] * self.whole[1], self.whole[0] * self.whole[2]
        return self.whole

    @property
    def parameters(self) -> int:
        return math.prod(self.whole)

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the numbers exist for the length of the product."""
        matrix = self.matrix
        return (
            torch.nn.functional.linear(x, matrix) if isinstance(matrix, Tensor) else matrix.apply(x)
        )


Form = IdentityColumns | IdentityRows | BlockDiagonal | Sparse | Quantised
Matrix = Tensor | Form
FORMS: dict[str, type[Form]] = {
    "identity_columns": IdentityColumns,
    "identity_rows": IdentityRows,
    "block_diagonal": BlockDiagonal,
    "sparse": Sparse,
    "quantised": Quantised,
}


def extremes(chunks: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """low and step [n] of grids between the least and the largest of each chunk [n, size]
    (LatentLLM eq. 242).
    """
    low = chunks.amin(1)
    return low, (chunks.amax(1) - low) / (2**bits - 1)


def quantise(
    matrix: Matrix,
    bits: int,
    chunk: int,
    grid: Callable[[Tensor, int], tuple[Tensor, Tensor]] = extremes,
) -> Matrix:
    """The numbers of a matrix as codes of 1 to 8 bits, each the nearest place of its chunk's even
    grid.

    A form whose numbers are all left out, or that is made of codes or of sparse entries already,
    stays as it is.
    """
    if isinstance(matrix, Quantised | Sparse):
        return matrix
    dense_kind = isinstance(matrix, Tensor)
    parts = {"": matrix} if dense_kind else tensors_of(matrix)
    numbers, *orders = parts.values()
    if not numbers.numel():
        return matrix
    flat = numbers.flatten()
    padded = torch.cat((flat, flat[-1:].expand(-len(flat) % chunk))).view(-1, chunk)
    low, step = grid(padded, bits)
    codes = (
        ((padded - low[:, None]) / torch.where(step > 0, step, 1)[:, None])
        .round()
        .clamp(0, 2**bits - 1)
    )
    codes = codes.to(torch.uint8).flatten()[: len(flat)]
    if bits <= 4:
        pairs = torch.nn.functional.pad(codes, (0, len(codes) % 2)).view(-1, 2)
        codes = pairs[:, 0] | pairs[:, 1] << 4
    order = orders[0] if orders else torch.empty(0, dtype=torch.int32, device=numbers.device)
    return Quantised(
        codes,
        low,
        step,
        order,
        "dense" if dense_kind else kind_of(matrix),
        tuple(numbers.shape),
        bits,
        chunk,
    )


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
    return {name: value for name, value in _values(form).items() if isinstance(value, Tensor)}


def settings_of(form: Form) -> dict[str, Any]:
    """What a form holds besides tensors, by field name: words and whole numbers."""
    return {name: value for name, value in _values(form).items() if not isinstance(value, Tensor)}


def _values(form: Form) -> dict[str, Any]:
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
    moved = {
        name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors_of(matrix).items()
    }
    return type(matrix)(**moved, **settings_of(matrix))
