"""One selected slot on the whole page, ranks set by hand, and addresses that open where they
were copied.
"""

import pytest

from .test_curves import click_cell, shown_ranks

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BAR = """([layer, name]) => {
  const p = document.querySelector('#bars .js-plotly-plot');
  const l = p._fullLayout, b = p.getBoundingClientRect();
  const axis = l[l.meta.axes[name].replace('y', 'yaxis')];
  return [b.x + l.xaxis._offset + l.xaxis.d2p(layer), b.y + axis._offset + axis.d2p(0.03)]; }"""
MARKED = """id => { const p = document.querySelector('#' + id + ' .js-plotly-plot');
  return (p._fullLayout.shapes || [])
    .filter(s => s.name === 'selected').map(s => [s.x0 + 0.5, s.yref, s.y0]); }"""


def click_bar(workbench, layer, name):
    workbench.allocation()
    workbench.locator("#bars").scroll_into_view_if_needed()
    workbench.page.mouse.click(*workbench.evaluate(BAR, [layer, name]))


def slot(workbench):
    return workbench.locator("#slot-rank label, #slot-rank span").first.inner_text()


def selected(workbench, layer, name):
    workbench.until(
        lambda: f"layer {layer} · {name}" in workbench.locator("#slot-row").inner_text(),
        15,
        f"{layer}.{name} is not selected",
    )


def test_a_slot_selected_anywhere_is_selected_everywhere(workbench):
    click_cell(workbench, 3, "ov")
    workbench.page.wait_for_selector("#cell-heading h3[data-layer='3'][data-name='ov']")
    workbench.until(
        lambda: workbench.evaluate(MARKED, "heatmap") == [[3, "y", 0.5]],
        5,
        "the cell is not marked",
    )
    heatmap = workbench.locator("#heatmap").inner_html()
    assert "cbfill" in heatmap
    assert (
        "url(&quot;http" not in heatmap
    )  # the address has changed: a colour bar filled by the old one would be blank
    workbench.allocation()
    selected(workbench, 3, "ov")
    workbench.until(
        lambda: workbench.evaluate(MARKED, "bars") == [[3, "y2", 0]], 5, "the bar is not marked"
    )
    assert workbench.evaluate(MARKED, "policy-curves")[0][0] == 3
    click_bar(workbench, 5, "mlp")
    selected(workbench, 5, "mlp")
    workbench.tab("Spectra")
    workbench.page.wait_for_selector("#cell-heading h3[data-layer='5'][data-name='mlp']")
    assert workbench.evaluate(MARKED, "heatmap")[0][0] == 5


def test_a_rank_set_by_hand_can_be_undone_and_redone(workbench):
    click_bar(workbench, 2, "qk")
    selected(workbench, 2, "qk")
    before = shown_ranks(workbench)
    handle = workbench.locator("#bars .handle")
    handle.focus()
    for _ in range(3):
        workbench.page.keyboard.press("ArrowUp")
    workbench.until(
        lambda: shown_ranks(workbench)["qk", 2] == before["qk", 2] + 6,
        15,
        "the keys do not move the rank",
    )  # pairs: steps of 2
    changed = shown_ranks(workbench)
    assert changed != before
    workbench.until(
        lambda: "1 set by hand" in workbench.locator("#hand-changes").inner_text(),
        15,
        "the change is not told",
    )
    assert workbench.recipe()["overrides"] == {"2.qk": changed["qk", 2]}
    workbench.click("#undo:not([disabled])")  # a burst of keys is one step
    workbench.until(lambda: shown_ranks(workbench) == before, 15, "undo does not go back")
    workbench.click("#redo:not([disabled])")
    workbench.until(lambda: shown_ranks(workbench) == changed, 15, "redo does not come forth again")
    workbench.click("#clear-overrides:not([disabled])")
    workbench.until(
        lambda: shown_ranks(workbench) == before, 15, "the ranks set by hand are not cleared"
    )


def test_a_bar_can_be_dragged_and_a_drag_is_one_step(workbench):
    click_bar(workbench, 1, "mlp")
    selected(workbench, 1, "mlp")
    before = shown_ranks(workbench)
    box = workbench.locator("#bars .handle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    workbench.page.mouse.move(x, y)
    workbench.page.mouse.down()
    for down in range(5, 30, 5):
        workbench.page.mouse.move(x, y + down)
        workbench.page.wait_for_timeout(60)
    workbench.page.mouse.up()
    workbench.until(
        lambda: shown_ranks(workbench)["mlp", 1] < before["mlp", 1],
        15,
        "the bar does not follow the mouse",
    )
    workbench.page.wait_for_timeout(1500)
    workbench.click("#undo:not([disabled])")
    workbench.until(lambda: shown_ranks(workbench) == before, 15, "the drag is not one step")


def test_a_rank_can_be_typed(workbench):
    click_bar(workbench, 4, "ov")
    selected(workbench, 4, "ov")
    box = workbench.locator("#slot-rank input")
    box.fill("11")
    box.press("Enter")
    workbench.until(
        lambda: shown_ranks(workbench)["ov", 4] == 11, 15, "the typed rank is not taken"
    )
    workbench.click("#release:not([disabled])")
    workbench.until(
        lambda: shown_ranks(workbench)["ov", 4] != 11, 15, "the policy does not take over again"
    )


def test_the_address_follows_and_opens_the_same_place(workbench, open_page):
    click_bar(workbench, 4, "ov")
    selected(workbench, 4, "ov")
    address = workbench.until(
        lambda: "component=ov" in workbench.page.url and workbench.page.url,
        5,
        "the address does not follow",
    )
    assert "layer=4" in address
    assert "tab=Allocation" in address
    other = open_page(address.split("/", 3)[3], ready=False)
    other.page.wait_for_selector("#bars .js-plotly-plot")
    assert other.locator("#tabs [role=tab][aria-selected=true]").inner_text() == "Allocation"
    selected(other, 4, "ov")
    other.until(
        lambda: other.evaluate(MARKED, "bars") == [[4, "y2", 0]], 10, "the bar is not marked"
    )


def test_the_address_holds_the_run_that_is_open(workbench, open_page):
    workbench.start("to be linked", samples=2)
    workbench.page.wait_for_selector(".job.done >> text=a3")
    workbench.tab("Runs & export")
    workbench.locator("#runs-table [role=gridcell]", has_text="to be linked").first.click()
    workbench.until(
        lambda: "to be linked" in workbench.locator("#run-heading").inner_text(),
        20,
        "the run does not open",
    )
    address = workbench.until(
        lambda: "run=" in workbench.page.url and workbench.page.url,
        5,
        "the address does not follow",
    )
    other = open_page(address.split("/", 3)[3], ready=False)
    other.page.wait_for_selector("#run-heading h3")
    assert "to be linked" in other.locator("#run-heading").inner_text()
    assert other.locator("#tabs [role=tab][aria-selected=true]").inner_text() == "Runs & export"
