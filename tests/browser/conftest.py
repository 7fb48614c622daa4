"""A workbench server in a separate process, and a Chromium."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fresh
import pytest
from page_server import PATIENCE, Server

pytest.importorskip("playwright")
from playwright.sync_api import Browser, sync_playwright

from .page import Workbench, visit

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
sys.path.insert(0, SCRIPTS)
import chromium  # noqa: E402 (its folder is not a package)

sys.path.remove(SCRIPTS)

CALIBRATE = """
import lrcore
from lrcore.compression.evidence.measure import evidence_tokens
model = lrcore.load("demo-llama")
calibration = lrcore.calibrate(model, lrcore.Recipe())
lrcore.analyze(model, calibration).write("analysis.safetensors")
factors = lrcore.factorize(model, calibration, "a3")
print(evidence_tokens(factors, lrcore.Recipe(policy="probed")))
"""


# Test modules that run first. While one of two processes calibrates for all pages (see `cache`),
# the other runs the module that needs no calibration. The longest modules follow, so that neither
# process waits long for the other at the end.
FIRST = (
    "test_jobs",
    "test_large_model",
    "test_restart",
    "test_survey",
    "test_comparing",
    "test_export",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent

    def position(item: pytest.Item) -> int:
        if item.path.parent != folder:
            return -1
        return FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST)

    items.sort(key=position)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Return a cache folder that the servers of all test processes share, with the calibration and
    the analysis of the start page.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "calibrated").exists():
            environment = os.environ | {"LRCORE_CACHE": str(folder / "cache")}
            done = fresh.page().run(["-c", CALIBRATE], environment, folder)
            assert done.returncode == 0, done.stderr
            (folder / "calibrated").write_text(done.stdout)
    return folder / "cache"


@pytest.fixture(scope="session")
def common_server(tmp_path_factory, cache):
    server = Server(tmp_path_factory.mktemp("workbench"), cache)
    yield server
    stop(server)


def stop(server: Server) -> None:
    """Stop the server, and fail if its log has a traceback."""
    server.stop()
    before, fault, after = server.log.partition("Traceback")
    assert not fault, f"{before[-500:]}{fault}{after[:4000]}"


@pytest.fixture(scope="module")
def server(request, tmp_path_factory, cache):
    """Return the common server, or a new one for a module with `OWN_SERVER`, which counts runs and
    jobs or kills the server.
    """
    if not getattr(request.module, "OWN_SERVER", False):
        yield request.getfixturevalue("common_server")
        return
    server = Server(tmp_path_factory.mktemp("workbench"), cache)
    yield server
    stop(server)


@pytest.fixture(scope="session")
def browser():
    if not Path(chromium.PATH).exists():
        pytest.skip(f"no Chromium at {chromium.PATH}; name one in CHROMIUM")
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium.PATH, args=chromium.FLAGS, timeout=PATIENCE * 1000
        )
        yield browser
        browser.close()


@contextmanager
def pages(browser: Browser, url: str) -> Iterator[Callable[..., Workbench]]:
    """Provide a function that opens pages in separate browser profiles, and close them at the end,
    because an open page keeps polling its server. Fail if a script raised an error in a page.
    """
    contexts, faults = [], []

    def open_workbench(query: str = "", ready: bool = True, **settings) -> Workbench:
        page = visit(browser, f"{url}/{query}", **settings)
        page.on("pageerror", lambda error: faults.append(str(error)))
        contexts.append(page.context)
        workbench = Workbench(page)
        if ready:
            workbench.analyzed()
        return workbench

    yield open_workbench
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def open_page(browser, server):
    """Provide a function that opens pages and closes them when the test ends."""
    with pages(browser, server.url) as open_workbench:
        yield open_workbench


@pytest.fixture(scope="module")
def workbench(browser, server):
    """Return a page for all tests of a module, because loading a page takes longer than
    most tests.
    """
    with pages(browser, server.url) as open_workbench:
        yield open_workbench()
