"""Stored forms of matrices and the modules that hold them."""

from itertools import product

import pytest
import torch
from torch import Tensor

from lrcore.layers.forms import (
    BlockDiagonal,
    IdentityColumns,
    IdentityRows,
    PassedRows,
    Quantized,
    Sparse,
    SparseCodes,
    count,
    dense,
    quantize,
    sparse_codes,
    tensors_of,
)
from lrcore.layers.layer import Linear, LowRank
from lrcore.layers.modules.projections import describe, projection_modules, read_projection, rebuild


def randn(*shape: int) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))
    )


def orders(heads: int, n: int) -> Tensor:
    g = torch.Generator().manual_seed(n)
    return torch.stack([torch.randperm(n, generator=g) for _ in range(heads)]).int()


def columns(heads: int, s: int, n: int) -> IdentityColumns:
    return IdentityColumns(randn(heads, s, max(n - s, 0)), orders(heads, n))


FORMS = {
    "identity_columns": columns(1, 3, 7),
    "identity_columns_square": columns(1, 4, 4),
    "identity_columns_heads": columns(3, 2, 5),
    "identity_columns_tall_heads": columns(2, 5, 3),
    "identity_rows": IdentityRows(randn(1, 4, 3), orders(1, 7)),
    "identity_rows_heads": IdentityRows(randn(3, 2, 3), orders(3, 5)),
    "block_diagonal": BlockDiagonal(randn(3, 4, 2)),
    "passed_rows": PassedRows(randn(3, 4), torch.tensor([2, 1, 4, 0, 3]).int(), 2),
    "passed_rows_left": PassedRows(randn(3, 2), torch.tensor([4, 3, 2]).int(), 2),
    "sparse": Sparse(randn(5), torch.tensor([0, 7, 8, 20, 34]).int(), (5, 7)),
    "sparse_codes": sparse_codes(randn(18, 7), randn(18, 7) > 1),
}
FORMS |= {
    f"quantized_{bits}_{name}": quantize(FORMS[name], bits, 4)
    for bits in (3, 4, 8)
    for name in ("identity_columns_heads", "identity_rows_heads", "block_diagonal", "passed_rows")
}
FORMS |= {
    "quantized_dense": quantize(randn(5, 7), 4, 8),
    "quantized_tall": quantize(FORMS["identity_columns_tall_heads"], 4, 8),
}


