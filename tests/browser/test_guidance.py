"""The first visit, the tour, the command palette and the list of shortcuts."""

import pytest

from workbench.words import guidance

pytestmark = [pytest.mark.browser]

TEXTS = guidance.page_values()


def test_the_tour_of_a_first_visit_is_skipped_for_ever(open_page):
    workbench = open_page(ready=False, is_first=True)
    welcome, tour = workbench.locator("#welcome"), workbench.locator("#tour")
    welcome.wait_for()
    links = [link.get_attribute("href") for link in welcome.locator("a").all()]
    assert links == [address for *_, address in guidance.examples()]
    workbench.analyzed()
    welcome.get_by_role("button", name=TEXTS["takeTour"]).click()
    for selector, tab, sentence in TEXTS["tour"][:3]:
        workbench.until(lambda s=sentence: s in tour.inner_text(), f"{selector} is not explained")
        workbench.locator(f"{selector}.tour-target").wait_for()
        assert not tab or workbench.open_tab() == tab
        workbench.page.keyboard.press("Enter")
    workbench.page.keyboard.press("Escape")
    assert tour.count() == welcome.count() == 0
    workbench.until_idle()
    workbench.page.reload()
    workbench.locator(".shortcuts-button").wait_for()
    assert welcome.count() == 0


# Names of the plots that intersect the welcome, and whether the welcome is wider than the window.
COVERED = """(() => {
  const box = document.querySelector('#welcome').getBoundingClientRect();
  const covers = (plot) => {
    const { left, right, top, bottom } = plot.getBoundingClientRect();
    return left < box.right && box.left < right && top < box.bottom && box.top < bottom;
  };
  const plots = [...document.querySelectorAll('.js-plotly-plot')].filter((p) => p.offsetParent);
  return { plots: plots.length, covered: plots.filter(covers).length,
    isWide: box.left < 0 || box.right > window.innerWidth };
})()"""


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_the_welcome_covers_no_plot(open_page, width):
    workbench = open_page(ready=False, is_first=True, width=width)
    workbench.locator("#welcome").wait_for()
    workbench.analyzed()
    for tab, plot in (("Spectra", "heatmap"), ("Allocation", "bars")):
        workbench.tab(tab, expert=False)
        workbench.wait_for_plot(plot)
        workbench.settled()
        found = workbench.evaluate(COVERED)
        assert found["plots"] > 0
        assert (found["covered"], found["isWide"]) == (0, False)


def test_an_example_of_the_first_visit_opens_its_plan(open_page):
    workbench = open_page(ready=False, is_first=True)
    workbench.analyzed()
    workbench.until_idle()
    workbench.locator("#welcome a").nth(1).click()
    workbench.locator("#field-method").wait_for()
    assert (workbench.value("field-method"), workbench.open_tab()) == ("care", "Allocation")


def test_the_palette_opens_tabs_and_starts_actions(open_page):
    workbench = open_page()
    palette, entries = workbench.locator("#palette"), workbench.locator("#palette li")
    workbench.locator(".shortcuts-button").wait_for()
    workbench.page.keyboard.press("Control+k")
    palette.wait_for()
    workbench.page.keyboard.type("<b>nothing")
    assert entries.count() == 0
    assert TEXTS["nothing"] in palette.inner_text()
    workbench.page.keyboard.press("Escape")
    assert palette.count() == 0
    workbench.page.keyboard.press("Control+k")
    workbench.page.keyboard.type("open ")
    workbench.page.keyboard.press("ArrowDown")
    chosen = palette.locator("[aria-selected=true]").inner_text()
    assert chosen == entries.nth(1).inner_text()
    workbench.page.keyboard.press("Enter")
    workbench.until(lambda: f"Open {workbench.open_tab()}" == chosen, "the tab does not open")
    workbench.page.keyboard.press("Control+k")
    workbench.page.keyboard.type("compress to")
    workbench.page.keyboard.press("Enter")
    workbench.until(lambda: "to 80 %" in workbench.status()["text"], "the model is not compressed")
    workbench.click(".status-bar [data-action=cancel]")


def test_a_question_mark_lists_the_shortcuts_unless_it_is_typed(open_page):
    workbench = open_page()
    window = workbench.locator("#shortcuts")
    workbench.locator(".shortcuts-button").wait_for()
    workbench.locator("#field-model input").focus()
    workbench.page.keyboard.press("?")
    assert window.count() == 0
    workbench.evaluate("document.activeElement.blur()")
    workbench.page.keyboard.press("?")
    window.wait_for()
    assert TEXTS["shortcuts"][0][1] in window.inner_text()
    workbench.page.keyboard.press("Escape")
    assert window.count() == 0
