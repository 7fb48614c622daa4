"""A real server in a process of its own, and a real Chromium."""

import fcntl
import os
import random
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fresh
import pytest

pytest.importorskip("playwright")
from gradio_client import Client
from playwright.sync_api import Browser, sync_playwright

from .page import PATIENCE, Workbench, visit

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


CALIBRATE = """
import lrcore
model = lrcore.load("demo-llama")
lrcore.analyse(model, lrcore.calibrate(model, lrcore.Recipe()))
"""


# These take longest. They begin first, so that neither of two processes waits long for the other at
# the end; the others follow in their order.
LONGEST = ("test_jobs", "test_restart", "test_survey", "test_comparing", "test_export")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        if item.path.parent != here:
            return -1
        return LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)

    items.sort(key=place)


def free_port() -> int:
    """A port that is free, and stays so until a server takes it: none of those that the system
    gives to connections.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Server:
    """`app.py`, or another script that serves the page, on a free loopback port with folders of
    its own; `log` is what it printed. more: of its environment.
    """

    def __init__(self, folder: Path, cache: Path, script: str = "app.py", **more: str) -> None:
        self.folder, self.script, self.started = folder, script, []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = os.environ | {
            "LRCORE_RUNS": str(folder / "runs"),
            "LRCORE_CACHE": str(cache),
            **more,
        }
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
    def log(self) -> str:
        return "".join(p.out.read_text() + p.err.read_text() for p in self.started)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder for all servers of all processes of the tests, with the calibration and
    the analysis that every page opens with: computed once.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "calibrated").exists():
            own = os.environ | {"LRCORE_CACHE": str(folder / "cache")}
            done = fresh.page().run(["-c", CALIBRATE], own, folder)
            assert done.returncode == 0, done.stderr
            (folder / "calibrated").touch()
    return folder / "cache"


@pytest.fixture(scope="session")
def common_server(tmp_path_factory, cache):
    server = Server(tmp_path_factory.mktemp("workbench"), cache)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(request, tmp_path_factory, cache):
    """One for all modules but those that say `OWN_SERVER`, since they count runs and jobs or kill
    it.
    """
    if not getattr(request.module, "OWN_SERVER", False):
        yield request.getfixturevalue("common_server")
        return
    server = Server(tmp_path_factory.mktemp("workbench"), cache)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; name one in CHROMIUM")
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE * 1000
        )
        yield browser
        browser.close()


@contextmanager
def pages(browser: Browser, url: str) -> Iterator[Callable[..., Workbench]]:
    """Opens pages, each in a browser profile of its own, and closes them: a page that nobody looks
    at goes on asking its server.
    """
    contexts = []

    def open_one(query: str = "", ready: bool = True, **settings) -> Workbench:
        page = visit(browser, f"{url}/{query}", **settings)
        contexts.append(page.context)
        workbench = Workbench(page)
        if ready:
            workbench.analysed()
        return workbench

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(browser, server):
    """Opens pages that are closed when the test ends."""
    with pages(browser, server.url) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def workbench(browser, server):
    """One page for all tests of a module, as one person would use it: loading it takes longer
    than most tests.
    """
    with pages(browser, server.url) as open_one:
        yield open_one()
