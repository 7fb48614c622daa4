"""Stored forms of a matrix: identity block, block-diagonal, sparse, masked, quantized.

A matrix M [out, in] acts on row activations, `apply(x) = x M^T`. Identity blocks and zeros are not
stored, and `parameters` counts the stored numbers. Permutations are int32 and not counted; neither
are the indices of retained rotary pairs. A quantized weight counts as one number at any number of
bits. A sparse entry counts as two: value and index. The positions of sparse codes
count as numbers of sixteen bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from .grids import nearest_codes


@dataclass(frozen=True, eq=False)
class IdentityColumns:
    """Per head `[I, R]` with permuted columns (LatentLLM eq. 9), heads stacked along the rows.

    All heads read the same input. rest R [heads, s, n - s]; order [heads, n]: the columns of the
    identity, then those of R. A head stores `s (n - s)` numbers instead of `s n`. If s > n, a head
    is `[I; 0]` with n columns, rest is [heads, s, 0] and no number is stored.
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

    @property
    def inputs(self) -> Tensor:
        """The inputs that the stored numbers of each head multiply, [heads, n - s]."""
        return self.order[:, self.rest.shape[1] :]

    def apply(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., heads * s]."""
        count, size, remaining = self.rest.shape
        if count == 1 and remaining:
            # two separate selections: slices of a joint selection would be copied for the product
            identity, rest_columns = (
                _columns(x, part) for part in self.order[0].split((size, remaining))
            )
            return torch.addmm(identity, rest_columns, self.rest[0].mT).view(*x.shape[:-1], size)
        columns = _columns(x, self.order.flatten()).view(-1, *self.order.shape)  # [t, heads, n]
        out = columns[..., :size]
        if size > out.shape[-1]:
            out = torch.nn.functional.pad(out, (0, size - out.shape[-1]))
        elif remaining:
            out = out + _by_head(columns[..., size:], self.rest)
        return out.reshape(*x.shape[:-1], count * size)


@dataclass(frozen=True, eq=False)
class IdentityRows:
    """Per head `[I; R]` with permuted rows, heads block-diagonal: head h reads a slice of the
    input.

    rest R [heads, s - r, r]; place [heads, s]: the index of each row in `[I; R]`. A head stores `r
    (s - r)` numbers instead of `s r`.
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

    @property
    def inputs(self) -> Tensor:
        """The inputs that the stored numbers of each head multiply, [heads, r]."""
        return _slices(self.rest)

    def apply(self, x: Tensor) -> Tensor:
        """[..., heads * r] -> [..., heads * s]."""
        count, _, rank = self.rest.shape
        by_head = x.unflatten(-1, (count, rank))
        out = torch.cat((by_head, _by_head(by_head, self.rest)), -1).flatten(-2)  # [..., heads * s]
        index = self.place
        if count > 1:
            first = torch.arange(0, out.shape[-1], index.shape[1], device=index.device)
            index = index + first[:, None]
        return _columns(out, index.flatten()).view(out.shape)


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """blocks [heads, s, r] along the diagonal: head h reads a slice of the input."""

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

    @property
    def inputs(self) -> Tensor:
        """The inputs that the stored numbers of each head multiply, [heads, r]."""
        return _slices(self.blocks)

    def apply(self, x: Tensor) -> Tensor:
        """[..., heads * r] -> [..., heads * s]."""
        return _by_head(x.unflatten(-1, (self.blocks.shape[0], -1)), self.blocks).flatten(-2)


