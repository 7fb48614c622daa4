"""A page that starts on a busy machine waits for its own server, as long as that lives."""

import threading

import httpx
import pytest
from gradio import http_server, networking
from gradio.exceptions import ServerFailedToStartError

from workbench import slow_start
from workbench.app import build_app
from workbench.store import Store

TAKES = 60.0  # seconds, on the clocks of these tests


@pytest.fixture(autouse=True)
def waiting(monkeypatch):
    """As Gradio is, and then as `build_app` makes it."""
    monkeypatch.setattr(networking, "url_ok", networking.url_ok)
    monkeypatch.setattr(http_server.Server, "run_in_thread", http_server.Server.run_in_thread)
    slow_start.wait()


@pytest.mark.parametrize(
    ("status", "reached"), [(200, True), (401, True), (303, True), (500, False)]
)
def test_a_server_that_answers_after_a_minute_is_reached(status, reached, monkeypatch):
    def head(url, timeout, **_):
        if timeout < TAKES:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(status)

    monkeypatch.setattr(httpx, "head", head)
    assert networking.url_ok("http://127.0.0.1/") == reached


def test_nobody_who_listens_is_not_reached():
    assert not networking.url_ok("http://127.0.0.1:1/")


class Slow:
    """A server that listens once its clock says so, or ends before."""

    reloader, started = None, False

    def __init__(self, ends: bool):
        self.seconds, self.ends, self.done = 0.0, ends, threading.Event()

    def run(self):
        while not self.ends and self.seconds < TAKES:
            self.done.wait(1e-3)
        self.started = not self.ends

    def monotonic(self):
        self.seconds += TAKES / 10
        return self.seconds

    def sleep(self, seconds):
        self.done.wait(seconds)


@pytest.mark.parametrize("ends", [False, True])
def test_a_server_that_listens_after_a_minute_is_waited_for_unless_it_ends(ends, monkeypatch):
    own = Slow(ends)
    monkeypatch.setattr(slow_start, "time", own)
    monkeypatch.setattr(slow_start, "PATIENCE", 100 * TAKES)
    if ends:
        with pytest.raises(ServerFailedToStartError, match="did not start"):
            http_server.Server.run_in_thread(own)
    else:
        http_server.Server.run_in_thread(own)
    assert own.started != ends


def test_every_page_is_started_so(tmp_path):
    networking.url_ok = http_server.Server.run_in_thread = None
    build_app(Store(tmp_path / "runs"))
    assert networking.url_ok is slow_start.answers
    assert http_server.Server.run_in_thread is slow_start.start
