"""Plots of spectra and allocation: their content, their speed, and their agreement with the
downloads.
"""

import csv
import io
import json
import re
from itertools import pairwise

import pytest
from PIL import Image

import lrcore
from workbench import words
from workbench.state import continuation, live

from .conftest import pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TABS = ("Spectra", "Allocation", "Compress", "Compare", "Runs & export", "Experiments")
CELL = """([layer, name]) => {
  const p = document.querySelector('#heatmap .js-plotly-plot');
  const {xaxis, yaxis} = p._fullLayout, b = p.getBoundingClientRect();
  return [b.x + xaxis._offset + xaxis.d2p(layer), b.y + yaxis._offset + yaxis.d2p(name)]; }"""

# Plotly's click event: for two real clicks in a row, Plotly reports the first cell twice.
CELLS = """() => {
  const [{ z }] = document.querySelector('#heatmap .js-plotly-plot').data;
  return z.flat().filter((value) => value !== null).length; }"""
CLICK = """([x, y]) => document.querySelector('#heatmap .js-plotly-plot')
  .emit('plotly_click', {points: [{x, y, customdata: [x, y]}]})"""


def click_cell(workbench, layer, name):
    """Click a cell of the heatmap, and wait for its spectrum."""
    workbench.tab("Spectra")
    workbench.wait_for_plot("heatmap")
    heading = workbench.locator(f"#cell-heading h3[data-layer='{layer}'][data-name='{name}']")
    workbench.press_until(
        lambda: workbench.page.mouse.click(*workbench.evaluate(CELL, [layer, name])),
        heading.count,
        f"{layer}.{name} is not shown",
    )


def test_a_click_on_a_cell_shows_its_spectrum(workbench):
    workbench.tab("Spectra")
    workbench.wait_for_plot("spectrum")
    for layer, name in ((3, "v"), (1, "mlp"), (4, "qk"), (0, "down")):
        before = workbench.plot("spectrum")["traces"]
        click_cell(workbench, layer, name)
        workbench.until(
            lambda before=before: workbench.plot("spectrum")["traces"] not in ([], before),
            f"the spectrum of {layer}.{name} is not drawn",
        )


def test_the_last_of_two_clicks_in_a_row_counts(workbench):
    """Gradio drops an event while it handles the previous one, or repeats that one afterwards."""
    click_cell(workbench, 2, "ov")
    workbench.page.mouse.move(1, 1)  # a cell under the pointer is previewed when the map is redrawn
    workbench.looked()
    for first, last in (((5, "q"), (1, "k")), ((4, "o"), (0, "gate"))):
        # wait until the server has the first click, because two requests in flight may overtake
        # each other
        clicked = f'"custom":{json.dumps(first, separators=(",", ":"))}'
        with workbench.page.expect_response(
            lambda answer, clicked=clicked: clicked in (answer.request.post_data or "")
        ):
            workbench.evaluate(CLICK, list(first))
        workbench.evaluate(CLICK, list(last))
        layer, name = last
        heading = f"#cell-heading h3[data-layer='{layer}'][data-name='{name}']"
        workbench.locator(heading).wait_for()
        workbench.answered()  # no late answer to the first click replaces it
        assert workbench.locator(heading).count(), name


def test_the_scale_switches_between_logarithmic_and_linear(workbench):
    click_cell(workbench, 2, "ov")
    assert workbench.plot("spectrum")["ytype"] == "log"
    workbench.locator("#scale").get_by_text("linear").click()
    workbench.until(
        lambda: workbench.plot("spectrum")["ytype"] == "linear", "the axis stays logarithmic"
    )
    workbench.until(
        lambda: "loses" in workbench.locator("#cell-heading").inner_text(),
        "the loss of the plan is not shown",
    )


def test_a_head_can_be_selected(workbench):
    click_cell(workbench, 2, "qk")
    workbench.choose("head", "Head 1")
    workbench.until(
        lambda: "head 1" in workbench.locator("#cell-heading").inner_text(),
        "the head is not shown",
    )


