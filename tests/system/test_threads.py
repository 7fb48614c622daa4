"""Decompositions that do not depend on how many threads compute them."""

import pytest
import torch

from lrcore.layers.elimination import elimination_order
from lrcore.layers.linalg import roots, whitened_svd

SIZE, RANK = 256, 64


@pytest.fixture(scope="module")
def results():
    """A low-rank product, the roots of a Gram matrix, and an order, by 1, 2 and again 2 threads."""
    chance = torch.Generator().manual_seed(6)
    weight = torch.randn(SIZE, SIZE, generator=chance, dtype=torch.float64)
    x = torch.randn(3 * SIZE, SIZE, generator=chance, dtype=torch.float64)
    before, made = torch.get_num_threads(), []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        gram = x.T @ x / len(x)
        up, values, down = whitened_svd(weight, gram)
        product = up[:, :RANK] @ down[:RANK]
        made.append(([product, values, *roots(gram)], elimination_order(weight, gram)))
    torch.set_num_threads(before)
    return made


def test_another_number_of_threads_changes_nothing_beyond_a_millionth(results):
    (one_thread, order), (two_threads, other_order), _ = results
    for first, second in zip(one_thread, two_threads, strict=True):
        assert float((first - second).abs().max()) <= 1e-6 * float(first.abs().max())
    assert torch.equal(order, other_order)


def test_the_same_number_of_threads_gives_the_same_bits(results):
    _, (two_threads, order), (repeated, repeated_order) = results
    assert all(
        torch.equal(first, second) for first, second in zip(two_threads, repeated, strict=True)
    )
    assert torch.equal(order, repeated_order)