@dataclass(frozen=True, eq=False)
class PassedRows:
    """Rows of `[I, 0; 0, R]`: an output is one of the first `lead` inputs, or a product with the
    remaining inputs.

    rest R [s, r]; place [out]: the index of each row in that matrix. A row of the identity may be
    unused. The form stores `s r` numbers instead of `out (lead + r)`.
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

    @property
    def inputs(self) -> Tensor:
        """The inputs that the stored numbers multiply, [1, r]."""
        return self.lead + torch.arange(self.rest.shape[1], device=self.rest.device)[None]

    def apply(self, x: Tensor) -> Tensor:
        """[..., lead + r] -> [..., out]."""
        product = torch.nn.functional.linear(x[..., self.lead :], self.rest)
        out = _columns(torch.cat((x[..., : self.lead], product), -1), self.place)
        return out.view(*x.shape[:-1], len(self.place))


@dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse matrix of shape `shape`: values [k], index [k] int32 into the flattened matrix."""

    values: Tensor
    index: Tensor
    shape: tuple[int, int]
    WEIGHTS: ClassVar = ("values",)
    DTYPES: ClassVar = {"index": torch.int32}

    @property
    def parameters(self) -> int:
        return 2 * self.values.numel()

    @property
    def matrix(self) -> Tensor:
        """The matrix [out, in] with zeros."""
        zeros = self.values.new_zeros(self.shape[0] * self.shape[1])
        return zeros.index_copy(0, self.index.long(), self.values).view(*self.shape)

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the dense matrix exists during the product only."""
        return torch.nn.functional.linear(x, self.matrix)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Quantized weights, `low + step * code` per group (LatentLLM eq. 241-242), of a dense matrix
    or of another form.

    codes uint8: the quantized weights, packed for bits <= 4, see `pack`. low, step [groups]:
    smallest value and step of each group of `chunk` numbers of the flattened array. inner: the kind
    of the quantized form, "dense" for a matrix. whole: the shape of the array of numbers. order:
    the permutation of the form, empty if it has none. lead: `PassedRows.lead`.
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
        """The dequantized matrix [out, in], or form."""
        count = math.prod(self.whole)
        groups = unpack(self.codes, self.bits, count).to(self.low.dtype)
        if count % self.chunk:
            groups = torch.nn.functional.pad(groups, (0, -count % self.chunk))
        # in place: a decoder computes this matrix for every token
        groups = groups.view(-1, self.chunk).mul_(self.step[:, None]).add_(self.low[:, None])
        numbers = groups.flatten()[:count].view(*self.whole)
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
        """[..., in] -> [..., out]; the dequantized matrix exists during the product only."""
        matrix = self.matrix
        if isinstance(matrix, Tensor):
            return torch.nn.functional.linear(x, matrix)
        return matrix.apply(x)


@dataclass(frozen=True, eq=False)
class _WithMask:
    """A matrix with zeros where the bits of a mask are 0.

    values: the nonzero numbers, row by row. mask uint8 [out, ceil(in / 8)]: one bit per number of a
    row, the first number in the lowest bit. Sizes in bytes include the mask, counts of parameters
    do not. `apply` uses the dense matrix, which exists during the product only: a mask saves memory
    but no time.
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
        """The matrix [out, in] with zeros."""
        zeros = self.values.new_zeros(*self.shape)
        return zeros.masked_scatter(_unpacked(self.mask, self.shape[1]), self.values)

    def apply(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return torch.nn.functional.linear(x, self.matrix)


@dataclass(frozen=True, eq=False)
class TwoOfFour(_WithMask):
    """2:4 sparsity: two nonzero numbers of every four in a row. values [out, in / 2]."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], 2 * self.values.shape[1]


@dataclass(frozen=True, eq=False)
class Masked(_WithMask):
    """Unstructured sparsity: any number of nonzero numbers in a row. values [k]."""

    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.mask.shape[0], self.columns


@dataclass(frozen=True, eq=False)
class SparseCodes(_WithMask):
    """Sparse combinations of the rows of a dictionary, [rows, atoms] (COMPOT).

    values [k]: the nonzero numbers, column by column. mask uint8 [atoms, 2 ceil(rows / 16)]: their
    positions, a bit per number of a column. Sixteen bits of the mask count as a number.
    """

    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.mask.shape[0]

    @property
    def parameters(self) -> int:
        return self.values.numel() + self.mask.numel() // 2

    @property
    def matrix(self) -> Tensor:
        """The matrix [rows, atoms] with zeros."""
        zeros = self.values.new_zeros(len(self.mask), self.rows)
        return zeros.masked_scatter(_unpacked(self.mask, self.rows), self.values).mT


Blocks = IdentityColumns | IdentityRows | BlockDiagonal | PassedRows
Form = Blocks | Sparse | TwoOfFour | Masked | SparseCodes | Quantized
Matrix = Tensor | Form
FORMS: dict[str, type[Form]] = {
    "identity_columns": IdentityColumns,
    "identity_rows": IdentityRows,
    "block_diagonal": BlockDiagonal,
    "passed_rows": PassedRows,
    "sparse": Sparse,
    "two_of_four": TwoOfFour,
    "masked": Masked,
    "sparse_codes": SparseCodes,
    "quantised": Quantized,
}


def extremes(chunks: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return low [n] and step [n] of min-max quantization, groups [n, size]; LatentLLM eq. 242."""
    low = chunks.amin(1)
    return low, (chunks.amax(1) - low) / (2**bits - 1)


def groups_of(numbers: Tensor, chunk: int) -> Tensor:
    """Return the numbers of a tensor [...], row by row, in groups [n, chunk].

    The last group is padded with the last number.
    """
    flat = numbers.flatten()
    return torch.cat((flat, flat[-1:].expand(-len(flat) % chunk))).view(-1, chunk)


QUANTIZERS_REVISION = 2  # part of cache keys: increase it if a quantizer yields other numbers
# Widths of the bit planes that a code is split into, by number of bits: 3 bits as 2 and 1.
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,)}


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes uint8 [n] of `bits` bits into bytes, uint8.

    A byte holds 8 / bits codes. Codes of 3 bits are split into a plane of 2 bits and a plane of 1
    bit. Codes of more than 4 bits take a byte each.
    """
    planes, shift = [], 0
    for width in PLANES.get(bits, (8,)):
        codes_per_byte = 8 // width
        plane = codes >> shift & 2**width - 1
        plane = torch.nn.functional.pad(plane, (0, -len(codes) % codes_per_byte)).view(
            -1, codes_per_byte
        )
        shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
        planes.append((plane << shifts).sum(1, dtype=torch.uint8))
        shift += width
    return torch.cat(planes)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` codes uint8 [count] of packed bytes, uint8 [bytes]."""
    first, *others = PLANES.get(bits, (8,))
    start = -(-count * first // 8)
    codes, shift = _split(packed[:start], first).flatten()[:count], first
    for width in others:
        end = start + -(-count * width // 8)
        codes = codes | _split(packed[start:end], width).flatten()[:count] << shift
        start, shift = end, shift + width
    return codes


def _split(packed: Tensor, width: int) -> Tensor:
    """Return the codes of `width` bits in bytes, lowest first: [...] -> [..., 8 / width] uint8."""
    if width == 8:
        return packed.unsqueeze(-1)
    mask, last = 2**width - 1, 8 - width
    # a shift by a tensor of shifts takes three times as long
    codes = [(packed >> shift if shift else packed) & mask for shift in range(0, last, width)]
    return torch.stack([*codes, packed >> last], -1)


def quantize(
    matrix: Matrix,
    bits: int,
    chunk: int,
    grid: Callable[[Tensor, int], tuple[Tensor, Tensor]] = extremes,
) -> Matrix:
    """Return a matrix [out, in] with numbers rounded to the uniform grid of their group, 1 to 8
    bits.

    chunk: numbers per group. grid(groups [n, chunk], bits) returns low [n] and step [n]. Forms
    without stored numbers, sparse forms and quantized forms are returned unchanged.
    """
    if isinstance(matrix, Quantized | Sparse | _WithMask):
        return matrix
    kind = "dense" if isinstance(matrix, Tensor) else kind_of(matrix)
    parts = {"": matrix} if isinstance(matrix, Tensor) else tensors_of(matrix)
    numbers, *orders = parts.values()
    if not numbers.numel():
        return matrix
    padded = groups_of(numbers, chunk)
    low, step = grid(padded, bits)
    codes = nearest_codes(padded, low[:, None], step[:, None], 2**bits - 1)
    codes = pack(codes.to(torch.uint8).flatten()[: numbers.numel()], bits)
    order = orders[0] if orders else torch.empty(0, dtype=torch.int32, device=numbers.device)
    shape, lead = tuple(numbers.shape), getattr(matrix, "lead", 0)
    return Quantized(codes, low, step, order, kind, shape, bits, chunk, lead)


def two_of_four(matrix: Tensor, mask: Tensor) -> TwoOfFour:
    """Return the 2:4 sparse form of a matrix [out, in], given a bool mask [out, in] of nonzero
    numbers.

    in must be a multiple of four.
    """
    return TwoOfFour(matrix[mask].view(len(matrix), -1), _mask(mask))


def masked(matrix: Tensor, mask: Tensor) -> Masked:
    """Return the masked form of a matrix [out, in], given a bool mask [out, in] of nonzero
    numbers.
    """
    return Masked(matrix[mask], _mask(mask), matrix.shape[1])


def sparse_codes(matrix: Tensor, mask: Tensor) -> SparseCodes:
    """Return the sparse form of codes [rows, atoms], given a bool mask [rows, atoms] of nonzero
    numbers.
    """
    words = torch.nn.functional.pad(mask.mT, (0, -len(mask) % 16))
    return SparseCodes(matrix.mT[mask.mT], _mask(words), len(matrix))


def _unpacked(mask: Tensor, columns: int) -> Tensor:
    """Return the bool mask [rows, columns] of bits that `_mask` packed."""
    return _split(mask, 1).flatten(1)[:, :columns].bool()


def _mask(mask: Tensor) -> Tensor:
    """Pack a bool mask [out, in] into bits, uint8 [out, ceil(in / 8)]."""
    rows = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[1] % 8))
    shifts = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (rows.view(len(rows), -1, 8) << shifts).sum(2, dtype=torch.uint8)


