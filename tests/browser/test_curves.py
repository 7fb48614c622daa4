"""Spectra and allocation: what is drawn, how fast, and that the numbers agree with the
downloads.
"""

import csv
import io
from itertools import pairwise

import pytest

import lrcore
from workbench import live

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TABS = ("Spectra", "Allocation", "Compress", "Compare", "Runs & export")
CELL = """([layer, name]) => {
  const p = document.querySelector('#heatmap .js-plotly-plot');
  const {xaxis, yaxis} = p._fullLayout, b = p.getBoundingClientRect();
  return [b.x + xaxis._offset + xaxis.d2p(layer), b.y + yaxis._offset + yaxis.d2p(name)]; }"""

# The perplexity of the ranks on show, that of uniform ones, and what is said of the two; nothing
# before the ranks are called harmful.
HURTS = """() => {
  const actual = document.querySelector('#size-and-cost .actual b');
  const against = document.querySelector('#size-and-cost .against.hurts');
  return actual && against
    && [actual.innerText, against.querySelector('b').innerText, against.innerText]; }"""
RANKED = """() => [...document.querySelectorAll('#ranking tr')].map(
  row => [...row.querySelectorAll('td')].map(cell => cell.innerText)).filter(row => row.length)"""


def click_cell(workbench, layer, name):
    """Click a cell of the heatmap, and wait until its spectrum is shown."""
    workbench.tab("Spectra")
    workbench.drawn("heatmap")
    heading = workbench.locator(f"#cell-heading h3[data-layer='{layer}'][data-name='{name}']")
    workbench.press_until(
        lambda: workbench.page.mouse.click(*workbench.evaluate(CELL, [layer, name])),
        heading.count,
        f"{layer}.{name} is not shown",
    )


def test_no_request_leaves_the_host(open_page, server):
    seen = []
    workbench = open_page(watch=lambda request: seen.append(request.url))
    for title in TABS:
        workbench.tab(title)
        workbench.answered()
    assert any("plotly" in url for url in seen)
    assert [
        url
        for url in seen
        if not url.startswith((server.url, f"ws://127.0.0.1:{server.port}", "blob:", "data:"))
    ] == []


def test_a_click_on_a_cell_shows_its_spectrum(workbench):
    workbench.tab("Spectra")
    workbench.drawn("spectrum")
    for layer, name in ((3, "v"), (1, "mlp"), (4, "qk"), (0, "down")):
        before = workbench.plot("spectrum")["traces"]
        click_cell(workbench, layer, name)
        workbench.until(
            lambda before=before: workbench.plot("spectrum")["traces"] not in ([], before),
            f"the spectrum of {layer}.{name} is not drawn",
        )


def test_log_axis_and_linear_toggle(workbench):
    click_cell(workbench, 2, "ov")
    assert workbench.plot("spectrum")["ytype"] == "log"
    workbench.locator("#scale").get_by_text("linear").click()
    workbench.until(
        lambda: workbench.plot("spectrum")["ytype"] == "linear", "the axis stays logarithmic"
    )
    workbench.until(
        lambda: "keeps" in workbench.locator("#cell-heading").inner_text(),
        "what the plan keeps is not said",
    )


def test_heads_can_be_chosen(workbench):
    click_cell(workbench, 2, "qk")
    workbench.choose("head", "Head 1")
    workbench.until(
        lambda: "head 1" in workbench.locator("#cell-heading").inner_text(),
        "the head is not shown",
    )


def test_the_bars_follow_the_slider(workbench):
    workbench.allocation()
    seen = []
    for ratio in (0.25, 0.3, 0.4):
        workbench.at_ratio(ratio)
        seen.append(shown_ranks(workbench))
    assert all(sum(more.values()) > sum(less.values()) for more, less in pairwise(seen))


def test_a_temperature_takes_over_from_the_rule_of_thumb(workbench):
    workbench.allocation()
    workbench.choose("field-policy", "softmax")
    workbench.page.wait_for_selector("#field-temperature", state="visible")
    workbench.answered()  # the slider has the range of this model
    assert workbench.locator("#field-rule input").is_checked()
    highest = float(workbench.locator("#field-temperature input[type=range]").get_attribute("max"))
    before = shown_ranks(workbench)
    workbench.set_range("field-temperature", highest)
    workbench.until(
        lambda: not workbench.locator("#field-rule input").is_checked(),
        "the rule of thumb stays on",
    )
    workbench.until(
        lambda: shown_ranks(workbench) not in ({}, before),
        "the bars do not follow the temperature",
    )
    workbench.answered()
    assert workbench.locator(".toast-body").count() == 0
    workbench.choose("field-policy", "uniform")
    workbench.answered()


