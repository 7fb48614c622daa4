"""Actions of a user on the page.

A slow machine must not fail a test: each action waits for its effect, not for a time.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from page_server import PATIENCE
from playwright.sync_api import Browser, Download, Locator, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
VISITED = "localStorage.setItem('lrw-visited', '1')"  # see assets/guidance.js
# Requests of a page to a listener, through Gradio's queue or directly.
QUESTION = re.compile(r"/(queue/join|run/predict)(\?|$)")
# Tabs with a fold of expert settings, and the name of the fold.
FOLDS = {"Allocation": "allocation", "Compress": "compress", "Compare": "compare"}
# Milliseconds until a click on an element that is not ready is repeated.
RETRY = 20_000


def visit(
    browser: Browser,
    url: str,
    width: int = 1360,
    height: int = 900,
    watch=None,
    hold=None,
    is_first=False,
) -> Page:
    """Open a page in a new browser profile.

    is_first: whether the page shows the welcome of a first visit.
    watch: called with each request of the page. hold: called with the route of each request to a
    listener; the request waits until the route is continued.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, accept_downloads=True
    )
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(SCRIPT)
    if not is_first:
        context.add_init_script(VISITED)
    page = context.new_page()
    if watch:
        page.on("request", watch)
    if hold is not None:
        page.route(QUESTION, hold)
    page.goto(url, wait_until="commit")  # each test waits for the parts that it needs
    return page


# Stage and finished units of the running job; null if no job runs.
PROGRESS = """(() => {
  const steps = document.querySelector('.status-bar.running .steps');
  return steps && `${steps.dataset.stage} ${steps.dataset.done}`; })()"""


