"""Runs are read when a server starts, so that its first page does not wait for them."""

import threading

import pytest

from workbench.app import app


@pytest.fixture
def reading(monkeypatch, tmp_path):
    """A server whose runs are read once `let` is set; what is set once they were read."""
    let, was_read = threading.Event(), threading.Event()

    def read(store):
        let.wait(30)
        store.runs.all()
        was_read.set()

    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(app, "read_runs", read)
    yield let, was_read
    let.set()


def test_the_page_is_built_once_they_are_read(reading):
    let, was_read = reading
    threading.Timer(0.5, let.set).start()
    app.build_app()
    assert was_read.is_set()


def test_a_folder_that_takes_long_does_not_hold_it_up(reading, monkeypatch):
    monkeypatch.setattr(app, "READ_TIMEOUT", 0.05)
    app.build_app()
    assert not reading[1].is_set()
