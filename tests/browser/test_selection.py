"""Selection of a slot across plots, ranks set by hand, and links to the current view."""

import pytest

from workbench import words

from .test_curves import click_cell

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BAR = """([layer, name]) => {
  const p = document.querySelector('#bars .js-plotly-plot');
  const l = p._fullLayout, b = p.getBoundingClientRect();
  const axis = l[l.meta.axes[name][0].replace('y', 'yaxis')];
  return [b.x + l.xaxis._offset + l.xaxis.d2p(layer), b.y + axis._offset + axis.d2p(0.03)]; }"""
BLOCK = """([layer, name]) => {
  const p = document.querySelector('#network .js-plotly-plot');
  p.scrollIntoView({ block: 'center', behavior: 'instant' });
  const l = p._fullLayout, b = p.getBoundingClientRect(), [x0, x1] = l.meta.columns[name];
  return [b.x + l.xaxis._offset + l.xaxis.d2p((x0 + x1) / 2),
    b.y + l.yaxis._offset + l.yaxis.d2p(layer)]; }"""
MARKED = """id => { const p = document.querySelector('#' + id + ' .js-plotly-plot');
  return (p && p._fullLayout && p._fullLayout.shapes || [])
    .filter(s => s.name === 'selected').map(s => [s.x0 + 0.5, s.yref, s.y0]); }"""
# With a frozen clock, successive keys count as one burst on any machine.
FREEZE_CLOCK = "() => { const now = Date.now(); window.now = Date.now; Date.now = () => now; }"


def click_bar(workbench, layer, name):
    """Click a bar, and wait until its slot is selected and has the handle."""
    workbench.allocation()
    workbench.locator("#bars").scroll_into_view_if_needed()
    workbench.press_until(
        lambda: workbench.page.mouse.click(*workbench.evaluate(BAR, [layer, name])),
        lambda: is_selected(workbench, layer, name),
        f"{layer}.{name} is not selected",
    )
    workbench.locator(f"#bars .handle[aria-label='Rank of layer {layer}, {name}']").wait_for()


def is_selected(workbench, layer, name) -> bool:
    return f"layer {layer} · {name}" in workbench.locator("#slot-row").inner_text()


def marked(workbench, plot: str, layer: int, *position) -> None:
    """Wait until a plot marks a layer; position: optionally the axis and the coordinate on it."""
    workbench.until(
        lambda: (
            [mark[: 1 + len(position)] for mark in workbench.evaluate(MARKED, plot)]
            == [[layer, *position]]
        ),
        f"{plot} does not mark layer {layer}",
    )


def test_a_slot_selected_in_one_plot_is_selected_in_all(workbench):
    click_cell(workbench, 3, "ov")
    marked(workbench, "heatmap", 3, "y", 0.5)
    heatmap = workbench.locator("#heatmap").inner_html()
    assert "cbfill" in heatmap
    assert (
        "url(&quot;http" not in heatmap
    )  # a color bar that refers to the old address would be blank
    workbench.allocation()
    workbench.until(lambda: is_selected(workbench, 3, "ov"), "3.ov is not selected")
    marked(workbench, "bars", 3, "y2", 0)
    workbench.see("#policies")
    marked(workbench, "policy-curves", 3)
    click_bar(workbench, 5, "mlp")
    workbench.press_until(
        lambda: workbench.page.mouse.click(*workbench.evaluate(BLOCK, [2, "mlp"])),
        lambda: is_selected(workbench, 2, "mlp"),
        "the block of the network is not selected",
    )
    marked(workbench, "bars", 2, "y3", 0)
    workbench.tab("Spectra")
    workbench.page.wait_for_selector("#cell-heading h3[data-layer='2'][data-name='mlp']")
    marked(workbench, "heatmap", 2)


def test_a_rank_set_by_hand_can_be_undone_and_redone(workbench):
    click_bar(workbench, 2, "qk")
    before = workbench.ranks()
    workbench.locator("#bars .handle").focus()
    workbench.evaluate(FREEZE_CLOCK)
    for _ in range(3):
        workbench.page.keyboard.press("ArrowDown")
    workbench.evaluate("() => { Date.now = window.now; }")
    workbench.until(
        lambda: workbench.ranks().get(("qk", 2)) == before["qk", 2] - 6,
        "the keys do not move the rank",
    )  # pairs: steps of 2
    workbench.answered()
    changed = workbench.ranks()
    assert changed["qk", 2] == before["qk", 2] - 6
    workbench.until(
        lambda: "1 set manually" in workbench.locator("#hand-changes").inner_text(),
        "the change is not counted",
    )
    assert workbench.recipe()["rank_overrides"] == {"2.qk": changed["qk", 2]}
    workbench.click("#undo:not([disabled])")  # a burst of keys is one step
    workbench.until(lambda: workbench.ranks() == before, "undo does not restore the ranks")
    workbench.click("#redo:not([disabled])")
    workbench.until(lambda: workbench.ranks() == changed, "redo does not restore the change")
    workbench.click("#clear-overrides:not([disabled])")
    workbench.until(lambda: workbench.ranks() == before, "the ranks set by hand are not cleared")