class Workbench:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.locator, self.evaluate = page.locator, page.evaluate

    # --- waiting ---

    def until(self, read: Callable[[], Any], why: str) -> Any:
        """Call `read` until it returns a true value, and return the value.

        The time limit is extended while a job makes progress.
        """
        end, progress = time.monotonic() + PATIENCE, None
        while True:
            got = read()
            if got:
                return got
            if time.monotonic() > end:
                former, progress = progress, self.evaluate(PROGRESS)
                text = self.status()["text"]
                moves = progress is not None and progress != former
                assert moves, f"{why}; the status bar says: {text!r}"
                end = time.monotonic() + PATIENCE
            self.page.wait_for_timeout(50)

    def answered(self) -> None:
        """Wait until all requests of the page are answered and the answers are drawn."""
        self.until(lambda: self.evaluate("tests.answered()"), "requests remain unanswered")

    def settled(self) -> None:
        """Wait for `answered`, and for the end of all animations."""
        self.answered()
        self.evaluate("tests.still()")

    def looked(self, times: int = 1) -> None:
        """Wait until the page has polled the server this number of times and shows the results."""
        looks = self.evaluate("questions.looks.asked")
        self.until(
            lambda: self.evaluate("questions.looks.answered") >= looks + times,
            "the page does not poll the server",
        )
        self.answered()

    def analyzed(self) -> None:
        """Wait for the heatmap, which a new page shows first."""
        self.wait_for_plot("heatmap")

    def wait_for_plot(self, name: str) -> None:
        """Wait until a plot is drawn and reacts to clicks."""
        self.page.wait_for_selector(f"#{name} .js-plotly-plot[data-drawn]")

    def until_idle(self) -> None:
        """Wait until no job runs or is queued."""

        def idle() -> bool:
            self.looked()
            return not self.evaluate("tests.busy()")

        self.until(idle, "a job does not end")

    def see(self, selector: str) -> None:
        """Scroll to an element: slow figures are drawn when they are visible."""
        self.locator(selector).scroll_into_view_if_needed()

    # --- pressing and typing ---

    def click(self, selector: str) -> None:
        """Press a button. Gradio drops a press while it handles the previous one."""
        self.answered()
        self.page.click(selector)

    def press_until(self, press: Callable[[], Any], is_done: Callable[[], Any], why: str) -> None:
        """Press an element that may move or be redrawn while the page loads, until the press has
        its effect.
        """

        def done() -> Any:
            self.answered()
            if not is_done():
                with suppress(PlaywrightTimeout):
                    press()
                self.answered()
            return is_done()

        self.until(done, why)

    def tab(self, title: str, expert: bool = True) -> None:
        """Open a tab. expert: open its expert settings, too."""
        tab = self.page.get_by_role("tab", name=title, exact=True)
        # without the tabs, the code below would wait for their menu
        listed = self.page.locator(".overflow-dropdown button", has_text=title)
        self.page.locator("#tabs [role=tab]").first.wait_for()

        def opened() -> bool:
            with suppress(PlaywrightTimeout):  # tabs move during layout
                if tab.is_visible():
                    tab.click(timeout=RETRY)
                else:
                    if not listed.is_visible():
                        self.page.locator(".overflow-menu > button").first.click(timeout=RETRY)
                    listed.click(timeout=RETRY)
            return self.open_tab() == title

        self.until(opened, f"the tab {title} does not open")
        if expert and title in FOLDS:
            self.unfold(f"#expert-{FOLDS[title]} > button.label-wrap")

    def open_tab(self) -> str:
        return self.evaluate("tests.openTab()")

    def allocation(self) -> None:
        self.tab("Allocation")
        self.wait_for_plot("bars")
        self.page.wait_for_selector("#size-and-cost .cells")

    def open(self, title: str) -> None:
        """Open an accordion that is closed."""
        self.unfold(f"button.label-wrap:visible:has-text({json.dumps(title)})")

    def unfold(self, selector: str) -> None:
        label = self.page.locator(selector).first

        def is_open() -> bool:
            return "open" in (label.get_attribute("class") or "").split()

        self.until(lambda: is_open() or label.click() or is_open(), f"{selector} does not open")

    def experiment(self, title: str) -> None:
        """Open a part of the tab of experiments."""
        self.tab("Experiments")
        self.open(title)

    def set_range(self, elem_id: str, value: float) -> None:
        """Move a slider to a value; the linear slider if it has a logarithmic overlay."""
        slider = self.locator(f"#{elem_id} input[type=range]").first
        slider.wait_for()
        self.evaluate("tests.frames()")

        def held() -> bool:
            slider.evaluate("(input, value) => tests.setRange(input, value)", str(value))
            self.evaluate("tests.frames()")
            return abs(float(slider.input_value()) - value) < 1e-9

        self.until(held, f"the slider {elem_id} does not move to {value}")

    def at_ratio(self, ratio: float) -> None:
        """Move the budget to a ratio, and wait until the plan is drawn."""
        self.set_range("field-ratio", ratio)
        self.shows_ratio(ratio)

    def shows_ratio(self, ratio: float) -> None:
        """Wait until the summary and the bars belong to a ratio."""
        summary = self.locator("#size-and-cost")
        self.until(
            # also in a fold that is closed
            lambda: f"requested {ratio:.1%}" in (summary.text_content() or ""),
            "the summary is not updated",
        )
        self.answered()

    def type_into(self, elem_id: str, value: str) -> None:
        box = self.page.locator(f"#{elem_id} input:not([type=range]), #{elem_id} textarea").first
        box.wait_for()
        self.evaluate("tests.frames()")

        def held() -> bool:
            box.fill(value)
            box.press("Tab")
            self.evaluate("tests.frames()")
            return box.input_value() == value

        self.until(held, f"{elem_id} does not accept {value!r}")

    def choose(self, elem_id: str, name: str) -> None:
        """Choose an entry of a list with a single choice."""
        box = self.locator(f"#{elem_id} :is(input, select)")
        box.wait_for()

        def chosen() -> bool:
            if box.evaluate("box => box.tagName") == "SELECT":
                box.select_option(name)
            else:
                self._press_option(box, name)
            return box.input_value() == name

        self.until(chosen, f"{name} cannot be chosen")

    def choose_all(self, elem_id: str, names: Sequence[str]) -> None:
        """Choose entries of a list with several choices, in addition to the chosen ones."""
        box, tokens = self.locator(f"#{elem_id} input"), self.locator(f"#{elem_id} .token")

        def chosen() -> bool:
            selected = {token.strip() for token in tokens.all_inner_texts()}
            lacking = [name for name in names if name not in selected]
            if lacking:
                self._press_option(box, lacking[0])
            box.blur()
            return not lacking

        self.until(chosen, f"{names} cannot be chosen")

    def _press_option(self, box: Locator, name: str) -> None:
        box.blur()  # a list opens when its box gets the focus
        with suppress(PlaywrightTimeout):  # the list may be redrawn
            box.click(timeout=RETRY)
            self.page.get_by_role("option", name=name, exact=True).click(timeout=RETRY)

    # --- reading ---

    def plot(self, name: str) -> dict[str, Any]:
        """Return the content of a plot; {} if it does not exist."""
        return self.evaluate("name => tests.plot(name)", name)

    def ranks(self) -> dict[tuple[str, int], int]:
        """Return the ranks of the bars, by (component, layer)."""
        return {
            (name, layer): rank
            for trace in self.plot("bars")["traces"]
            if trace["custom"]
            for layer, name, rank, *_ in trace["custom"]
        }

    def plotted(self, component: str) -> bool:
        """Return True if a component has bars."""
        return any(name == component for name, _ in self.ranks())

    def value(self, elem_id: str) -> str:
        return self.page.locator(f"#{elem_id} input, #{elem_id} textarea").first.input_value()

    def answer(self, column: int) -> str:
        """Return prompt and answer of a model, the dense model first; "" without an answer."""
        return self.page.locator(f"#answer-{column}").get_attribute("data-text") or ""

    def status(self) -> dict[str, Any]:
        """Return job id, state class, stage, done, total and text of the status bar."""
        return self.evaluate("tests.status()")

    def saved(self, button: Locator) -> str:
        """Press a button that saves a file, and return the text of the file."""
        self.answered()
        with self.page.expect_download() as waiting:
            button.click()
        got: Download = waiting.value
        return Path(got.path()).read_text(encoding="utf-8")

    def download(self, elem_id: str) -> str:
        return self.saved(self.locator(f"#{elem_id}"))

    def recipe(self) -> dict[str, Any]:
        self.open("Recipe and examples")
        return json.loads(self.download("save-recipe"))

    # --- runs ---

    def start(self, name: str = "", samples: int = 8, seq_len: int = 64) -> None:
        """Press Start in the Compress tab, with this number and length of evaluation windows."""
        self.tab("Compress")
        self.answered()  # the previous start clears the name
        self.type_into("measure-samples", str(samples))
        self.type_into("measure-seq-len", str(seq_len))
        self.type_into("run-name", name)
        self.click("#start")

    def open_run(self, name: str) -> None:
        """Open a run of the table; wait until the table has it."""
        self.tab("Runs & export")
        exact_name = re.compile(rf"^\s*{re.escape(name)}\s*$")
        cell = self.locator("#runs-table [role=gridcell]", has_text=exact_name).first
        cell.wait_for()
        heading = self.locator("#run-heading h3")
        self.press_until(
            lambda: cell.click(timeout=RETRY),
            lambda: heading.count() and heading.inner_text() == name,
            f"the run {name} does not open",
        )
        self.unfold("#expert-runs > button.label-wrap")
