"""The cockpit of the Allocation tab: layout, pinned plan, values outside a range, and plots of the
previous model.
"""

import json
import re

import pytest

from lrcore.compression.what_if import MODEL_SHAPES
from workbench import words
from workbench.base import numbers
from workbench.state.browsers import CONTEXT, CONTEXTS
from workbench.tabs.allocation.what_if import CARDS
from workbench.views import markup
from workbench.widgets.form import START

from .conftest import pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Controls and cost on the left, plots that follow the slider on the right.
LEFT = ("#field-ratio", "#field-budget", "#compress", "#size-and-cost", "#measure-more")
RIGHT = ("#bars .plot", "#continuation", "#budget-curve .plot")
BOX = "input[type=number]"
POINT = """ratio => {
  const p = document.querySelector('#budget-curve .js-plotly-plot');
  const { xaxis, yaxis } = p._fullLayout, box = p.getBoundingClientRect();
  const curve = p.data.find(trace => trace.mode === 'lines+markers');
  const i = curve.x.findIndex(x => Math.abs(x - ratio) < 1e-9);
  return [box.x + xaxis._offset + xaxis.d2p(curve.x[i]),
    box.y + yaxis._offset + yaxis.d2p(curve.y[i])]; }"""
# Opacity of a plot, multiplied by that of its parents.
OPACITY = """id => { let seen = 1;
  for (let e = document.querySelector(`#${id} .plot`); e; e = e.parentElement)
    seen *= getComputedStyle(e).opacity;
  return seen; }"""
PLOTS = ("bars", "budget-curve", "network")


@pytest.fixture(scope="module")
def laptop(browser, server):
    with pages(browser, server.url) as open_workbench:
        workbench = open_workbench("?tab=Allocation", ready=False, width=1440, height=900)
        workbench.allocation()
        workbench.wait_for_plot("budget-curve")
        yield workbench


@pytest.fixture
def cockpit(laptop):
    """Return a page of laptop size with a plan of uneven ranks and its live figures."""
    laptop.evaluate("window.scrollTo(0, 0)")
    if laptop.value("field-policy") != "marginal":
        laptop.choose("field-policy", "marginal")
    laptop.at_ratio(START.ratio)
    measured(laptop)
    laptop.locator("#continuation .continued").wait_for()
    return laptop


def measured(workbench):
    """Wait until all live figures are measured."""
    pending = workbench.locator("#size-and-cost [data-known='False']")
    workbench.until(lambda: not pending.count(), "the live figures are not measured")
    workbench.settled()


def test_controls_readout_and_bars_fit_a_laptop_screen(cockpit):
    fold = cockpit.locator("#expert-allocation > button.label-wrap")
    fold.click()
    cockpit.locator("#field-policy").wait_for(state="hidden")
    cockpit.evaluate("window.scrollTo(0, 0)")
    boxes = {selector: cockpit.locator(selector).bounding_box() for selector in (*LEFT, *RIGHT)}
    for name, box in boxes.items():
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1440, name
        assert 0 <= box["y"] < box["y"] + box["height"] <= 900, name
    border = max(boxes[selector]["x"] + boxes[selector]["width"] for selector in LEFT)
    assert all(boxes[selector]["x"] >= border for selector in RIGHT)
    assert cockpit.evaluate("document.documentElement.scrollWidth") <= 1440
    fold.click()
    cockpit.see("#policies")
    for name in LEFT:  # controls and costs stay in view
        assert 0 <= cockpit.locator(name).bounding_box()["y"] < 900, name


def test_expert_settings_are_below_the_cost_of_a_plan(cockpit):
    cockpit.choose("field-policy", "softmax")
    cockpit.locator("#field-temperature").wait_for()
    cockpit.answered()
    rule, readout = (
        cockpit.locator(selector).bounding_box() for selector in ("#field-rule", "#size-and-cost")
    )
    assert rule["y"] >= readout["y"] + readout["height"]
    assert readout["x"] < cockpit.locator("#bars").bounding_box()["x"]


def test_a_click_on_the_budget_curve_sets_the_budget(cockpit):
    names = [trace["name"] for trace in cockpit.plot("budget-curve")["traces"]]
    assert sum(bool(re.fullmatch(r"dense: \d+\.\d{4}", name)) for name in names) == 1
    cockpit.press_until(
        lambda: cockpit.page.mouse.click(*cockpit.evaluate(POINT, 0.35)),
        lambda: cockpit.locator(f"#field-ratio {BOX}").input_value() == "0.35",
        "a click on the curve does not set the budget",
    )
    cockpit.shows_ratio(0.35)
    cockpit.until(lambda: abs(marked_ratio(cockpit) - 0.35) < 0.01, "the plan is not marked")


def marked_ratio(workbench) -> float:
    """Return the share removed by the plan that the curve marks, or 0 without a mark."""
    markers = [
        trace for trace in workbench.plot("budget-curve")["traces"] if trace["name"] == "this plan"
    ]
    return markers[0]["custom"][0][0] if markers else 0.0


