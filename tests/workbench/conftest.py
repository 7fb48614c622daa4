"""Fixtures that several tests of the page's parts need."""

import threading

import pytest
from kinds_of_job import TEST_KINDS

import lrcore
from workbench.state.job_queue import JobQueue


@pytest.fixture
def bench(tmp_path):
    """A queue whose work waits at every step until `gate` is set."""
    gate, order = threading.Event(), []

    def work(record):
        if record.kind == "wrong":
            raise lrcore.InputError("no such thing: write another")
        if record.kind == "broken":
            raise RuntimeError("first line\nsecond line")
        order.append(record.job.n)
        for i in range(5):
            record.progress("step", i, 5)
            gate.wait(5)
        return ["run-1"]

    return JobQueue(tmp_path, TEST_KINDS, work), gate, order
