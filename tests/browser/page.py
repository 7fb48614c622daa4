"""The page as a person uses it."""

import json
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Download, Page

READ_PLOT = """id => {
  const p = document.querySelector('#' + id + ' .js-plotly-plot'), l = p && p._fullLayout;
  const trace = t => ({name: t.name, custom: t.customdata, y: t.y, hover: t.hovertemplate || ""});
  return l ? {
    drawn: +p.dataset.drawn, x: l.xaxis.range, ytype: l.yaxis.type, paper: l.paper_bgcolor,
    background: l.plot_bgcolor, font: l.font.color, traces: p.data.map(trace)} : null;
}"""

# Sets the slider as a drag does and answers once the plot has been drawn again.
SLIDE = """([field, plot, value]) => new Promise(done => {
  const input = document.querySelector('#' + field + ' input[type=range]');
  const host = document.querySelector('#' + plot + ' .js-plotly-plot');
  const after = () => { host.removeListener('plotly_afterplot', after); done(); };
  host.on('plotly_afterplot', after);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, value);
  input.dispatchEvent(new Event('input', {bubbles: true}));
})"""

# A field that appeared within this frame still sets its first value, over anything typed into it
# faster than a hand could.
FRAMES = (
    "() => new Promise(done => { let left = 6; const next = () => left-- ? "
    "requestAnimationFrame(next) : done(); next(); })"
)


# Resolves once nothing has changed for half a second; the clock of the page and what it writes are
# within, so five seconds are enough in any case.
SETTLED = """() => new Promise(done => {
  const finish = () => { watch.disconnect(); clearTimeout(quiet); clearTimeout(end); done(); };
  const watch = new MutationObserver(() => {
    clearTimeout(quiet); quiet = setTimeout(finish, 500); });
  let quiet = setTimeout(finish, 500);
  const end = setTimeout(finish, 5000);
  watch.observe(document.body, {subtree: true, childList: true, attributes: true});
})"""

# Seconds until a wait gives up: a busy machine takes its time, and one that is met costs nothing.
PATIENCE = 300


class Workbench:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.locator, self.click, self.evaluate = page.locator, page.click, page.evaluate

    def analysed(self) -> None:
        """Wait for the heatmap, the first thing a newcomer sees."""
        self.page.wait_for_selector("#heatmap .js-plotly-plot")

    def settled(self) -> None:
        """Wait until nothing on the page has changed for half a second."""
        self.evaluate(SETTLED)

    def tab(self, title: str) -> None:
        tab = self.page.get_by_role("tab", name=title, exact=True)
        if not tab.is_visible():
            self.page.locator(".overflow-menu > button").first.click()
            tab = self.page.locator(".overflow-dropdown button", has_text=title)
        tab.click()

    def allocation(self) -> None:
        self.tab("Allocation")
        self.page.wait_for_selector("#bars .js-plotly-plot")
        self.page.wait_for_selector("#size-and-cost .cells")

    def plot(self, name: str) -> dict[str, Any]:
        return self.evaluate(READ_PLOT, name)

    def slide(self, field: str, plot: str, value: float) -> None:
        self.evaluate(SLIDE, [field, plot, str(value)])

    def set_range(self, elem_id: str, value: float) -> None:
        """Move a slider to a value."""
        self.evaluate(
            """([field, value]) => {
            const input = document.querySelector('#' + field + ' input[type=range]');
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
            set.call(input, value);
            input.dispatchEvent(new Event('input', {bubbles: true})); }""",
            [elem_id, str(value)],
        )

    def open(self, title: str) -> None:
        """Open an accordion that is closed."""
        label = self.page.locator("button.label-wrap", has_text=title).first
        if "open" not in (label.get_attribute("class") or "").split():
            label.click()

    def type_into(self, elem_id: str, value: str) -> None:
        box = self.page.locator(f"#{elem_id} input:not([type=range]), #{elem_id} textarea").first
        box.wait_for()
        self.evaluate(FRAMES)
        box.fill(value)
        box.press("Tab")

    def choose(self, elem_id: str, name: str) -> None:
        """An entry of a list that takes one."""
        self.locator(f"#{elem_id} input").click()
        self.page.get_by_role("option", name=name, exact=True).click()

    def value(self, elem_id: str) -> str:
        return self.page.locator(f"#{elem_id} input, #{elem_id} textarea").first.input_value()

    def download(self, elem_id: str) -> str:
        with self.page.expect_download() as waiting:
            self.click(f"#{elem_id}")
        got: Download = waiting.value
        return Path(got.path()).read_text(encoding="utf-8")

    def recipe(self) -> dict[str, Any]:
        self.open("Recipe and examples")
        return json.loads(self.download("save-recipe"))

    def status(self) -> dict[str, Any]:
        """Job id, state class, stage, done, total and text of the status bar."""
        return self.evaluate(
            """() => {
            const s = document.querySelector('#status-bar .status-bar');
            const n = document.querySelector('#status-bar .steps');
            return {
              job: s.dataset.jobId, state: s.className.replace('status-bar', '').trim(),
              text: s.innerText, stage: n && n.dataset.stage,
              done: n ? +n.dataset.done : 0, total: n ? +n.dataset.total : 0};
            }"""
        )

    def until(self, what, seconds: float, why: str) -> Any:
        """The first true value of what(), tried again and again."""
        end = time.monotonic() + max(seconds, PATIENCE)
        while True:
            got = what()
            if got:
                return got
            assert time.monotonic() < end, f"{why}; the status bar says: {self.status()['text']!r}"
            self.page.wait_for_timeout(50)

    def until_idle(self, seconds: float = 120) -> None:
        self.until(lambda: self.status()["state"] != "running", seconds, "a job does not end")

    def start(self, name: str = "", samples: int = 8, seq_len: int = 64) -> None:
        """Press Start under Compress with a measurement of this size."""
        self.tab("Compress")
        self.open("Measure perplexity")
        self.type_into("measure-samples", str(samples))
        self.type_into("measure-seq-len", str(seq_len))
        self.type_into("run-name", name)
        self.click("#start")
