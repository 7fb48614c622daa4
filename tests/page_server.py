"""The page in a process of its own, on a loopback port."""

import os
import random
import signal
import socket
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import fresh
from gradio_client import Client

ROOT = Path(__file__).parents[1]
# Seconds until a wait gives up: a busy machine takes its time, and one that is met costs nothing.
PATIENCE = 300


def free_port() -> int:
    """A port that is free, and stays so until a server takes it: none of those that the system
    gives to connections.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def launched(app: Any, **settings: Any) -> str:
    """The address of an app that this process serves, on a free port, until it is closed."""
    _, url, _ = app.launch(
        server_port=free_port(), prevent_thread_lock=True, quiet=True, **settings
    )
    return url


class Server:
    """`app.py`, or another script that serves the page, on a free loopback port with folders of
    its own; `log` is what it printed. begin: start it at once. more: of its environment.
    """

    def __init__(
        self, folder: Path, cache: Path, script: str = "app.py", begin: bool = True, **more: str
    ) -> None:
        self.folder, self.script, self.started = folder, script, []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = os.environ | {
            "LRCORE_RUNS": str(folder / "runs"),
            "LRCORE_CACHE": str(cache),
            **more,
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
        """A script that calls the server."""
        return Client(self.url, verbose=False, httpx_kwargs={"timeout": PATIENCE})

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)  # nothing where it has ended
        self.process.wait(PATIENCE)

    @property
    def memory(self) -> int:
        """Bytes that the server holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return 1024 * int(line.split()[1])

    @property
    def log(self) -> str:
        return "".join(p.out.read_text() + p.err.read_text() for p in self.started)
