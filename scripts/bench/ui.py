"""What a person at the page waits for, measured in a real Chromium: needs playwright and a
Chromium (CHROMIUM names it).
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

from .idle import WATCHED, idle_shares
from .page import ROOT, machine, note, table, write_section

MOVES, LOADS, STARTS = 20, 3, 3
HOVER = 200  # ms
MODELS = {
    "demo-llama, 6 layers of 256": "app.py",
    "made-up spectra, 80 layers of 8192": "scripts/large_model.py",
}
HEAT, BARS = "#heatmap .js-plotly-plot", "#bars .js-plotly-plot"

# Sets a slider as a drag does and answers with the milliseconds until the plot is drawn again.
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
# Presses Start and answers with the milliseconds until the status bar shows a running job with its
# steps.
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


# Presses a cell of the heatmap and answers with the milliseconds until its heading stands there and
# the spectrum has been drawn again.
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
# Notes when the page was busy last; QUIET ms without, and the page was interactive where
# that ended.
BUSY = """window.busyUntil = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.busyUntil = one.startTime + one.duration;
}).observe({type: 'longtask', buffered: true});"""
SINCE_BUSY = "() => performance.now() - Math.max(window.busyUntil, 0)"
QUIET = 5000  # ms, of the usual definition (longer than 50 ms is busy)
PARTS = "() => [window.gradio_config.components.length, window.gradio_config.dependencies.length]"
# that no one has factorised on the server yet
METHODS = ("svd_llm", "modegpt", "latentllm", "fused", "flap", "svd")
CELLS = ((3, "v"), (1, "mlp"), (4, "qk"), (0, "down"))


def ui(_: list[str]) -> None:
    """First picture, slider to redrawn figures, Start to first progress; on a demo model and on
    80 layers.
    """
    from playwright.sync_api import sync_playwright

    rows, weights = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        for title, script in MODELS.items():
            with served(script) as url:
                weights.append([title, *weighed(browser, url), *idle(browser, url, script)])
                rows.append([title, *measured(browser, url, script == "app.py")])
                note(f"page {weights[-1]} {rows[-1]}")
        browser.close()
    header = [
        "model",
        "heatmap on the page, s",
        "click on a cell to its spectrum, ms: median (p95)",
        "budget slider to bars, ms: median (p95)",
        "threshold to heatmap, ms: median (p95)",
        "Start to first progress, ms",
        "another method to its bars, s: median (slowest)",
    ]
    words = (
        f"{machine()}; load average {os.getloadavg()[0]:.1f} at the end. Medians of {LOADS} loads, "
        f"{MOVES} moves, {STARTS} starts and the first choice of {len(METHODS)} methods."
    )
    parts = [
        "model",
        "sent to a fresh browser, MB",
        "requests",
        "components",
        "listeners",
        "interactive, s",
        "idle: server",
        "idle: browser",
    ]
    also = (
        "What opening the page takes, before anything is kept by the browser; interactive is where "
        "the last task of more than 50 ms ends before five seconds without one. Idle: of a core, "
        f"over {WATCHED:.0f} s in which nobody touches the open page."
    )
    tables = f"{table(header, rows)}\n\n{also}\n\n{table(parts, weights)}"
    write_section("page", f"{words}\n\n{tables}")


def measured(browser, url: str, compresses: bool) -> list[str]:
    opened(browser, url).close()  # what the server makes once
    pages, loads = [], []
    for _ in range(LOADS):
        begin = time.perf_counter()
        pages.append(opened(browser, url))
        loads.append(time.perf_counter() - begin)
    page = pages.pop()
    for other in pages:
        other.close()
    page.wait_for_timeout(2000)
    clicks = [clicked(page, *cell) for cell in CELLS]
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
    page.wait_for_timeout(2000)
    bars = [
        page.evaluate(SLIDE, ["#field-ratio", BARS, str(0.1 + 0.01 * i)])
        for i in range(1, MOVES + 1)
    ]
    last = ["–", "–"]
    if compresses:
        chosen = [switched(page, method) for method in METHODS]
        last[1] = f"{statistics.median(chosen):.1f} ({max(chosen):.1f})"
        last[0] = f"{statistics.median(starts(page)):.0f}"
    page.close()
    return [f"{statistics.median(loads):.2f}", *map(spread, (clicks, bars, heat)), *last]


def weighed(browser, url: str) -> list[str]:
    """Megabytes, requests, components, listeners, and seconds until the page is interactive."""
    opened(browser, url).close()  # what the server makes once
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.add_init_script(BUSY)
    done = []
    page.on("requestfinished", lambda request: done.append(request))
    page.goto(url)
    page.wait_for_selector(f"{HEAT} .main-svg", timeout=300_000)
    page.wait_for_function(f"({SINCE_BUSY})() > {QUIET}", timeout=300_000)
    interactive = page.evaluate("() => window.busyUntil") / 1000
    parts = page.evaluate(PARTS)
    sizes = [request.sizes()["responseBodySize"] for request in [*done]]
    page.context.close()
    return [f"{sum(sizes) / 1e6:.2f}", len(sizes), *parts, f"{interactive:.2f}"]


def idle(browser, url: str, script: str) -> list[str]:
    page = opened(browser, url)
    shares = idle_shares(script, page)
    page.context.close()
    return [f"{share:.1%}" for share in shares]


def opened(browser, url: str):
    """A page of a fresh profile once its heatmap is drawn."""
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.goto(url)
    page.wait_for_selector(f"{HEAT} .main-svg", timeout=300_000)
    return page


def clicked(page, layer: int, name: str) -> float:
    x, y = page.evaluate(CLICK, [layer, name])
    page.mouse.move(x, y)
    page.wait_for_timeout(HOVER)  # Plotly takes the cell that the pointer was seen over
    page.mouse.click(x, y)
    return page.evaluate("() => window.clicked")


def switched(page, method: str) -> float:
    """Seconds from the choice of a method until its allocation is drawn."""
    page.locator("#field-method input").first.click()
    option = page.get_by_role("option", name=method, exact=True)
    option.wait_for()
    begin = time.perf_counter()
    option.click()
    page.wait_for_function(
        f"() => document.querySelector('#bars').innerText.includes('{method}, ')", timeout=120_000
    )
    seconds = time.perf_counter() - begin
    page.wait_for_timeout(2000)  # meanwhile the perplexity of the ranks on show is measured
    return seconds


def starts(page) -> list[float]:
    page.get_by_role("tab", name="Compress", exact=True).click()
    page.wait_for_selector("#start", state="visible")
    page.wait_for_timeout(2000)
    took = []
    for _ in range(STARTS):
        took.append(page.evaluate(START))
        page.wait_for_selector("#status-bar .status-bar:not(.running)", timeout=300_000)
        page.wait_for_timeout(1500)
    return took


def spread(times: list[float]) -> str:
    return f"{statistics.median(times):.0f} ({sorted(times)[int(0.95 * len(times))]:.0f})"


@contextmanager
def served(script: str) -> Iterator[str]:
    """The page of a script on a free port, with folders of its own."""
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
            yield answered(f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def answered(url: str) -> str:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return url
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"{url} does not answer")
