"""What an open page takes while nobody does anything: of a core, for the server and the browser."""

import time

import psutil

SETTLES, WATCHED = 15.0, 60.0  # seconds
MEASURING = ("python", "node")  # this process and Playwright's driver, which only wait


def idle_shares(script: str, page) -> tuple[float, float]:
    """The shares of a core that the server of `script` and the browser with `page` take."""
    page.wait_for_timeout(SETTLES * 1000)
    before, began = _taken(script), time.perf_counter()
    page.wait_for_timeout(WATCHED * 1000)
    after, seconds = _taken(script), time.perf_counter() - began
    server, browser = ((late - early) / seconds for early, late in zip(before, after, strict=True))
    return server, browser


def _taken(script: str) -> tuple[float, float]:
    """Seconds of processor time so far, of the server's processes and of the browser's."""
    children = psutil.Process().children()
    servers = [one for one in children if script in one.cmdline()]
    drivers = [one for one in children if one not in servers]
    browsers = [one for driver in drivers for one in driver.children(recursive=True)]
    browsers = [one for one in browsers if not one.name().startswith(MEASURING)]
    return _seconds(_with_children(servers)), _seconds(browsers)


def _with_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [*processes, *(child for one in processes for child in one.children(recursive=True))]


def _seconds(processes: list[psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(one.user + one.system for one in times)
