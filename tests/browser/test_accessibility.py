"""Accessibility: an audit by axe-core in light and dark, and all steps of a compression by
keyboard.
"""

import os
from pathlib import Path

import pytest

from .test_curves import TABS

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN_SERVER = True

AXE = Path(
    os.environ.get("AXE") or Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"
)
# Rules that do not depend on colors give the same result in both themes.
COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
RULES = {"light": {}, "dark": COLORS}
AUDIT = """async rules => (await axe.run(document, {...rules, resultTypes: ['violations']}))
  .violations
  .filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => [v.id, v.nodes.length, v.nodes[0].html, v.nodes[0].failureSummary])"""


@pytest.mark.parametrize("theme", RULES)
def test_axe_finds_no_serious_violation(open_page, theme):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: 'make axe' fetches it with npm")
    workbench = open_page(f"?__theme={theme}")
    workbench.evaluate(AXE.read_text(encoding="utf-8"))
    for title in TABS:
        workbench.tab(title)
        workbench.settled()
        assert workbench.evaluate(AUDIT, RULES[theme]) == [], title


TOUCHING = """() => {
  const next = document.querySelector('.guide .next').getBoundingClientRect();
  return [...document.querySelectorAll('#tabs [role=tab]')].filter((tab) => {
    const { left, right, top, bottom } = tab.getBoundingClientRect();
    return left < next.right && right > next.left && top < next.bottom && bottom > next.top;
  }).map((tab) => tab.textContent.trim()); }"""


@pytest.mark.soak
def test_the_next_step_and_the_sidebar_cover_no_tab_at_any_width(open_page):
    """With a zoom of 200 %, the screen of a laptop is 720 pixels wide."""
    for width in (720, 800, 1024, 1180):
        workbench = open_page("?tab=Allocation", width=width, height=700, ready=False)
        workbench.locator(".guide .next").wait_for()
        workbench.settled()
        assert workbench.evaluate(TOUCHING) == [], width
        if width <= 768:
            assert not workbench.locator(".sidebar.open").count()


def press_until(workbench, key: str, target: str, max_presses: int = 60) -> None:
    """Press a key until the focus is on an element that matches a selector."""
    workbench.locator(target).first.wait_for()
    for _ in range(max_presses):
        if workbench.evaluate(
            "s => !!document.activeElement && document.activeElement.matches(s)", target
        ):
            return
        workbench.page.keyboard.press(key)
    raise AssertionError(f"{target} is not reached with {key}")


def test_all_steps_of_a_compression_work_with_the_keyboard(workbench):
    keys = workbench.page.keyboard
    press_until(workbench, "Tab", "#field-model input")
    keys.press("Tab")
    model = workbench.locator("#field-model input")
    workbench.until(
        lambda: model.get_attribute("aria-expanded") == "false", "its list does not close"
    )
    press_until(workbench, "Tab", "#heatmap .plot", max_presses=120)
    keys.press("ArrowRight")
    keys.press("Enter")
    workbench.until(
        lambda: "Layer 1 · qk" in workbench.locator("#cell-heading").inner_text(),
        "the keys do not select a cell",
    )
    press_until(workbench, "Shift+Tab", ".guide .next", max_presses=120)
    keys.press("Enter")
    workbench.page.wait_for_selector("#size-and-cost .cells")
    workbench.page.wait_for_selector("#bars .handle:not([hidden])")
    workbench.answered()
    press_until(workbench, "Tab", "#field-ratio input[type=range]")
    before = workbench.plot("bars")["drawn"]
    keys.press("ArrowRight")
    workbench.until(
        lambda: workbench.plot("bars")["drawn"] > before, "the slider does not follow the keys"
    )
    workbench.answered()  # all plots are updated
    press_until(workbench, "Tab", "#bars .handle")

    keys.press("ArrowUp")
    workbench.until(
        lambda: "1 set manually" in workbench.locator("#hand-changes").inner_text(),
        "the handle does not follow the keys",
    )
    press_until(workbench, "Shift+Tab", ".guide .next", max_presses=120)
    keys.press("Enter")
    workbench.page.wait_for_selector("#start", state="visible")
    press_until(workbench, "Tab", "#start")
    keys.press("Enter")
    workbench.page.wait_for_selector(".job.done")
    press_until(workbench, "Shift+Tab", ".guide .next", max_presses=120)
    keys.press("Enter")
    workbench.page.wait_for_selector("#answer-1", state="visible")
    workbench.answered()
    press_until(workbench, "Tab", "#generate")
    keys.press("Enter")
    prompt = workbench.value("prompt")
    workbench.until(lambda: len(workbench.answer(1)) > len(prompt) + 5, "the answer is not shown")
