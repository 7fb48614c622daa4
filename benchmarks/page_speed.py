"""Response times and idle load of the page, measured in Chromium.

Needs playwright and a Chromium (environment variable CHROMIUM).
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import chromium
import psutil

from .machine import ROOT, machine
from .report import log, table, write_section

MOVES, LOADS, STARTS = 20, 3, 3
HOVER = 200  # ms
SETTLING, WATCHED = 15.0, 60.0  # seconds, of the idle page
MEASURING = ("python", "node")  # this process and the Playwright driver, which only wait
MODELS = {
    "demo-llama, 6 layers of 256": "app.py",
    "made-up spectra, 80 layers of 8192": "scripts/large_model.py",
}
HEAT, BARS = "#heatmap .js-plotly-plot", "#bars .js-plotly-plot"

# Moves a slider and returns the milliseconds until the plot is redrawn.
SLIDE = """([slider, plot, value]) => new Promise((done, failed) => {
  setTimeout(() => failed(`${plot} is not drawn again at ${value}`), 60000);
  const input = document.querySelector(slider + ' input[type=range]');
  const host = document.querySelector(plot), began = performance.now();
  const drawn = () => {
    host.removeListener('plotly_afterplot', drawn); done(performance.now() - began); };
  host.on('plotly_afterplot', drawn);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, value);
  input.dispatchEvent(new Event('input', {bubbles: true}));
})"""
# Clicks Start and returns the milliseconds until the status bar shows a running job with steps.
START = """() => new Promise((done, failed) => {
  setTimeout(() => failed('no progress is shown'), 60000);
  const began = performance.now(), bar = document.querySelector('#status-bar');
  const steps = '#status-bar .running .steps[data-total]:not([data-total="0"])';
  const look = () => { if (document.querySelector(steps)) {
    watch.disconnect(); done(performance.now() - began); } };
  const watch = new MutationObserver(look);
  watch.observe(bar, {subtree: true, childList: true, attributes: true});
  document.querySelector('#start').click();
})"""


# Clicks a cell of the heatmap and returns the milliseconds until the heading is shown and the
# spectrum is redrawn.
CLICK = """([layer, name]) => {
  const heat = document.querySelector('#heatmap .js-plotly-plot');
  const {xaxis, yaxis} = heat._fullLayout, box = heat.getBoundingClientRect();
  const drawn = () => +document.querySelector('#spectrum .js-plotly-plot').dataset.drawn;
  const heading = `#cell-heading h3[data-layer="${layer}"][data-name="${name}"]`, before = drawn();
  window.clicked = new Promise((done, failed) => {
    setTimeout(() => failed(`the spectrum of ${layer} ${name} is not drawn`), 60000);
    document.addEventListener('mousedown', () => {
      const began = performance.now();
      (function look() {
        if (!document.querySelector(heading) || drawn() === before)
          return requestAnimationFrame(look);
        done(performance.now() - began);
      })();
    }, {capture: true, once: true});
  });
  return [box.x + xaxis._offset + xaxis.d2p(layer), box.y + yaxis._offset + yaxis.d2p(name)];
}"""
# Records the end of the last long task; the page is interactive after QUIET ms without one.
BUSY = """window.busyUntil = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.busyUntil = one.startTime + one.duration;
}).observe({type: 'longtask', buffered: true});"""
SINCE_BUSY = "() => performance.now() - Math.max(window.busyUntil, 0)"
QUIET = 5000  # ms, by the usual definition with long tasks over 50 ms
PARTS = "() => [window.gradio_config.components.length, window.gradio_config.dependencies.length]"
# not yet factorized on the server
METHODS = ("svd_llm", "modegpt", "latentllm", "fused", "flap", "svd")
CELLS = ((3, "v"), (1, "mlp"), (4, "qk"), (0, "down"))


def page(models: list[str]) -> None:
    """Measure the time to the heatmap, to redrawn figures and to the first progress, on a demo
    model and on 80 layers.
    """
    from playwright.sync_api import sync_playwright

    rows, loads = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        for title, script in MODELS.items():
            with served(script) as url:
                loads.append([title, *measure_load(browser, url), *idle(browser, url, script)])
                rows.append([title, *measure_responses(browser, url, script == "app.py")])
                log(f"page {loads[-1]} {rows[-1]}")
        browser.close()
    header = [
        "model",
        "heatmap on the page, s",
        "click on a cell to its spectrum, ms: median (p95)",
        "budget slider to bars, ms: median (p95)",
        "threshold to heatmap, ms: median (p95)",
        "Start to first progress, ms",
        "new method to its bars, s: median (slowest)",
    ]
    caption = (
        f"{machine()}; load average {os.getloadavg()[0]:.1f} at the end. Medians of {LOADS} loads, "
        f"{MOVES} moves, {STARTS} starts and the first choice of {len(METHODS)} methods."
    )
    load_header = [
        "model",
        "sent to a fresh browser, MB",
        "requests",
        "components",
        "listeners",
        "interactive, s",
        "idle: server",
        "idle: browser",
    ]
    load_caption = (
        "Opening the page with an empty browser cache. Interactive: end of the last task over 50 "
        "ms that is followed by five seconds without such a task. Idle: fraction of a core over "
        f"{WATCHED:.0f} s without user input."
    )
    tables = f"{table(header, rows)}\n\n{load_caption}\n\n{table(load_header, loads)}"
    write_section("page", f"{caption}\n\n{tables}")


def measure_responses(browser, url: str, can_compress: bool) -> list[str]:
    """Return the response times; can_compress: whether the page has methods to choose."""
    opened(browser, url).close()  # warm-up of the server
    pages, loads = [], []
    for _ in range(LOADS):
        start = time.perf_counter()
        pages.append(opened(browser, url))
        loads.append(time.perf_counter() - start)
    page = pages.pop()
    for loaded in pages:
        loaded.close()
    page.wait_for_timeout(2000)
    clicks = [click_cell(page, *cell) for cell in CELLS]
    page.locator("#measure input").first.click()
    page.get_by_role("option", name="Energy rank").click()
    page.wait_for_function(
        f"() => document.querySelector('{HEAT}').data[0].hovertemplate.includes('Energy rank')",
        timeout=60_000,
    )
    page.wait_for_timeout(1000)
    heat = [page.evaluate(SLIDE, ["#threshold", HEAT, str(0.6 + 0.009 * i)]) for i in range(MOVES)]
    page.get_by_role("tab", name="Allocation", exact=True).click()
    page.wait_for_selector(BARS)
    page.click("#expert-allocation > button.label-wrap")
    page.wait_for_timeout(2000)
    bars = [
        page.evaluate(SLIDE, ["#field-ratio", BARS, str(0.1 + 0.01 * i)])
        for i in range(1, MOVES + 1)
    ]
    last = ["–", "–"]
    if can_compress:
        choices = [choose_method(page, method) for method in METHODS]
        last[1] = f"{statistics.median(choices):.1f} ({max(choices):.1f})"
        last[0] = f"{statistics.median(start_jobs(page)):.0f}"
    page.close()
    return [f"{statistics.median(loads):.2f}", *map(spread, (clicks, bars, heat)), *last]


def measure_load(browser, url: str) -> list[str]:
    """Return megabytes, requests, components, listeners, and seconds until the page is
    interactive.
    """
    opened(browser, url).close()  # warm-up of the server
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.add_init_script(chromium.VISITED)
    page.add_init_script(BUSY)
    requests = []
    page.on("requestfinished", lambda request: requests.append(request))
    page.goto(url)
    page.wait_for_selector(f"{HEAT} .main-svg", timeout=300_000)
    page.wait_for_function(f"({SINCE_BUSY})() > {QUIET}", timeout=300_000)
    interactive = page.evaluate("() => window.busyUntil") / 1000
    counts = page.evaluate(PARTS)
    sizes = [request.sizes()["responseBodySize"] for request in [*requests]]
    page.context.close()
    return [f"{sum(sizes) / 1e6:.2f}", len(sizes), *counts, f"{interactive:.2f}"]


def idle(browser, url: str, script: str) -> list[str]:
    """Return the fractions of a core that the server of `script` and the browser use."""
    page = opened(browser, url)
    page.wait_for_timeout(SETTLING * 1000)
    before, start = processor_seconds(script), time.perf_counter()
    page.wait_for_timeout(WATCHED * 1000)
    after, seconds = processor_seconds(script), time.perf_counter() - start
    page.context.close()
    return [f"{(end - begin) / seconds:.1%}" for begin, end in zip(before, after, strict=True)]


def processor_seconds(script: str) -> tuple[float, float]:
    """Return the processor time of the server's processes and of the browser's processes."""
    children = psutil.Process().children()
    servers = [process for process in children if script in process.cmdline()]
    drivers = [process for process in children if process not in servers]
    browsers = [child for driver in drivers for child in driver.children(recursive=True)]
    browsers = [process for process in browsers if not process.name().startswith(MEASURING)]
    servers += [child for server in servers for child in server.children(recursive=True)]
    return _seconds(servers), _seconds(browsers)


def _seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(used.user + used.system for used in times)


def opened(browser, url: str):
    """Open the page in a fresh profile and wait for the heatmap."""
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.add_init_script(chromium.VISITED)
    page.goto(url)
    page.wait_for_selector(f"{HEAT} .main-svg", timeout=300_000)
    return page


def click_cell(page, layer: int, name: str) -> float:
    """Return the milliseconds from a click on a cell to the spectrum."""
    x, y = page.evaluate(CLICK, [layer, name])
    page.mouse.move(x, y)
    page.wait_for_timeout(HOVER)  # Plotly clicks the cell under the last pointer event
    page.mouse.click(x, y)
    return page.evaluate("() => window.clicked")


def choose_method(page, method: str) -> float:
    """Return the seconds from the choice of a method to the bars."""
    page.locator("#field-method input").first.click()
    option = page.get_by_role("option", name=method, exact=True)
    option.wait_for()
    start = time.perf_counter()
    option.click()
    page.wait_for_function(
        f"() => document.querySelector('#bars').innerText.includes('{method}, ')", timeout=120_000
    )
    seconds = time.perf_counter() - start
    page.wait_for_timeout(2000)  # the page evaluates the perplexity of the plan
    return seconds


def start_jobs(page) -> list[float]:
    """Return the milliseconds from clicks on Start to the first progress."""
    page.get_by_role("tab", name="Compress", exact=True).click()
    page.wait_for_selector("#start", state="visible")
    page.wait_for_timeout(2000)
    times = []
    for _ in range(STARTS):
        times.append(page.evaluate(START))
        page.wait_for_selector("#status-bar .status-bar:not(.running)", timeout=300_000)
        page.wait_for_timeout(1500)
    return times


def spread(times: list[float]) -> str:
    """Return the median and the 95th percentile."""
    return f"{statistics.median(times):.0f} ({sorted(times)[int(0.95 * len(times))]:.0f})"


@contextmanager
def served(script: str) -> Iterator[str]:
    """Serve the page of a script on a free port, with temporary folders."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        env = os.environ | {"LRCORE_RUNS": f"{folder}/runs", "LRCORE_CACHE": f"{folder}/cache"}
        process = subprocess.Popen(
            [sys.executable, script, "--port", str(port)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield wait_for_server(f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def wait_for_server(url: str) -> str:
    """Return the address after the first response."""
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=30).close()
            return url
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"{url} does not respond")