def spelled_out(form) -> Tensor:
    """Return the matrix, entry by entry from the definition."""
    blocks = []
    if isinstance(form, Quantized):
        return form.matrix if isinstance(form.matrix, Tensor) else spelled_out(form.matrix)
    if isinstance(form, Sparse):
        matrix = torch.zeros(form.shape, dtype=form.values.dtype)
        for value, at in zip(form.values, form.index, strict=True):
            matrix[at // form.shape[1], at % form.shape[1]] = value
        return matrix
    if isinstance(form, SparseCodes):
        matrix, values = torch.zeros(form.shape, dtype=form.values.dtype), form.values.tolist()
        for atom, row in product(range(form.shape[1]), range(form.shape[0])):
            if form.mask[atom, row // 8] >> row % 8 & 1:
                matrix[row, atom] = values.pop(0)
        assert not values
        return matrix
    if isinstance(form, BlockDiagonal):
        return torch.block_diag(*form.blocks)
    if isinstance(form, PassedRows):
        blocks_matrix = torch.block_diag(torch.eye(form.lead, dtype=form.rest.dtype), form.rest)
        return blocks_matrix[form.place.long()]
    if isinstance(form, IdentityRows):
        rank = form.rest.shape[2]
        for block_rest, index in zip(form.rest, form.place, strict=True):
            blocks.append(
                torch.cat((torch.eye(rank, dtype=block_rest.dtype), block_rest))[index.long()]
            )
        return torch.block_diag(*blocks)
    for block_rest, order in zip(form.rest, form.order, strict=True):
        size, n = form.rest.shape[1], form.order.shape[1]
        block = torch.zeros(size, n, dtype=block_rest.dtype)
        block[:, order.long()] = torch.cat(
            (torch.eye(size, dtype=block_rest.dtype)[:, : min(size, n)], block_rest), 1
        )
        blocks.append(block)
    return torch.cat(blocks)


@pytest.mark.parametrize("name", FORMS)
def test_form_applies_its_dense_matrix(name):
    form, matrix = FORMS[name], spelled_out(FORMS[name])
    x = randn(2, 3, form.shape[1])
    assert form.shape == matrix.shape
    assert torch.allclose(dense(form), matrix, atol=1e-14)
    assert torch.allclose(form.apply(x), x @ matrix.mT, atol=1e-12)
    assert count(form) <= matrix.numel()
    if not isinstance(form, Sparse | SparseCodes | Quantized):
        assert count(form) == sum(
            t.numel() for t in tensors_of(form).values() if t.is_floating_point()
        )


def test_values_and_positions_of_sparse_codes_are_counted():
    """A column of 18 numbers has 32 bits for positions, as many as two numbers of sixteen bits."""
    mask = randn(18, 7) > 1
    form = sparse_codes(randn(18, 7).bfloat16(), mask)
    assert count(form) == int(mask.sum()) + 7 * 2
    assert 2 * count(form) == form.values.nbytes + form.mask.nbytes


def test_identity_block_is_not_counted():
    assert count(columns(1, 3, 7)) == 3 * 7 - 9
    assert count(FORMS["identity_rows"]) == 3 * 7 - 9
    assert count(columns(2, 5, 3)) == 0


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_module_is_described_rebuilt_and_read_back(name, bias):
    form = FORMS[name]
    out, inp = form.shape
    value = LowRank(form, randn(6, out), randn(6) if bias else None)
    output_value = LowRank(randn(inp, 5), form, randn(out) if bias else None)
    made = projection_modules({"q": value, "o": output_value, "v": Linear(randn(2, 3))})
    empty = rebuild(describe(made), torch.float64, made.__getitem__)
    for key, module in made.items():
        empty[key].load_state_dict(module.state_dict(), strict=True, assign=True)
        x = randn(4, module.in_features)
        assert torch.equal(empty[key](x), module(x))
    result = read_projection(empty["q"])
    assert torch.equal(result.weight, value.weight)
    assert result.parameters == value.parameters
    x = randn(3, inp)
    expected = x @ value.weight.mT + (0 if value.bias is None else value.bias)
    assert torch.allclose(made["q"](x), expected, atol=1e-12)
    assert torch.allclose(
        made["o"](randn(3, 5)),
        randn(3, 5) @ output_value.weight.mT
        + (0 if output_value.bias is None else output_value.bias),
        atol=1e-12,
    )


def test_shared_down_factor_stays_shared_after_rebuilding():
    down = columns(1, 3, 7)
    made = projection_modules({name: LowRank(down, randn(4, 3)) for name in "qkv"})
    assert made["q"].down is made["k"].down is made["v"].down
    empty = rebuild(describe(made), torch.float64, made.__getitem__)
    assert empty["q"].down is empty["v"].down


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("chunk", [8, 64])
def test_codes_follow_the_uniform_quantization_of_the_paper(bits, chunk):
    """LatentLLM eq. 242, chunk by chunk; a constant chunk is unchanged."""
    matrix = randn(6, 15)
    matrix[0] = 0.3
    result = dense(quantize(matrix, bits, chunk)).flatten()
    for start in range(0, matrix.numel(), chunk):
        x = matrix.flatten()[start : start + chunk]
        low, scale = x.min(), (2**bits - 1) / (x.max() - x.min())
        expected = torch.round((x - low) * scale) / scale + low if x.max() > x.min() else x
        assert torch.allclose(result[start : start + chunk], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("bits", "size"), [(8, 90), (5, 90), (4, 45), (3, 23 + 12), (2, 23), (1, 12)]
)
def test_codes_of_up_to_four_bits_are_packed_into_bytes(bits, size):
    form = quantize(randn(6, 15), bits, 16)
    assert form.codes.dtype == torch.uint8
    assert form.codes.numel() == size
    assert form.low.numel() == form.step.numel() == 6
    assert count(form) == 90
