"""Spectra page: loss by slot against lost energy, heads, several layers, and the saved network
plot.
"""

import re
import zlib
from pathlib import Path

import pytest

from workbench import words

from .test_curves import CELL, click_cell
from .test_selection import BAR

pytestmark = [pytest.mark.browser, pytest.mark.slow]

POINT = """([layer, name]) => {
  const p = document.querySelector('#loss-against-energy .js-plotly-plot');
  const { xaxis, yaxis } = p._fullLayout, b = p.getBoundingClientRect();
  for (const { customdata, x, y } of p.data)
    for (const [i, [at, of]] of customdata.entries())
      if (at === layer && of === name)
        return [b.x + xaxis._offset + xaxis.d2p(x[i]), b.y + yaxis._offset + yaxis.d2p(y[i])];
}"""
# The slot that a plot marks while it is hovered in the other plot: layer and row of a cell,
# coordinates of a point.
HOVERED = """id => {
  const p = document.querySelector('#' + id + ' .js-plotly-plot');
  return (p._fullLayout.shapes || []).filter((shape) => shape.name === 'hovered')
    .map((shape) => id === 'heatmap'
      ? [shape.x0 + 0.5, p.data[0].y[shape.y0 + 0.5]] : [shape.xanchor, shape.yanchor]); }"""
HOVERED_BLOCKS = """() => {
  const p = document.querySelector('#network .js-plotly-plot');
  return (p._fullLayout.shapes || []).filter((shape) => shape.name === 'hovered')
    .map((shape) => shape.y0 + 0.5); }"""
# Center and width of the ring around a point.
RING = """() => {
  const ring = [...document.querySelectorAll('#loss-against-energy .shapelayer path')].at(-1);
  if (!ring) return null;
  const { x, y, width, height } = ring.getBoundingClientRect();
  return [x + width / 2, y + height / 2, width]; }"""
PANELS = """id => Object.keys(document.querySelector('#' + id + ' .js-plotly-plot')._fullLayout)
  .filter((name) => /^xaxis/.test(name)).length"""


def slots(workbench, plot: str) -> set[tuple[int, str]]:
    """Return the slots for which a plot shows a value."""
    rows = [row for trace in workbench.plot(plot)["traces"] for row in trace["custom"] or []]
    flat = [entry for row in rows for entry in (row if row and isinstance(row[0], list) else [row])]
    return {(entry[0], entry[1]) for entry in flat if len(entry) > 2 and entry[2] is not None}


def hover(workbench, script: str, slot: tuple[int, str]) -> None:
    """Move the mouse to a slot of a plot."""
    workbench.page.mouse.move(*workbench.evaluate(script, [*slot]), steps=3)


def is_ringed(workbench, slot: tuple[int, str]) -> bool:
    """Return whether the last ring is around the point of a slot."""
    ring, point = workbench.evaluate(RING), workbench.evaluate(POINT, [*slot])
    return ring == pytest.approx([*point, 18], abs=4)


def test_the_loss_of_slots_is_plotted_against_lost_energy_and_hovering_marks_the_slot(workbench):
    workbench.tab("Spectra")
    workbench.choose("measure", words.spectra.MEASURES["increase"][0])
    workbench.wait_for_plot("loss-against-energy")
    probed = slots(workbench, "loss-against-energy")
    assert probed == slots(workbench, "heatmap")
    assert {name for _, name in probed} == {"qk", "ov", "mlp"}
    workbench.locator("#loss-against-energy").evaluate(
        "plot => plot.scrollIntoView({ block: 'end', behavior: 'instant' })"
    )
    workbench.settled()
    for slot in ((1, "mlp"), (4, "qk")):
        hover(workbench, CELL, slot)
        workbench.until(lambda slot=slot: is_ringed(workbench, slot), f"{slot} has no ring")
        assert len(workbench.evaluate(HOVERED, "loss-against-energy")) == 1
        hover(workbench, POINT, slot)
        workbench.until(
            lambda slot=slot: workbench.evaluate(HOVERED, "heatmap") == [[*slot]],
            f"the cell {slot} is not marked",
        )
        assert not workbench.evaluate(HOVERED, "loss-against-energy")
    workbench.page.mouse.move(5, 5)
    workbench.until(
        lambda: not workbench.evaluate(HOVERED, "heatmap"), "the mark does not disappear"
    )
    help_text = workbench.locator("#measure-help").inner_text()
    assert re.search(r"[−-]?\d\.\d\d", help_text)  # the rank correlation
    workbench.choose("measure", words.spectra.MEASURES["effective_rank"][0])
    workbench.locator("#loss-against-energy .plot").wait_for(state="hidden")


def test_on_a_wide_window_the_curves_are_next_to_the_heatmap(workbench):
    workbench.tab("Spectra")
    workbench.wait_for_plot("energy")
    before = workbench.page.viewport_size
    for width in (1440, 1100):
        workbench.page.set_viewport_size({"width": width, "height": 900})
        workbench.settled()
        heatmap, curves = (
            workbench.locator(f"#{name}").bounding_box() for name in ("heatmap", "spectrum")
        )
        is_wide = width >= 1200
        assert (curves["x"] >= heatmap["x"] + heatmap["width"]) == is_wide
        assert (curves["y"] >= heatmap["y"] + heatmap["height"]) != is_wide
    workbench.page.set_viewport_size(before)