def shown_ranks(workbench):
    return {
        (name, layer): rank
        for trace in workbench.plot("bars")["traces"]
        if trace["custom"]
        for layer, name, rank, _ in trace["custom"]
    }


def short_calibration(workbench):
    """Few and short windows, on which surveys refit `fused` in a second."""
    workbench.open("Calibration text")
    workbench.type_into("field-samples", "16")
    workbench.type_into("field-seq_len", "64")
    workbench.click("#analyse")
    workbench.allocation()


def test_every_policy_of_every_method_is_drawn(open_page):
    workbench = open_page()
    short_calibration(workbench)
    workbench.click("#survey")
    methods = {row["name"] for row in lrcore.methods()}

    def drawn():
        plot = workbench.plot("policy-curves")
        return {trace["hover"].split(" ")[0] for trace in plot["traces"]} >= methods and plot

    figure = workbench.until(drawn, "not every method is drawn")
    workbench.until_idle()
    lines = {trace["hover"].split("<br>")[0]: trace["y"] for trace in figure["traces"]}
    assert {"a3 · uniform", "a3 · softmax", "a3 · waterfill", "svd · uniform"} <= lines.keys()
    assert all(0 < share <= 1 for line in lines.values() for share in line)
    assert (
        max(lines["a3 · uniform"]) - min(lines["a3 · uniform"])
        < 0.03
        < max(lines["a3 · softmax"]) - min(lines["a3 · softmax"])
    )


def test_methods_and_policies_are_ranked_by_what_was_measured_and_a_policy_that_hurts_is_called_so(
    open_page,
):
    """On demo-llama the dual scores starve single layers (docs/benchmarks.md)."""
    workbench = open_page()
    short_calibration(workbench)
    workbench.set_range("field-ratio", 0.3)
    workbench.choose("field-policy", "softmax_dual")
    workbench.shows_ratio(0.3)
    shown, even, words = workbench.until(
        lambda: workbench.evaluate(HURTS), "a policy that hurts is not called so"
    )
    shown, even = float(shown), float(even)
    assert f"{shown / even - 1:.1%} above uniform ones" in words
    workbench.click("#survey")
    methods = {row["name"] for row in lrcore.methods()} - {"care"}  # its ratio is one of the cache

    def ranked():
        rows = workbench.evaluate(RANKED)
        result = [(method, policy, float(value)) for method, policy, value, _ in rows]
        all_here = {method for method, _, _ in result} == methods and {
            ("a3", "softmax_dual"),
            ("a3", "uniform"),
        } <= {f[:2] for f in result}
        return result if all_here else None

    result = workbench.until(ranked, "not every method is measured")
    assert [value for _, _, value in result] == sorted(value for _, _, value in result)
    assert {f[:2]: f[2] for f in result}["a3", "softmax_dual"] == shown
    assert {f[:2]: f[2] for f in result}["a3", "uniform"] == even
    workbench.until(
        lambda: (
            "a3 with softmax_dual, shown above, is" in workbench.locator("#ranking").inner_text()
        ),
        "the worst is not named",
    )
    workbench.choose("field-policy", "uniform")
    workbench.until(
        lambda: workbench.locator("#size-and-cost .against").count() == 0,
        "uniform ranks are held against themselves",
    )


def drag_ratio(workbench, shares, pause: int = 0) -> float:
    """Drag the slider of the budget to these shares of its width, with a pause of so many ms after
    each; the ratio where it ends, once that is drawn.
    """
    workbench.allocation()
    workbench.answered()
    slider = workbench.locator("#field-ratio input[type=range]")
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    workbench.page.mouse.move(box["x"] + shares[0] * box["width"], y)
    workbench.page.mouse.down()
    for share in shares:
        workbench.page.mouse.move(box["x"] + share * box["width"], y)
        workbench.page.wait_for_timeout(pause)  # the pace of a hand; nothing is expected after it
    workbench.page.mouse.up()
    ratio = float(slider.input_value())
    workbench.shows_ratio(ratio)
    return ratio