def test_bars_follow_the_slider(workbench):
    workbench.allocation()
    seen = []
    for ratio in (0.25, 0.3, 0.4):
        workbench.at_ratio(ratio)
        seen.append(workbench.ranks())
    assert all(sum(higher.values()) > sum(lower.values()) for higher, lower in pairwise(seen))


def test_a_typed_temperature_turns_off_the_rule_of_thumb(workbench):
    workbench.allocation()
    workbench.choose("field-policy", "softmax")
    workbench.page.wait_for_selector("#field-temperature", state="visible")
    workbench.answered()  # the slider has the range of this model
    assert workbench.locator("#field-rule input").is_checked()
    slider = workbench.locator("#field-temperature input[type=range]").first
    highest = float(slider.get_attribute("max"))
    before = workbench.ranks()
    workbench.set_range("field-temperature", highest)
    workbench.until(
        lambda: not workbench.locator("#field-rule input").is_checked(),
        "the rule of thumb stays on",
    )
    workbench.until(
        lambda: workbench.ranks() not in ({}, before),
        "the bars do not follow the temperature",
    )
    workbench.answered()
    assert workbench.locator(".toast-body").count() == 0
    workbench.choose("field-policy", "uniform")
    workbench.answered()


@pytest.mark.soak
def test_policies_that_measure_show_their_time_and_wait_for_the_button(workbench):
    """Probes of the default method ship with the page; other methods have to be measured."""
    workbench.allocation()
    summary = workbench.locator("#size-and-cost")
    run_button = summary.locator(".ask button")
    for method, policies in (("a3", ("fisher", "mix")), ("svd", ("probed", "sensitivity"))):
        workbench.choose("field-method", method)
        workbench.until(
            lambda method=method: workbench.plotted("qk" if method == "a3" else "gate"),
            f"{method} is not drawn",
        )
        workbench.until_idle()
        for policy in policies:
            workbench.choose("field-policy", policy)
            run_button.filter(has_text="Run (").wait_for()
            assert f"{policy} assigns ranks from measurements of this model" in summary.inner_text()
            assert not workbench.evaluate("tests.busy()")
            workbench.choose("field-policy", "uniform")
            workbench.until(lambda: not run_button.count(), f"{policy} still offers to measure")
            workbench.answered()
            assert not workbench.evaluate("tests.busy()")
    workbench.choose("field-method", "a3")
    workbench.until(lambda: workbench.plotted("qk"), "a3 is not drawn again")


def test_a_policy_measures_on_request_and_stops_when_another_is_chosen(workbench):
    workbench.allocation()
    workbench.choose("field-policy", "fisher")
    summary = workbench.locator("#size-and-cost")
    summary.locator(".ask button", has_text="Run (").wait_for()
    assert "ranks of uniform" in [trace["name"] for trace in workbench.plot("bars")["traces"]]
    assert not workbench.evaluate("tests.busy()")
    workbench.click("#size-and-cost .ask button")
    workbench.until(
        lambda: "are running (see above)" in summary.inner_text(), "nothing is measured"
    )
    workbench.choose("field-policy", "uniform")
    workbench.until(lambda: not summary.locator(".before").count(), "the plan is still dimmed")
    workbench.until(lambda: not workbench.evaluate("tests.busy()"), "the measurement does not stop")


def as_scripts_do(workbench) -> None:
    """Choose the default method and policy of a recipe."""
    workbench.allocation()
    for name in ("method", "policy"):
        workbench.choose(f"field-{name}", getattr(lrcore.Recipe(), name))
    workbench.answered()


