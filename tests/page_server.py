"""The server of the page in a separate process, on a loopback port."""

import os
import random
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fresh
from gradio_client import Client

from workbench.server.host_names import HostNames
from workbench.server.web_app import page_server, web_app

ROOT = Path(__file__).parents[1]
# Seconds before a wait fails: a busy machine may be slow, and a successful wait costs no extra
# time.
PATIENCE = 300


def free_port() -> int:
    """Return a free port outside the range from which the system assigns ports to connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@contextmanager
def serve_in_background(app: Any, port: int, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the app in a thread and yield its address.

    Raises RuntimeError if the server does not start.
    """
    server = page_server(app, host, port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + PATIENCE
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise RuntimeError("The server did not start. Check that the port is free.")
        time.sleep(0.01)
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@contextmanager
def served(page: Any, names: HostNames | None = None, password: str = "") -> Iterator[str]:
    """Serve a page in this process on a free port and yield its address."""
    with serve_in_background(web_app(page, names or HostNames(), password), free_port()) as url:
        yield url


class Server:
    """`app.py`, or another script that serves the page, on a free loopback port with the given
    folders; `log` is its output. begin: whether to start it at once. environment: additional
    variables.
    """

    def __init__(
        self,
        folder: Path,
        cache: Path,
        script: str = "app.py",
        begin: bool = True,
        **environment: str,
    ) -> None:
        self.folder, self.script, self.started = folder, script, []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = os.environ | {
            "LRCORE_RUNS": str(folder / "runs"),
            "LRCORE_CACHE": str(cache),
            **environment,
        }
        if begin:
            self.start()

    def start(self) -> None:
        self.process = fresh.page().start([self.script, "--port", self.port], self.env, ROOT)
        self.started.append(self.process)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(self.url, timeout=PATIENCE).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log
                time.sleep(0.2)
        raise AssertionError(f"the server did not answer: {self.log}")

    def client(self) -> Client:
        """Return a client of the server's API."""
        return Client(self.url, verbose=False, httpx_kwargs={"timeout": PATIENCE})

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)  # ignored if the process has ended
        self.process.wait(PATIENCE)

    @property
    def memory(self) -> int:
        """Return the resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return 1024 * int(line.split()[1])

    @property
    def log(self) -> str:
        return "".join(p.out.read_text() + p.err.read_text() for p in self.started)
