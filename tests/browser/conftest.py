"""A real server in a process of its own, and a real Chromium."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Page, sync_playwright

from .page import Workbench

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


class Server:
    """`app.py`, or another script that serves the page, on a free loopback port with folders of
    its own; `log` is what it printed.
    """

    def __init__(self, folder: Path, cache: Path, script: str = "app.py") -> None:
        self.folder, self.log_file, self.script = folder, folder / "server.log", script
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = os.environ | {
            "LRCORE_RUNS": str(folder / "runs"),
            "LRCORE_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }  # the browser needs a core too
        self.start()

    def start(self) -> None:
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, self.script, "--port", str(self.port)],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        for _ in range(360):
            try:
                urllib.request.urlopen(self.url, timeout=2).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log
                time.sleep(0.5)
        raise AssertionError(f"the server did not answer: {self.log}")

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(20)

    @property
    def log(self) -> str:
        return self.log_file.read_text()


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(tmp_path_factory, cache):
    server = Server(tmp_path_factory.mktemp("workbench"), cache)
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; name one in CHROMIUM")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_page(browser, server):
    """Opens pages, each in a browser profile of its own."""
    contexts = []

    def open_one(
        query: str = "", width: int = 1360, height: int = 900, ready: bool = True, watch=None
    ) -> Workbench:
        context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True
        )
        contexts.append(context)
        page: Page = context.new_page()
        if watch:
            page.on("request", watch)
        page.goto(f"{server.url}/{query}")
        workbench = Workbench(page)
        if ready:
            workbench.analysed()
        return workbench

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def workbench(open_page):
    """One page for all tests of a module, as one person would use it: loading it takes longer
    than most tests.
    """
    return open_page()