def drag_ratio(workbench, shares, pause: int = 0) -> float:
    """Drag the slider of the budget to these shares of its width, with a pause in ms after each,
    and return the final ratio once it is drawn.
    """
    workbench.allocation()
    workbench.answered()
    slider = workbench.locator("#field-ratio input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    workbench.page.mouse.move(box["x"] + shares[0] * box["width"], y)
    workbench.page.mouse.down()
    for share in shares:
        workbench.page.mouse.move(box["x"] + share * box["width"], y)
        workbench.page.wait_for_timeout(pause)  # the pace of a hand, not a wait
    workbench.page.mouse.up()
    ratio = float(slider.input_value())
    workbench.shows_ratio(ratio)
    return ratio


def test_after_a_drag_the_bars_show_the_last_ratio(workbench, server):
    as_scripts_do(workbench)
    ratio = drag_ratio(workbench, [0.2 + 0.01 * step for step in range(40)])
    assert ratio > 0.4
    answer = server.client().predict({"ratio": ratio}, api_name="/allocate")
    assert workbench.ranks() == {
        (row["component"], row["layer"]): row["rank"] for row in answer["ranks"]
    }


def test_zoom_is_preserved_when_the_slider_moves(workbench):
    workbench.allocation()
    workbench.answered()
    box = workbench.locator("#bars .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    full_range = workbench.plot("bars")["x"]
    workbench.page.mouse.move(box["x"] + 0.3 * box["width"], y)
    workbench.page.mouse.down()
    workbench.page.mouse.move(box["x"] + 0.7 * box["width"], y, steps=5)
    workbench.page.mouse.up()
    workbench.until(lambda: workbench.plot("bars")["x"] != full_range, "the plot does not zoom")
    zoomed, draw_count = (workbench.plot("bars")[name] for name in ("x", "drawn"))
    workbench.at_ratio(0.45)
    workbench.until(
        lambda: workbench.plot("bars")["drawn"] > draw_count, "the bars are not drawn again"
    )
    assert workbench.plot("bars")["x"] == zoomed
    workbench.page.mouse.dblclick(box["x"] + 0.5 * box["width"], y)


@pytest.mark.parametrize("ratio", [0.2, 0.37])
def test_the_total_is_the_sum_of_the_downloaded_ranks(workbench, ratio):
    workbench.allocation()
    workbench.at_ratio(ratio)
    workbench.open("Ranks by layer")
    rows = list(csv.DictReader(io.StringIO(workbench.download("ranks-csv"))))
    parameters, dense_parameters = (
        sum(int(row[name]) for row in rows) for name in ("parameters", "dense_parameters")
    )
    assert parameters == int(
        workbench.locator("#size-and-cost .cells").first.get_attribute("data-parameters")
    )
    assert parameters <= (1 - ratio) * dense_parameters


def test_a_ctrl_click_adds_a_second_layer_to_the_plots(workbench):
    click_cell(workbench, 2, "qk")
    workbench.answered()
    workbench.locator("#heatmap").scroll_into_view_if_needed()
    workbench.page.keyboard.down("Control")
    workbench.page.mouse.click(*workbench.evaluate(CELL, [4, "qk"]))
    workbench.page.keyboard.up("Control")

    def trace_names(plot: str) -> list[str]:
        return [trace["name"] for trace in workbench.plot(plot).get("traces", [])]

    workbench.until(lambda: trace_names("energy") == ["layer 4", "layer 2"], "layer 4 is not drawn")
    assert trace_names("spectrum") == ["layer 4", "layer 2"]
    assert "layer 4" in workbench.locator("#beside").inner_text()
    click_cell(workbench, 3, "qk")
    workbench.until(lambda: "layer 4" not in trace_names("spectrum"), "layer 4 is still drawn")


@pytest.fixture(scope="module")
def narrow(browser, server):
    """Return a dark page on a phone, and the list of addresses that it requests."""
    seen = []
    settings = {"width": 390, "height": 844, "watch": lambda request: seen.append(request.url)}
    with pages(browser, server.url) as open_workbench:
        yield open_workbench("?__theme=dark", **settings), seen


def test_a_plot_of_a_dark_page_has_light_text_and_a_transparent_background(narrow):
    page, _ = narrow
    figure = page.plot("heatmap")
    assert figure["paper"] == figure["background"] == "rgba(0,0,0,0)"
    rgb = page.evaluate(
        "c => c.match(/[0-9.]+/g).slice(0, 3).map(Number)", to_rgb(page, figure["font"])
    )
    assert sum(rgb) > 450
    assert page.locator(".modebar [data-title*='hare']").count() == 0


def test_cells_contain_numbers_only_if_there_is_room(narrow):
    page, _ = narrow
    numbers = "document.querySelectorAll('#heatmap .textpoint').length"
    cells = page.evaluate(CELLS)
    page.choose("measure", words.spectra.MEASURES["increase"][0])
    page.until(lambda: page.evaluate(numbers) == 0, "the numbers overlap")
    page.page.set_viewport_size({"width": 1360, "height": 844})
    page.until(lambda: 0 < page.evaluate(numbers) < cells, "the numbers do not appear")
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.until(lambda: page.evaluate(numbers) == 0, "the numbers do not disappear")
    page.choose("measure", words.spectra.MEASURES["effective_rank"][0])
    page.until(lambda: page.evaluate(CELLS) == cells, "the ranks are not drawn again")
    page.answered()


def test_a_plot_is_saved_at_column_width_with_its_origin(narrow):
    page, _ = narrow
    made_of = "demo-llama · calibrated on stories: 64 windows × 256 tokens (random, seed 0)"
    assert made_of in page.locator("#heatmap .plot-head span").inner_text()
    page.click("#heatmap .plot-head summary")
    picture = page.saved(page.locator("#heatmap [data-save=svg][data-mm='85']"))
    assert 'width="85mm"' in picture[:400]
    words = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", picture))
    assert made_of in words
    assert "<image" not in picture  # vector graphics only
    assert picture.count('fill="rgb(') == page.evaluate(CELLS)
    page.click("#heatmap .plot-head summary")
    with page.page.expect_download() as waiting:
        page.click("#heatmap [data-save=png][data-mm='85']")
    with Image.open(waiting.value.path()) as dots:
        assert dots.width == round(85 / 25.4 * 300)
        assert round(dots.info["dpi"][0]) == 300
        # white even if the page is dark
        assert dots.convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_no_tab_is_wider_than_a_narrow_page_or_requests_another_host(narrow, server):
    page, seen = narrow
    page.until(lambda: page.locator(".sidebar.open").count() == 0, "the sidebar covers the page")
    for title in TABS:
        page.tab(title)
        page.settled()
        page.until(
            lambda: page.evaluate("document.documentElement.scrollWidth") <= 391,
            f"{title} is wider than the page",
        )
    assert any("plotly" in url for url in seen)
    allowed_origins = (server.url, f"ws://127.0.0.1:{server.port}", "blob:", "data:")
    assert [url for url in seen if not url.startswith(allowed_origins)] == []


# Name, caption, height of the axes and hidden height of the legend of each visible plot.
ROOM = """[...document.querySelectorAll('.js-plotly-plot')]
  .filter((plot) => plot.checkVisibility() && plot._fullLayout)
  .map((plot) => [plot.closest('.block').id,
    plot.closest('.block').querySelector('.plot-head span').textContent,
    plot._fullLayout._size.h,
    (plot._fullLayout.legend?._height ?? 0) - (plot._fullLayout.legend?._effHeight ?? 0)])"""


def test_plots_of_a_narrow_page_state_their_origin_and_have_room(narrow):
    page, _ = narrow
    seen = set()
    for title in TABS[:2]:
        page.tab(title)
        lowest = {"Spectra": "energy", "Allocation": "budget-curve"}[title]
        page.see(f"#{lowest}")
        page.wait_for_plot(lowest)
        page.settled()
        for name, made_of, height, hidden in page.evaluate(ROOM):
            seen.add(name)
            assert "demo-llama · calibrated on stories" in made_of, name
            assert height > 50, name  # even with a legend of many lines
            assert hidden <= 0, name  # a legend that scrolls covers the plot
    assert seen >= {"heatmap", "spectrum", "energy", "bars", "budget-curve"}


def test_on_a_narrow_page_the_bars_are_below_the_slider(narrow):
    page, _ = narrow
    page.allocation()
    slider, bars, readout = (
        page.locator(selector).bounding_box()["y"]
        for selector in ("#field-ratio", "#bars", "#size-and-cost")
    )
    assert slider < bars < readout


def to_rgb(workbench, color):
    script = (
        "c => { const e = document.createElement('i'); e.style.color = c; document.body.append(e); "
        "return getComputedStyle(e).color; }"
    )
    return workbench.evaluate(script, color)


def test_only_the_intended_endpoints_are_public(server):
    named = server.client().view_api(return_format="dict")["named_endpoints"]
    intended = {"allocate", "analyze", "compare", "compress", "evaluate"}
    intended |= {"methods", "models", "runs"}
    assert {*named} == {f"/{name}" for name in intended}


def test_the_live_figure_belongs_to_the_last_slider_position(workbench):
    as_scripts_do(workbench)
    ratio = drag_ratio(workbench, [0.6 - 0.015 * step for step in range(20)], pause=40)
    cell = workbench.locator("#size-and-cost .actual")
    workbench.until(
        lambda: cell.get_attribute("data-known") == "True", "the figure is not measured"
    )
    model, recipe = lrcore.load("demo-llama"), lrcore.Recipe(ratio=ratio)
    small = lrcore.compress(model, recipe)
    requested = {"data": recipe.data, "samples": live.WINDOWS, "seq_len": live.LENGTH}
    assert perplexity_of(cell) == f"{lrcore.evaluate(small, **requested).perplexity:.4f}"
    assert f"dense {lrcore.evaluate(model, **requested).perplexity:.4f}" in cell.inner_text()
    assert "held-out stories" in cell.inner_text()
    workbench.locator("#measure-more").click()
    workbench.until(
        lambda: "64 windows" in cell.inner_text(), "the larger measurement does not arrive"
    )
    requested["samples"] = live.MORE_WINDOWS
    assert perplexity_of(cell) == f"{lrcore.evaluate(small, **requested).perplexity:.4f}"
    continuation_panel, typed_prompt = workbench.locator("#continuation .continued"), "Lily saw a"
    for prompt in (words.allocation.PROMPT, typed_prompt):
        expected_words = lrcore.generate(small, prompt, continuation.NEW_TOKENS).split()
        workbench.type_into("continued-prompt", prompt)
        workbench.until(
            lambda expected=expected_words: (
                expected == words_of(continuation_panel.locator(".tokens").last)
            ),
            f"not {' '.join(expected_words)}",
        )
    assert (
        words_of(continuation_panel.locator(".tokens").first)
        == lrcore.generate(model, typed_prompt, continuation.NEW_TOKENS).split()
    )
    assert workbench.locator("#continuation .stale").count() == 0


def perplexity_of(cell):
    return cell.get_attribute("data-perplexity")


# Whether the continuation belongs to the displayed ranks.
IS_CURRENT = """document.querySelector('#continuation [data-of]')?.dataset.of
  === document.querySelector('#size-and-cost .actual').dataset.plan"""
# Counts frames in which an outdated continuation is dimmed, and frames in which it is not.
WATCH = """() => {
  window.dimmed = 0; window.wrong = 0;
  (function look() {
    const continued = document.querySelector('#continuation [data-of]');
    const actual = document.querySelector('#size-and-cost .actual');
    if (continued.dataset.of !== actual.dataset.plan)
      if (getComputedStyle(continued).opacity < 0.5) window.dimmed++; else window.wrong++;
    requestAnimationFrame(look);
  })(); }"""


def test_an_outdated_continuation_is_dimmed_until_the_new_one_arrives(workbench):
    cell = workbench.locator("#size-and-cost .actual")
    ratio = drag_ratio(workbench, [0.3])
    workbench.until(lambda: workbench.evaluate(IS_CURRENT), f"the text is not continued at {ratio}")
    workbench.evaluate(WATCH)
    drag_ratio(workbench, [0.32 + 0.02 * step for step in range(10)], pause=100)
    workbench.until(
        lambda: cell.get_attribute("data-known") == "True" and workbench.evaluate(IS_CURRENT),
        "the text is not continued at the last position",
    )
    assert workbench.evaluate("wrong") == 0
    assert workbench.evaluate("dimmed") > 0


def words_of(locator):
    return locator.inner_text().replace("↵", " ").split()


def test_figures_measured_before_the_tab_is_opened_are_shown_when_it_opens(open_page):
    page = open_page("?method=a3&policy=uniform&ratio=0.47")
    page.answered()  # the figure is known
    page.allocation()
    cell = page.locator("#size-and-cost .actual")
    page.until(lambda: cell.get_attribute("data-known") == "True", "the figure does not arrive")
    page.locator("#continuation .continued").wait_for()
