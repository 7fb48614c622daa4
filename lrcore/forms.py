"""Compact forms of a matrix: with an identity block, block-diagonal, sparse, masked, quantised.

A matrix M [out, in] acts on row activations, `apply(x) = x M^T`. Identity blocks and zeros are not
stored, and `parameters` counts the stored numbers. Permutations are int32 and not counted, as kept
rotary pairs are not. A quantised weight counts as one number whatever its bits; the index of a
sparse entry counts as one more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IdentityColumns:
    """Per head `[I, R]` with permuted columns (LatentLLM eq. 9), heads stacked along the rows.

    All heads read the same input. rest R [heads, s, n - s]; order [heads, n]: the columns of the
    identity, then those of R. `s (n - s)` numbers per head instead of `s n`. Where s > n a head is
    `[I; 0]` with n columns, rest is [heads, s, 0] and nothing is stored.
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
        count, size, behind = self.rest.shape
        if count == 1 and behind:
            # picked apart: slices of what is picked at once would be copied for the product
            lead, other = (_columns(x, part) for part in self.order[0].split((size, behind)))
            return torch.addmm(lead, other, self.rest[0].mT).view(*x.shape[:-1], size)
        picked = _columns(x, self.order.flatten()).view(-1, *self.order.shape)  # [t, heads, n]
        out = picked[..., :size]
        if size > out.shape[-1]:
            out = torch.nn.functional.pad(out, (0, size - out.shape[-1]))
        elif behind:
            out = out + _by_head(picked[..., size:], self.rest)
        return out.reshape(*x.shape[:-1], count * size)


@dataclass(frozen=True, eq=False)
class IdentityRows:
    """Per head `[I; R]` with permuted rows, heads block-diagonal: head h reads its own input slice.

    rest R [heads, s - r, r]; place [heads, s]: the index of every row in `[I; R]`. `r (s - r)`
    numbers per head instead of `s r`.
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
        out = torch.cat((own, _by_head(own, self.rest)), -1).flatten(-2)  # [..., heads * s]
        place = self.place
        if count > 1:
            first = torch.arange(0, out.shape[-1], place.shape[1], device=place.device)
            place = place + first[:, None]
        return _columns(out, place.flatten()).view(out.shape)


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """blocks [heads, s, r] along the diagonal: head h reads its own slice of the input."""

    blocks: Tensor
    WEIGHTS: ClassVar = ("blocks",)
    DTYPES: ClassVar[dict[str, torch.dtype]] = {}

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
class PassedRows:
    """Rows of `[I, 0; 0, R]`: some outputs are one of the first `lead` inputs, the others a product
    with the inputs behind them.

    rest R [s, r]; place [out]: the index of every row in that matrix. A place below lead need not
    occur. `s r` numbers instead of `out (lead + r)`.
    """

    rest: Tensor
    place: Tensor
    lead: int
    WEIGHTS: ClassVar = ("rest",)
    DTYPES: ClassVar = {"place": torch.int32}

    @property
    def shape(self) -> tuple[int, int]:
        return self.place.numel(), self.lead + self.rest.shape[1]

    @property
    def parameters(self) -> int:
        return self.rest.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., lead + r] -> [..., out]."""
        product = torch.nn.functional.linear(x[..., self.lead :], self.rest)
        out = _columns(torch.cat((x[..., : self.lead], product), -1), self.place)
        return out.view(*x.shape[:-1], len(self.place))


@dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse matrix of the given shape: values [k], index [k] int32 into the flattened matrix."""

    values: Tensor
    index: Tensor
    shape: tuple[int, int]
    WEIGHTS: ClassVar = ("values",)
    DTYPES: ClassVar = {"index": torch.int32}

    @property
    def parameters(self) -> int:
        return 2 * self.values.numel()

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the dense matrix exists during the product only."""
        zeros = self.values.new_zeros(self.shape[0] * self.shape[1])
        flat = zeros.index_copy(0, self.index.long(), self.values)
        return torch.nn.functional.linear(x, flat.view(*self.shape))


