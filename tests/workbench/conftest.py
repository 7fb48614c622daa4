"""Fixtures shared by the tests of the workbench."""

import threading

import pytest
from kinds_of_job import TEST_KINDS
from page_server import PATIENCE

import lrcore
from workbench.state.job_queue import JobQueue


@pytest.fixture
def bench(tmp_path):
    """Return a queue of jobs whose steps wait for an event, the event, and the order of jobs."""
    gate, order = threading.Event(), []

    def work(record):
        if record.kind == "wrong":
            raise lrcore.InputError("no such thing: write another")
        if record.kind == "broken":
            raise RuntimeError("first line\nsecond line")
        order.append(record.job.n)
        for i in range(5):
            record.progress("step", i, 5)
            gate.wait(PATIENCE)
        return ["run-1"]

    return JobQueue(tmp_path, TEST_KINDS, work), gate, order
