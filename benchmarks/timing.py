"""Timers, and an empty cache for measurements."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def empty_cache() -> Iterator[None]:
    """Use an empty cache folder, so that earlier results do not shorten a measurement."""
    before = os.environ.get("LRCORE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRCORE_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("LRCORE_CACHE")
            if before is not None:
                os.environ["LRCORE_CACHE"] = before


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call and its seconds, including pending work on a GPU."""
    start = time.perf_counter()
    value = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return value, time.perf_counter() - start


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of several calls."""
    return statistics.median(timed(run)[1] for _ in range(repeats))