@dataclass(frozen=True, eq=False)
class Quantised:
    """Quantised weights, `low + step * code` per group (LatentLLM eq. 241-242), of a plain matrix
    or of another form.

    codes uint8: the quantised weights, packed where bits <= 4, see `pack`. low, step [groups]: zero
    point and scale of every `chunk` numbers of the flattened `whole`. inner: the kind of the form,
    "dense" for a plain matrix; whole: the shape of its numbers; order: its permutation, empty where
    it has none. lead: of `PassedRows`.
    """

    codes: Tensor
    low: Tensor
    step: Tensor
    order: Tensor
    inner: str
    whole: tuple[int, ...]
    bits: int
    chunk: int
    lead: int = 0
    WEIGHTS: ClassVar = ()
    DTYPES: ClassVar = {"codes": torch.uint8, "order": torch.int32}

    @property
    def matrix(self) -> "Tensor | Form":
        """The dequantised matrix [out, in], or form."""
        count = math.prod(self.whole)
        codes = unpack(self.codes, self.bits, count)
        low, step = (t.repeat_interleave(self.chunk)[:count] for t in (self.low, self.step))
        numbers = (low + step * codes.to(self.low.dtype)).view(*self.whole)
        if self.inner == "dense":
            return numbers
        orders = (self.order,) if self.order.numel() else ()
        lead = (self.lead,) if self.inner == "passed_rows" else ()
        return FORMS[self.inner](numbers, *orders, *lead)

    @property
    def shape(self) -> tuple[int, int]:
        if self.inner == "identity_columns":
            return self.whole[0] * self.whole[1], self.order.shape[1]
        if self.inner == "identity_rows":
            return self.order.numel(), self.whole[0] * self.whole[2]
        if self.inner == "passed_rows":
            return self.order.numel(), self.lead + self.whole[1]
        if self.inner == "block_diagonal":
            return self.whole[0] * self.whole[1], self.whole[0] * self.whole[2]
        return self.whole[0], self.whole[1]

    @property
    def parameters(self) -> int:
        return math.prod(self.whole)

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the dequantised matrix exists during the product only."""
        matrix = self.matrix
        if isinstance(matrix, Tensor):
            return torch.nn.functional.linear(x, matrix)
        return matrix.apply(x)


@dataclass(frozen=True, eq=False)
class _WithMask:
    """A matrix of which some numbers are kept.

    values: those kept, row by row; mask uint8 [out, ceil(in / 8)]: a bit for every number of a row,
    the first lowest. The mask counts in bytes, not as numbers. The product is that of the dense
    matrix, which exists during it only: no CPU is faster by it.
    """

    values: Tensor
    mask: Tensor
    WEIGHTS: ClassVar = ("values",)
    DTYPES: ClassVar = {"mask": torch.uint8}

    @property
    def shape(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        return self.values.numel()

    @property
    def matrix(self) -> Tensor:
        """The matrix [out, in] with its zeros."""
        places = torch.arange(8, dtype=torch.uint8, device=self.mask.device)
        kept = (self.mask[..., None] >> places & 1).flatten(1)[:, : self.shape[1]].bool()
        return self.values.new_zeros(*self.shape).masked_scatter(kept, self.values)

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return torch.nn.functional.linear(x, self.matrix)


@dataclass(frozen=True, eq=False)
class TwoOfFour(_WithMask):
    """With two numbers kept of every four of a row (2:4 sparsity): values [out, in / 2]."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], 2 * self.values.shape[1]


@dataclass(frozen=True, eq=False)
class Masked(_WithMask):
    """With any numbers kept (unstructured sparsity): values [k]."""

    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.mask.shape[0], self.columns


Blocks = IdentityColumns | IdentityRows | BlockDiagonal | PassedRows
Form = Blocks | Sparse | TwoOfFour | Masked | Quantised
Matrix = Tensor | Form
FORMS: dict[str, type[Form]] = {
    "identity_columns": IdentityColumns,
    "identity_rows": IdentityRows,
    "block_diagonal": BlockDiagonal,
    "passed_rows": PassedRows,
    "sparse": Sparse,
    "two_of_four": TwoOfFour,
    "masked": Masked,
    "quantised": Quantised,
}