def _slices(blocks: Tensor) -> Tensor:
    """Return the inputs of each block [heads, s, r] of a block-diagonal matrix, [heads, r]."""
    count, _, rank = blocks.shape
    return torch.arange(count * rank, device=blocks.device).view(count, rank)


def _columns(x: Tensor, index: Tensor) -> Tensor:
    """Select columns of x [..., n] by index [m], [t, m]; a third faster than `x[..., index]`."""
    return x.reshape(-1, x.shape[-1]).index_select(1, index)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., heads, n], weight [heads, m, n] -> [..., heads, m]."""
    if len(weight) == 1:
        return torch.nn.functional.linear(x, weight[0])
    return torch.einsum("...hn,hmn->...hm", x, weight)


def kind_of(form: Form) -> str:
    """Return the name of a form in `FORMS`."""
    return next(name for name, kind in FORMS.items() if isinstance(form, kind))


def tensors_of(form: Form) -> dict[str, Tensor]:
    """Return the tensors [...] of a form by field name."""
    return {name: value for name, value in _values(form).items() if isinstance(value, Tensor)}


def memory_of(matrix: Matrix) -> tuple[tuple[int, torch.Size], ...]:
    """Return address and shape of each tensor: equal for a matrix that projections share, also if
    each has its own value of it.
    """
    parts = [matrix] if isinstance(matrix, Tensor) else tensors_of(matrix).values()
    return tuple((part.data_ptr(), part.shape) for part in parts)


def settings_of(form: Form) -> dict[str, Any]:
    """Return the fields of a form that are not tensors: strings, integers and shapes."""
    return {name: value for name, value in _values(form).items() if not isinstance(value, Tensor)}


def _values(form: Form) -> dict[str, Any]:
    return {field.name: getattr(form, field.name) for field in fields(form)}


def dense(matrix: Matrix) -> Tensor:
    """Return the dense matrix [out, in]."""
    if isinstance(matrix, Tensor):
        return matrix
    first = next(t for t in tensors_of(matrix).values() if t.is_floating_point())
    return matrix.apply(torch.eye(matrix.shape[1], dtype=first.dtype, device=first.device)).mT


def count(matrix: Matrix) -> int:
    """Return how many numbers of a matrix [out, in] are stored."""
    return matrix.numel() if isinstance(matrix, Tensor) else matrix.parameters


def cast(matrix: Matrix, dtype: torch.dtype) -> Matrix:
    """Return a matrix [out, in] with floating-point numbers in another dtype."""
    if isinstance(matrix, Tensor):
        return matrix.to(dtype)
    tensors: dict[str, Any] = {
        name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors_of(matrix).items()
    }
    return type(matrix)(**tensors, **settings_of(matrix))
