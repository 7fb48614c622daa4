"""Decompositions with different numbers of threads."""

import pytest
import torch

from lrcore.layers.elimination import elimination_order
from lrcore.layers.linalg import roots, whitened_svd

SIZE, RANK = 256, 64


@pytest.fixture(scope="module")
def results():
    """Return a low-rank product, roots of a Gram matrix, and an order, computed with 1, 2 and 2
    threads.
    """
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


def test_results_with_different_numbers_of_threads_agree_to_a_millionth(results):
    (one_thread, order), (two_threads, other_order), _ = results
    for first, second in zip(one_thread, two_threads, strict=True):
        assert float((first - second).abs().max()) <= 1e-6 * float(first.abs().max())
    assert torch.equal(order, other_order)


def test_results_with_the_same_number_of_threads_are_equal_to_the_bit(results):
    _, (two_threads, order), (repeated, repeated_order) = results
    assert all(
        torch.equal(first, second) for first, second in zip(two_threads, repeated, strict=True)
    )
    assert torch.equal(order, repeated_order)