def extremes(chunks: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """low [n] and step [n] of min-max quantisation of groups [n, size] (LatentLLM eq. 242)."""
    low = chunks.amin(1)
    return low, (chunks.amax(1) - low) / (2**bits - 1)


def groups_of(numbers: Tensor, chunk: int) -> Tensor:
    """The numbers of a tensor [...], row by row, in groups [n, chunk]; the last group is filled
    with its last number.
    """
    flat = numbers.flatten()
    return torch.cat((flat, flat[-1:].expand(-len(flat) % chunk))).view(-1, chunk)


# The bits of a code that lie together in one run of bytes, for each number of bits: 3 as 2 and 1.
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,)}


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [n] of so many bits as bytes, uint8: 8 / bits to a byte, those of 3 bits in two
    planes, of 2 bits and of 1; more than 4 bits have a byte each.
    """
    parts, shift = [], 0
    for width in PLANES.get(bits, (8,)):
        per = 8 // width
        plane = codes >> shift & 2**width - 1
        plane = torch.nn.functional.pad(plane, (0, -len(codes) % per)).view(-1, per)
        places = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
        parts.append((plane << places).sum(1, dtype=torch.uint8))
        shift += width
    return torch.cat(parts)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes uint8 [count] of what `pack` gave, uint8 [bytes]."""
    planes = PLANES.get(bits, (8,))
    if len(packed) != sum(-(-count * width // 8) for width in planes):
        planes = (4,)  # as earlier versions stored 3 bits and fewer
    codes, start, shift = torch.zeros_like(packed[:1]).expand(count), 0, 0
    for width in planes:
        length = -(-count * width // 8)
        places = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
        plane = packed[start : start + length, None] >> places & 2**width - 1
        codes = codes | plane.flatten()[:count] << shift
        start, shift = start + length, shift + width
    return codes


def quantise(
    matrix: Matrix,
    bits: int,
    chunk: int,
    grid: Callable[[Tensor, int], tuple[Tensor, Tensor]] = extremes,
) -> Matrix:
    """A matrix [out, in] with its numbers rounded to the even grid of their group, 1 to 8 bits.

    chunk: numbers per group. grid: groups [n, chunk] and bits to low [n] and step [n]. A form
    without stored numbers, a sparse one and one that is quantised already stay as they are.
    """
    if isinstance(matrix, Quantised | Sparse | TwoOfFour | Masked):
        return matrix
    kind = "dense" if isinstance(matrix, Tensor) else kind_of(matrix)
    parts = {"": matrix} if isinstance(matrix, Tensor) else tensors_of(matrix)
    numbers, *orders = parts.values()
    if not numbers.numel():
        return matrix
    padded = groups_of(numbers, chunk)
    low, step = grid(padded, bits)
    scaled = (padded - low[:, None]) / torch.where(step > 0, step, 1)[:, None]
    codes = scaled.round().clamp(0, 2**bits - 1).to(torch.uint8).flatten()[: numbers.numel()]
    codes = pack(codes, bits)
    order = orders[0] if orders else torch.empty(0, dtype=torch.int32, device=numbers.device)
    shape, lead = tuple(numbers.shape), getattr(matrix, "lead", 0)
    return Quantised(codes, low, step, order, kind, shape, bits, chunk, lead)


def two_of_four(matrix: Tensor, kept: Tensor) -> TwoOfFour:
    """The form of a matrix [out, in] of which two numbers of every four are kept, as `kept`
    [out, in], true or false, says. in: a multiple of four.
    """
    return TwoOfFour(matrix[kept].view(len(matrix), -1), _mask(kept))


def masked(matrix: Tensor, kept: Tensor) -> Masked:
    """The form of a matrix [out, in] of which the numbers are kept that `kept` [out, in], true or
    false, says.
    """
    return Masked(matrix[kept], _mask(kept), matrix.shape[1])


def _mask(kept: Tensor) -> Tensor:
    """[out, in], true or false, as bits: uint8 [out, ceil(in / 8)]."""
    rows = torch.nn.functional.pad(kept.to(torch.uint8), (0, -kept.shape[1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=kept.device)
    return (rows.view(len(rows), -1, 8) << places).sum(2, dtype=torch.uint8)


def _columns(x: Tensor, index: Tensor) -> Tensor:
    """Columns of x [..., n] by their index [m], as [t, m]: faster than x[..., index] by a third."""
    return x.reshape(-1, x.shape[-1]).index_select(1, index)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., heads, n], weight [heads, m, n] -> [..., heads, m]."""
    if len(weight) == 1:
        return torch.nn.functional.linear(x, weight[0])
    return torch.einsum("...hn,hmn->...hm", x, weight)


def kind_of(form: Form) -> str:
    """The name of a form in `FORMS`."""
    return next(name for name, kind in FORMS.items() if isinstance(form, kind))


def tensors_of(form: Form) -> dict[str, Tensor]:
    """The tensors [...] of a form by field name."""
    return {name: value for name, value in _values(form).items() if isinstance(value, Tensor)}


def settings_of(form: Form) -> dict[str, Any]:
    """What a form holds besides tensors, by field name: strings, integers and shapes."""
    return {name: value for name, value in _values(form).items() if not isinstance(value, Tensor)}


def _values(form: Form) -> dict[str, Any]:
    return {field.name: getattr(form, field.name) for field in fields(form)}


def dense(matrix: Matrix) -> Tensor:
    """The dense matrix [out, in]."""
    if isinstance(matrix, Tensor):
        return matrix
    first = next(t for t in tensors_of(matrix).values() if t.is_floating_point())
    return matrix.apply(torch.eye(matrix.shape[1], dtype=first.dtype, device=first.device)).mT


def count(matrix: Matrix) -> int:
    """How many numbers are stored of a matrix [out, in]."""
    return matrix.numel() if isinstance(matrix, Tensor) else matrix.parameters


def cast(matrix: Matrix, dtype: torch.dtype) -> Matrix:
    """A matrix [out, in] with its numbers in another dtype; integers stay as they are."""
    if isinstance(matrix, Tensor):
        return matrix.to(dtype)
    tensors: dict[str, Any] = {
        name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors_of(matrix).items()
    }
    return type(matrix)(**tensors, **settings_of(matrix))