def test_each_head_has_a_separate_plot_on_the_same_axes(workbench):
    click_cell(workbench, 3, "qk")
    heads = workbench.evaluate(PANELS, "spectrum")
    assert heads == 1
    workbench.choose("head", words.spectra.EACH_HEAD)
    heads = workbench.until(
        lambda: (many := workbench.evaluate(PANELS, "spectrum")) > 1 and many,
        "the heads are not separated",
    )
    workbench.answered()
    assert workbench.evaluate(PANELS, "energy") == heads
    hover_lines = {trace["hover"].split("<br>")[0] for trace in workbench.plot("energy")["traces"]}
    assert hover_lines == {f"head {i}" for i in range(heads)}
    workbench.choose("head", words.spectra.ALL_HEADS)
    workbench.until(
        lambda: workbench.evaluate(PANELS, "energy") == 1, "the heads are not merged again"
    )


def test_all_layers_of_a_component_are_drawn_in_one_plot(workbench):
    click_cell(workbench, 2, "ov")
    workbench.choose_all("beside", [words.spectra.ALL_LAYERS])
    layers = {layer for layer, _ in slots(workbench, "heatmap")}
    names = {f"layer {layer}" for layer in layers}
    for plot in ("spectrum", "energy"):
        workbench.until(
            lambda plot=plot: {t["name"] for t in workbench.plot(plot)["traces"]} == names,
            f"a layer is missing in {plot}",
        )
    click_cell(workbench, 4, "ov")
    workbench.until(
        lambda: {t["name"] for t in workbench.plot("energy")["traces"]} == names,
        "the layers of the next cell are not drawn",
    )


def test_the_network_plot_is_saved_with_its_ranks(workbench):
    workbench.allocation()
    workbench.see("#network")
    workbench.wait_for_plot("network")
    workbench.click("#network .plot-head summary")
    picture = workbench.saved(workbench.locator("#network [data-save=svg][data-mm='178']"))
    words = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", picture))
    assert workbench.locator("#network .plot-head span").inner_text() in words
    assert {str(rank) for rank in workbench.ranks().values()} <= {*words.split()}
    assert 'width="178mm"' in picture[:400]


def test_a_plot_is_saved_as_pdf_with_vector_graphics_and_text(workbench):
    """A PDF for print contains no bitmaps."""
    workbench.tab("Spectra")
    workbench.choose("measure", words.spectra.MEASURES["effective_rank"][0])
    workbench.answered()
    workbench.click("#heatmap .plot-head summary")
    with workbench.page.expect_download() as waiting:
        workbench.page.click("#heatmap [data-save=pdf][data-mm='85']")
    file = Path(waiting.value.path()).read_bytes()
    assert file.startswith(b"%PDF-1.4\n")
    assert file.endswith(b"%%EOF\n")
    table = int(re.search(rb"startxref\n(\d+)", file)[1])
    begins = re.findall(rb"(\d{10}) 00000 n", file[table:])
    for number, begin in enumerate(begins, start=1):
        assert file[int(begin) :].startswith(b"%d 0 obj" % number)
    width = float(re.search(rb"/MediaBox \[0 0 ([\d.]+)", file)[1])
    assert width == pytest.approx(85 / 25.4 * 72, abs=0.01)
    stream = re.search(rb"/Length (\d+) .*?stream\n", file, re.S)
    page_content = zlib.decompress(file[stream.end() : stream.end() + int(stream[1])]).decode()
    sentence = " ".join(
        bytes.fromhex(hex_text).decode("cp1252") for hex_text in re.findall("<(.*?)>", page_content)
    )
    caption = workbench.locator("#heatmap .plot-head span").inner_text()
    assert (
        caption.split()
        == [word for word in sentence.split() if word in caption.split()][-len(caption.split()) :]
    )
    cells = len(slots(workbench, "heatmap"))
    assert page_content.count(" re\nf") >= cells
    assert b"/Image" not in file


def test_a_hovered_cell_is_previewed_until_the_pointer_leaves_it(workbench):
    workbench.tab("Spectra")
    workbench.choose("measure", words.spectra.MEASURES["effective_rank"][0])
    click_cell(workbench, 0, "qk")
    workbench.answered()
    heading, drawn = workbench.locator("#cell-heading h3"), workbench.plot("spectrum")["traces"]

    def shows(title: str) -> None:
        workbench.until(lambda: heading.inner_text() == title, f"{title} is not shown")
        workbench.answered()

    hover(workbench, CELL, (3, "ov"))
    shows("Layer 3 · ov")
    assert workbench.plot("spectrum")["traces"] != drawn
    workbench.page.mouse.move(0, 0)
    shows("Layer 0 · qk")
    assert workbench.plot("spectrum")["traces"] == drawn
    workbench.locator("#heatmap .js-plotly-plot").focus()
    workbench.page.keyboard.press("ArrowRight")
    shows("Layer 1 · qk")
    workbench.page.keyboard.press("Enter")
    workbench.locator("#cell-heading h3[data-layer='1'][data-name='qk']").wait_for()


def test_a_hovered_bar_is_marked_in_the_network_diagram(workbench):
    workbench.allocation()
    workbench.see("#network")
    workbench.wait_for_plot("network")
    workbench.see("#bars")
    workbench.settled()
    hover(workbench, BAR, (3, "mlp"))
    workbench.until(
        lambda: workbench.evaluate(HOVERED_BLOCKS) == [3], "the block of the bar is not marked"
    )
    workbench.page.mouse.move(0, 0)
    workbench.until(lambda: workbench.evaluate(HOVERED_BLOCKS) == [], "the mark stays")
