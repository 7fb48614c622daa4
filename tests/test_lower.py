"""Lower triangular matrices in half their numbers."""

import pytest
import torch

from lrcore.lower import COLUMNS, Lower


@pytest.mark.parametrize("size", [1, COLUMNS - 1, COLUMNS, 3 * COLUMNS + 5])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_every_leading_block_is_that_of_the_matrix(size, transposed) -> None:
    whole = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lower = (whole.mT.contiguous().mT if transposed else whole).tril()
    kept = Lower.of(lower)
    for count in {1, size // 2 + 1, size}:
        assert torch.equal(kept.leading(count), lower[:count, :count])


def test_what_is_above_the_diagonal_is_not_looked_at() -> None:
    full = torch.arange(1.0, 26.0).view(5, 5)
    assert torch.equal(Lower.of(full).leading(5), full.tril())


def test_a_wide_one_takes_half_of_the_numbers() -> None:
    size = 32 * COLUMNS
    assert Lower.of(torch.zeros(size, size)).numbers.numel() < 0.52 * size**2