def test_a_bar_can_be_dragged_and_the_drag_is_one_undo_step(workbench):
    click_bar(workbench, 1, "mlp")
    before = workbench.ranks()
    box = workbench.locator("#bars .handle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    workbench.page.mouse.move(x, y)
    workbench.page.mouse.down()
    for down in range(5, 30, 5):
        workbench.page.mouse.move(x, y + down)
        workbench.page.wait_for_timeout(60)  # the pace of a hand, not a wait
    workbench.page.mouse.up()
    workbench.until(
        lambda: workbench.ranks().get(("mlp", 1), before["mlp", 1]) < before["mlp", 1],
        "the bar does not follow the mouse",
    )
    workbench.click("#undo:not([disabled])")
    workbench.until(lambda: workbench.ranks() == before, "the drag is not one step")


def test_a_rank_can_be_typed(workbench):
    click_bar(workbench, 4, "ov")
    workbench.answered()
    box = workbench.locator("#slot-rank input")
    box.fill("11")
    box.press("Enter")
    workbench.until(lambda: workbench.ranks().get(("ov", 4)) == 11, "the typed rank is not used")
    workbench.click("#release:not([disabled])")
    workbench.until(
        lambda: workbench.ranks().get(("ov", 4), 11) != 11,
        "the policy does not set the rank again",
    )


def copied_link(workbench) -> str:
    """Press the button next to the plan, and return the link in the clipboard."""
    workbench.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    workbench.click("#plan-address button")
    workbench.page.get_by_role("status").filter(has_text="Link copied").wait_for()
    return workbench.evaluate("navigator.clipboard.readText()")


def test_the_address_follows_the_page_and_opens_the_same_tab_and_plan(workbench, open_page):
    workbench.allocation()
    workbench.choose("field-policy", "energy")
    workbench.at_ratio(0.3)
    click_bar(workbench, 4, "ov")
    address = workbench.until(
        lambda: "component=ov" in workbench.page.url and workbench.page.url,
        "the address does not follow",
    )
    assert "layer=4" in address
    assert "tab=Allocation" in address
    workbench.until(
        lambda: {"policy=energy", "ratio=0.3"} <= {*workbench.page.url.split("?")[1].split("&")},
        "the address does not follow the plan",
    )
    address = copied_link(workbench)
    assert address == workbench.page.url
    linked = open_page(address.split("/", 3)[3], ready=False)
    linked.wait_for_plot("bars")
    linked.until(lambda: linked.open_tab() == "Allocation", "the tab is not open")
    linked.shows_ratio(0.3)
    assert linked.ranks() == workbench.ranks()
    linked.until(lambda: is_selected(linked, 4, "ov"), "4.ov is not selected")
    marked(linked, "bars", 4, "y2", 0)


def test_back_and_forward_change_the_tab_and_preserve_the_plan(open_page):
    workbench = open_page()
    for title in ("Allocation", "Compare"):
        workbench.tab(title)
    workbench.allocation()
    workbench.at_ratio(0.35)
    workbench.until(lambda: "ratio=0.35" in workbench.page.url, "the address does not follow")

    def at(title: str) -> None:
        workbench.until(lambda: workbench.open_tab() == title, f"{title} is not open")
        workbench.answered()

    for title in ("Compare", "Allocation", "Spectra"):
        workbench.page.go_back(wait_until="commit")
        at(title)
        assert "ratio=0.35" in workbench.page.url  # the current plan
    workbench.page.go_forward(wait_until="commit")
    at("Allocation")
    assert workbench.value("field-ratio") == "0.35"
    assert "tab=Allocation" in workbench.page.url


def test_the_address_contains_the_open_run(workbench, open_page):
    workbench.start("to be linked", samples=2)
    workbench.open_run("to be linked")
    address = workbench.until(
        lambda: "run=" in workbench.page.url and workbench.page.url,
        "the address does not follow",
    )
    linked = open_page(address.split("/", 3)[3], ready=False)
    heading = linked.locator("#run-heading h3")
    linked.until(lambda: heading.inner_text() == "to be linked", "the run is not open")
    linked.until(lambda: linked.open_tab() == "Runs & export", "the tab is not open")


def test_a_tab_opened_during_the_start_stays_open(open_page):
    held, free = [], []

    def hold(route):
        route.continue_() if free else held.append(route)

    workbench = open_page(ready=False, hold=hold)
    workbench.tab("Runs & export")
    workbench.until(lambda: "tab=Runs" in workbench.page.url, "the address does not follow")
    first = [*held]
    for route in first:  # later requests contain the tab of the address
        route.continue_()
    workbench.until(lambda: len(held) > len(first), "the page sends no further request")
    workbench.tab("Compress")
    free.append(True)
    for route in held[len(first) :]:
        route.continue_()
    workbench.answered()
    assert workbench.open_tab() == "Compress"


def test_a_linked_tab_has_its_content(open_page):
    """Content of a tab is made when it opens, by a click or by the address."""
    workbench = open_page("?tab=Compress", ready=False)
    workbench.until(lambda: workbench.open_tab() == "Compress", "the tab is not open")
    for panel in ("what-happens", "slice-caption", "share-caption"):
        if panel == "slice-caption":
            workbench.experiment(words.compress.REDUCE)
        panel_locator = workbench.locator(f"#{panel}")
        workbench.until(lambda shown=panel_locator: shown.inner_text().strip(), f"{panel} is empty")
    workbench.tab("Compare")
    label = workbench.locator("#answer-0 h4")
    workbench.until(lambda: "demo-llama" in label.inner_text(), "the model is not named")
