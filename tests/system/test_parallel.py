"""Decompositions with a single thread, and several of them in parallel."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from mkl_threads import thread_count

from lrcore.system.cancellation import cancellable
from lrcore.system.errors import Cancelled
from lrcore.system.threads import AT_ONCE, SMALL, at_once, mkl, threads_for

has_numbers = pytest.mark.skipif(mkl() is None, reason="torch has no MKL")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@has_numbers
@pytest.mark.parametrize(("rows", "small"), [(8, True), (SMALL + 1, False)])
def test_a_small_matrix_is_decomposed_in_a_single_thread(rows, small, two_threads):
    before = thread_count()
    with threads_for(torch.empty(rows, 2000)):
        assert thread_count() == (1 if small else before)
    assert thread_count() == before


def test_a_matrix_on_a_different_device_does_not_change_the_threads():
    with threads_for(torch.empty(8, 8, device="meta")):
        pass


@has_numbers
def test_several_matrices_are_decomposed_in_parallel_with_a_thread_each(two_threads):
    both_started, main_thread = threading.Barrier(2, timeout=30), threading.get_ident()

    def work(name):
        both_started.wait()
        assert threading.get_ident() != main_thread
        return thread_count(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    matrices = {"a": torch.ones(3, 3), "b": torch.ones(5, 5)}
    assert list(at_once(work, matrices).items()) == [(name, (1, True, False)) for name in "ab"]
    with torch.no_grad():
        assert set(at_once(work, matrices).values()) == {(1, False, False)}
    with torch.inference_mode():
        assert set(at_once(work, matrices).values()) == {(1, False, True)}


@pytest.mark.parametrize(
    "matrices",
    [
        {"a": torch.empty(9, AT_ONCE + 1).mT, "b": torch.empty(*[AT_ONCE + 1] * 2)},
        {"a": torch.empty(2, 2, device="meta"), "b": torch.empty(2, 2, device="meta")},
        {"a": torch.ones(2, 2)},
    ],
)
def test_large_or_single_matrices_and_other_devices_use_the_calling_thread(matrices, two_threads):
    names = at_once(lambda name: (name, threading.get_ident()), matrices)
    assert names == {name: (name, threading.get_ident()) for name in matrices}


@has_numbers
def test_the_largest_matrix_is_started_first(two_threads, monkeypatch):
    """If it were last, the other threads would wait for it."""
    begun = []

    class OneByOne(ThreadPoolExecutor):
        def __init__(self, count, **options):
            super().__init__(1, **options)

    monkeypatch.setattr("lrcore.system.threads.ThreadPoolExecutor", OneByOne)
    sizes = {"a": 2, "b": 9, "c": 4}
    at_once(begun.append, {name: torch.ones(size, size) for name, size in sizes.items()})
    assert begun == ["b", "c", "a"]


def test_an_exception_is_raised_and_stops_the_other_matrices(two_threads):
    begun = []

    def work(name):
        begun.append(name)
        raise ValueError(name)

    with pytest.raises(ValueError, match="0"):
        at_once(work, {str(n): torch.ones(2, 2) for n in range(50)})
    assert len(begun) <= 2


def test_parallel_decompositions_can_be_canceled(two_threads):
    cancelled, begun = threading.Event(), []

    def check():
        if cancelled.is_set():
            raise Cancelled("now")

    def work(name):
        begun.append(name)
        cancelled.set()
        while True:
            torch.ones(2).sum()

    with pytest.raises(Cancelled), cancellable(check):
        at_once(work, {str(n): torch.ones(2, 2) for n in range(50)})
    assert len(begun) <= 2


def test_parallel_results_equal_sequential_ones_to_the_bit(two_threads):
    g = torch.Generator().manual_seed(0)
    matrices = {str(n): torch.randn(40 + n, 30, generator=g) for n in range(6)}
    singular_values = at_once(lambda name: torch.linalg.svdvals(matrices[name]), matrices)
    for name, matrix in matrices.items():
        with threads_for(matrix):
            assert torch.equal(singular_values[name], torch.linalg.svdvals(matrix))