def test_after_a_drag_the_plot_is_that_of_the_last_value(workbench, server):
    ratio = drag_ratio(workbench, [0.2 + 0.01 * step for step in range(40)])
    assert ratio > 0.4
    answer = server.client().predict({"ratio": ratio}, api_name="/allocate")
    assert shown_ranks(workbench) == {
        (row["component"], row["layer"]): row["rank"] for row in answer["ranks"]
    }


def test_zoom_survives_a_slider_change(workbench):
    workbench.allocation()
    workbench.answered()
    box = workbench.locator("#bars .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    whole = workbench.plot("bars")["x"]
    workbench.page.mouse.move(box["x"] + 0.3 * box["width"], y)
    workbench.page.mouse.down()
    workbench.page.mouse.move(box["x"] + 0.7 * box["width"], y, steps=5)
    workbench.page.mouse.up()
    workbench.until(lambda: workbench.plot("bars")["x"] != whole, "the plot does not zoom")
    zoomed, drawn = (workbench.plot("bars")[name] for name in ("x", "drawn"))
    workbench.at_ratio(0.45)
    workbench.until(lambda: workbench.plot("bars")["drawn"] > drawn, "the bars are not drawn again")
    assert workbench.plot("bars")["x"] == zoomed
    workbench.page.mouse.dblclick(box["x"] + 0.5 * box["width"], y)


@pytest.mark.parametrize("ratio", [0.2, 0.37])
def test_the_total_is_the_sum_of_the_downloaded_ranks(workbench, ratio):
    workbench.allocation()
    workbench.at_ratio(ratio)
    workbench.open("Ranks by layer")
    rows = list(csv.DictReader(io.StringIO(workbench.download("ranks-csv"))))
    kept, dense = (
        sum(int(row[name]) for row in rows) for name in ("parameters", "dense_parameters")
    )
    assert kept == int(
        workbench.locator("#size-and-cost .cells").first.get_attribute("data-parameters")
    )
    assert kept <= (1 - ratio) * dense


def test_dark_and_narrow(open_page, server):
    dark = open_page("?__theme=dark")
    figure = dark.plot("heatmap")
    assert figure["paper"] == figure["background"] == "rgba(0,0,0,0)"
    assert (
        sum(
            dark.evaluate(
                "c => c.match(/[0-9.]+/g).slice(0, 3).map(Number)", to_rgb(dark, figure["font"])
            )
        )
        > 450
    )
    assert dark.locator(".modebar [data-title*='hare']").count() == 0
    narrow = open_page("?__theme=light", width=390, height=844)
    narrow.until(
        lambda: narrow.locator(".sidebar.open").count() == 0, "the sidebar covers the page"
    )
    for title in TABS:
        narrow.tab(title)
        narrow.settled()
        narrow.until(
            lambda: narrow.evaluate("document.documentElement.scrollWidth") <= 391,
            f"{title} is wider than the page",
        )


def to_rgb(workbench, colour):
    script = (
        "c => { const e = document.createElement('i'); e.style.color = c; document.body.append(e); "
        "return getComputedStyle(e).color; }"
    )
    return workbench.evaluate(script, colour)


def test_only_the_intended_endpoints_are_public(server):
    named = server.client().view_api(return_format="dict")["named_endpoints"]
    intended = {"allocate", "analyse", "compare", "compress", "evaluate"}
    intended |= {"methods", "models", "runs"}
    assert {*named} == {f"/{name}" for name in intended}


def test_the_live_figure_is_that_of_the_last_slider_position(workbench):
    ratio = drag_ratio(workbench, [0.6 - 0.015 * step for step in range(20)], pause=40)
    cell = workbench.locator("#size-and-cost .actual")
    workbench.until(
        lambda: cell.get_attribute("data-known") == "True", "the figure is not measured"
    )
    model, recipe = lrcore.load("demo-llama"), lrcore.Recipe(ratio=ratio)
    small = lrcore.compress(model, recipe)
    requested = {"data": recipe.data, "samples": live.WINDOWS, "seq_len": live.LENGTH}
    assert cell.locator("b").inner_text() == f"{lrcore.evaluate(small, **requested).perplexity:.4f}"
    assert f"({lrcore.evaluate(model, **requested).perplexity:.4f})" in cell.inner_text()
    assert "held-out stories" in cell.inner_text()