def changes(workbench):
    """Return the drawn change from the pinned plan by (component, layer)."""
    return {
        (name, layer): y
        for trace in workbench.plot("bars")["traces"]
        if trace["name"].startswith("Δ")
        for (layer, name, *_), y in zip(trace["custom"], trace["y"], strict=True)
    }


def test_bars_show_the_change_of_each_rank_from_a_pinned_plan(cockpit):
    before = cockpit.ranks()
    actual = cockpit.locator("#size-and-cost .actual b").inner_text()
    cockpit.click("#pin")
    cockpit.until(
        lambda: cockpit.locator("#pin").inner_text() == words.allocation.UNPIN,
        "the plan is not pinned",
    )
    cockpit.at_ratio(0.4)
    drawn_changes = cockpit.until(lambda: changes(cockpit), "the changes are not drawn")
    after = cockpit.ranks()
    assert drawn_changes.keys() == after.keys()
    for slot, by in drawn_changes.items():
        assert (by > 0) - (by < 0) == (after[slot] > before[slot]) - (after[slot] < before[slot])
    assert min(drawn_changes.values()) < 0
    measured(cockpit)
    readout = cockpit.locator("#size-and-cost").inner_text()
    assert words.allocation.PINNED_PREDICTED in readout
    assert actual in readout
    assert re.search(r"this plan: \+\d+\.\d\d% ± \d+\.\d\d% on the same tokens", readout)
    cockpit.click("#pin")
    cockpit.until(lambda: not changes(cockpit), "the plan is still pinned")
    assert cockpit.locator("#pin").inner_text() == words.allocation.PIN
    cockpit.until(
        lambda: words.allocation.WITH_UNIFORM in cockpit.locator("#size-and-cost").inner_text(),
        "the ranks are not compared with uniform ones again",
    )


def test_cache_size_follows_the_context_length(cockpit):
    cell = cockpit.locator("#size-and-cost .cell.cache")
    assert numbers.count(CONTEXT) in cell.inner_text()
    size = cell.locator("b").inner_text()
    cockpit.choose("context", words.allocation.TOKENS.format(numbers.count(CONTEXTS[-1])))
    cockpit.until(
        lambda: numbers.count(CONTEXTS[-1]) in cell.inner_text(), "the cache does not follow"
    )
    assert cell.locator("b").inner_text() != size
    cockpit.at_ratio(0.3)
    assert numbers.count(CONTEXTS[-1]) in cell.inner_text()


def type_number(workbench, elem_id: str, number: str):
    """Type a number, leave the box, and return the value that the box and its slider show."""
    box = workbench.locator(f"#{elem_id} {BOX}")
    box.fill(number)
    box.press("Tab")
    workbench.answered()
    slider = workbench.locator(f"#{elem_id} input[type=range]").first
    displayed_numbers = [field.input_value() for field in (box, slider) if field.count()]
    assert len({float(number_text) for number_text in displayed_numbers}) == 1
    return float(displayed_numbers[0])


def test_a_number_outside_its_range_is_reported_and_replaced_by_the_nearest_value(cockpit):
    error_note = cockpit.locator("#size-and-cost .note.error")
    for number, nearest in (("2", 0.995), ("-1", 0.005), ("0.99", 0.99)):
        assert type_number(cockpit, "field-ratio", number) == nearest
        if number != "0.99":
            refused = f"Size reduction is {number}, outside the range 0.005 to 0.995"
            assert refused in error_note.inner_text()
        caption = cockpit.locator("#bars .plot-head span").inner_text()
        summary = cockpit.locator("#size-and-cost").inner_text()
        assert f"{nearest:.1%} of" in caption or "more than this method can remove" in summary
    assert type_number(cockpit, "field-ratio", "0.2") == 0.2
    cockpit.shows_ratio(0.2)
    assert error_note.count() == 0
    assert cockpit.evaluate(OPACITY, "bars") == 1


def test_temperature_and_rank_outside_their_ranges_are_reported(cockpit):
    cockpit.choose("field-policy", "softmax")
    cockpit.page.wait_for_selector("#field-temperature", state="visible")
    cockpit.answered()
    assert type_number(cockpit, "field-temperature", "-3") > 0
    error_text = cockpit.locator("#size-and-cost .note.error").inner_text()
    assert "Temperature is -3, but must be positive" in error_text
    assert cockpit.locator("#field-rule input").is_checked()
    assert type_number(cockpit, "field-temperature", "50") == 50
    assert not cockpit.locator("#field-rule input").is_checked()
    assert cockpit.recipe()["temperature"] == 50
    rank = float(cockpit.locator("#slot-rank input").input_value())
    assert type_number(cockpit, "slot-rank", "9999") == rank
    assert "ranks go from" in cockpit.locator(".toast-body").inner_text()


