"""A machine that is busy while the page starts: how long Gradio waits for its own server.

Gradio gives it five seconds to listen and three to answer, and then ends the process with a
traceback, whoever asks it meanwhile.
"""

import threading
import time

import httpx
from gradio import http_server, networking
from gradio.exceptions import ServerFailedToStartError

PATIENCE = 120.0  # seconds, for both
ANSWERS = (200, 401, 301, 302, 303, 307, 308)  # also of a page that asks for a password


def wait() -> None:
    """Let every server of this process that is started from now on have as much time."""
    networking.url_ok = answers
    http_server.Server.run_in_thread = start  # type: ignore[method-assign]


def answers(url: str) -> bool:
    """Whether this machine reaches its own page."""
    try:
        return httpx.head(url, timeout=PATIENCE, verify=False).status_code in ANSWERS
    except (OSError, httpx.TransportError):
        return False


def start(server: http_server.Server) -> None:
    """Run a server in a thread, and return once it listens. Raises ServerFailedToStartError where
    it ends before, as for a port that is taken, or takes too long.
    """
    server.thread = threading.Thread(target=server.run, daemon=True)
    if server.reloader:
        server.watch_thread = threading.Thread(target=server.watch, daemon=True)
        server.watch_thread.start()
    server.thread.start()
    end = time.monotonic() + PATIENCE
    while not server.started:
        if not server.thread.is_alive() or time.monotonic() > end:
            raise ServerFailedToStartError("The server did not start. Check that the port is free.")
        time.sleep(1e-3)
