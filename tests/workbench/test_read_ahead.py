"""Reading the runs at the start of the server, before the first page opens."""

import threading

import pytest

from workbench.app import app


@pytest.fixture
def slow_reading(monkeypatch, tmp_path):
    """Return an event that allows reading the runs, and an event that is set after reading."""
    allowed, was_read = threading.Event(), threading.Event()

    def read(store):
        allowed.wait(30)
        store.runs.all()
        was_read.set()

    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(app, "read_runs", read)
    yield allowed, was_read
    allowed.set()


def test_the_page_is_built_after_the_runs_are_read(slow_reading):
    allowed, was_read = slow_reading
    threading.Timer(0.5, allowed.set).start()
    app.build_app()
    assert was_read.is_set()


def test_slow_reading_does_not_delay_the_page(slow_reading, monkeypatch):
    monkeypatch.setattr(app, "READ_TIMEOUT", 0.05)
    app.build_app()
    assert not slow_reading[1].is_set()