def test_the_plan_is_projected_onto_a_listed_and_a_pasted_architecture(cockpit):
    cockpit.open(words.allocation.WHAT_IF)
    table = cockpit.locator("#what-if-sizes table")

    def fitting() -> list[str]:
        """Return the rows that state whether the dense and the compressed model fit a card."""
        return table.locator("tr", has_text="fits in").all_inner_texts()

    cockpit.choose("what-if-shape", "Llama-3-70B")
    cockpit.until(lambda: "70\u202f" in table.inner_text(), "the sizes of 70 B are not shown")
    assert [row.split("\t")[0] for row in fitting()] == [f"fits in {size} GB" for size in CARDS]
    assert fitting()[-1].split("\t")[1] == "no"  # 141 GB dense
    config = json.dumps(MODEL_SHAPES["Qwen2.5-7B"])
    cockpit.type_into("what-if-config", config)
    cockpit.until(
        lambda: fitting()[-1].split("\t")[1:] == ["yes", "yes"], "the 7 B model does not fit"
    )
    assert "qwen2 (28 layers)" in cockpit.locator("#what-if-sizes").inner_text()


POSITIONS = """() => {
  const slider = document.querySelector('#field-temperature .log-slider'),
    [mark, over] = slider.children;
  return [(mark.offsetLeft + 1 - 8) / (slider.clientWidth - 16), over.value / over.max]; }"""


def test_the_temperature_slider_is_logarithmic_and_marks_the_rule_of_thumb(cockpit):
    cockpit.choose("field-policy", "softmax")
    over = cockpit.locator("#field-temperature .log-slider input")
    over.wait_for()
    cockpit.locator("#field-rule input").check()
    cockpit.answered()
    plain = cockpit.locator("#field-temperature input[type=range]").first
    low, high = (float(plain.get_attribute(name)) for name in ("min", "max"))
    mark, thumb = cockpit.evaluate(POSITIONS)
    assert mark == pytest.approx(thumb, abs=0.03)  # the slider is at the rule of thumb
    uneven, even = temperature_at(cockpit, 0.2), temperature_at(cockpit, 0.8)
    for share, value in ((0.2, uneven), (0.8, even)):
        assert value == pytest.approx(low * (high / low) ** share, rel=0.1, abs=2 * low)
    assert not cockpit.locator("#field-rule input").is_checked()
    assert cockpit.recipe()["temperature"] == even
    over.press("ArrowLeft")
    cockpit.answered()
    assert low < cockpit.recipe()["temperature"] < even
    cockpit.locator("#field-rule input").check()
    cockpit.until(
        lambda: abs(cockpit.evaluate(POSITIONS)[1] - mark) < 0.03,
        "the slider does not return to the mark",
    )


def temperature_at(workbench, share: float) -> float:
    """Click the logarithmic slider at a share of its length, and return the temperature."""
    box = workbench.locator("#field-temperature .log-slider").bounding_box()
    x = box["x"] + 8 + share * (box["width"] - 16)
    before = workbench.plot("bars")["drawn"]
    workbench.page.mouse.click(x, box["y"] + box["height"] / 2)
    workbench.until(lambda: workbench.plot("bars")["drawn"] > before, "the bars do not follow")
    workbench.answered()
    return float(workbench.locator(f"#field-temperature {BOX}").input_value())


@pytest.mark.soak
def test_plots_of_the_previous_model_are_dimmed_until_redrawn(open_page):
    cockpit = open_page()
    cockpit.allocation()
    for name in PLOTS:
        cockpit.see(f"#{name}")
        cockpit.wait_for_plot(name)
        assert cockpit.evaluate(OPACITY, name) == 1
    cockpit.choose("field-model", "demo-opt")
    caption = cockpit.locator("#bars .plot-head span")
    for name in PLOTS:
        cockpit.until(
            lambda name=name: cockpit.evaluate(OPACITY, name) < 0.5, f"{name} is not dimmed"
        )
    assert "demo-llama" in caption.inner_text()
    summary = cockpit.locator("#size-and-cost")
    assert markup.escape(words.spectra.NO_FACTORS) in markup.escape(summary.inner_text())
    cockpit.click("#analyse")
    cockpit.until(lambda: "demo-opt" in caption.inner_text(), "the new model is not drawn")
    cockpit.until(lambda: cockpit.evaluate(OPACITY, "bars") == 1, "the bars are still dimmed")


def test_the_beginning_of_the_chosen_text_is_shown_before_calibration(open_page):
    cockpit = open_page()
    cockpit.choose("field-data", "python-docs")
    details = cockpit.locator("#text-note details")
    cockpit.until(
        lambda: "The text begins" in (details.text_content() if details.count() else ""),
        "the beginning of the text is not shown",
    )
    words = details.locator("summary").get_attribute("title")
    assert len(words) > 100
    details.locator("summary").click()
    assert words in " ".join(details.locator("p").inner_text().split())
    assert not cockpit.evaluate("tests.busy()")  # no job was started


def test_a_gray_placeholder_is_shown_until_the_bars_are_drawn(open_page):
    held, free = [], []

    def hold(route):
        route.continue_() if free else held.append(route)

    workbench = open_page(ready=False, hold=hold)
    workbench.tab("Allocation")
    skeleton = workbench.locator("#bars .plot.awaited")
    skeleton.wait_for()
    assert skeleton.bounding_box()["height"] > 150
    free.append(True)
    for route in held:
        route.continue_()
    workbench.allocation()
    assert skeleton.count() == 0
