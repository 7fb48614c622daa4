"""Texts of lists and boxes fit into them, and nothing covers plots."""

import pytest
from page_server import PATIENCE

pytestmark = pytest.mark.browser

# Pixels between the end of the box of a list and its arrow, for each visible list
ROOM = """[...document.querySelectorAll('.secondary-wrap:has(.icon-wrap) > input')]
  .filter((box) => box.checkVisibility())
  .map((box) => box.parentElement.querySelector('.icon-wrap').getBoundingClientRect().left
    - box.getBoundingClientRect().right + parseFloat(getComputedStyle(box).paddingRight))"""
# Ids of the visible lists whose choice is longer than the box
CUT_CHOICES = """[...document.querySelectorAll('.secondary-wrap > input')]
  .filter((box) => box.checkVisibility())
  .filter((box) => {
    const style = getComputedStyle(box), pen = document.createElement('canvas').getContext('2d');
    pen.font = style.font;
    const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return pen.measureText(box.value).width > room;
  })
  .map((box) => box.closest('[id]').id)"""
# Ids of the visible small fields whose text is longer than the box
CUT = """[...document.querySelectorAll('.fields :is(select, input[type=text])')]
  .filter((box) => box.checkVisibility())
  .filter((box) => {
    const style = getComputedStyle(box), pen = document.createElement('canvas').getContext('2d');
    const text = box.selectedOptions ? box.selectedOptions[0].text : box.value || box.placeholder;
    pen.font = style.font;
    const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return pen.measureText(text).width > room;
  })
  .map((box) => box.closest('.field').id)"""


def test_the_arrow_of_a_list_covers_no_text(open_page):
    workbench = open_page()
    assert min(workbench.evaluate(ROOM)) >= 0
    workbench.allocation()
    assert min(workbench.evaluate(ROOM)) >= 0


def test_lists_of_a_narrow_page_show_their_choices(open_page):
    workbench = open_page(width=390)
    workbench.locator("#measure input").wait_for()
    assert workbench.evaluate(CUT_CHOICES) == []


def test_a_touch_screen_has_no_buttons_over_plots(browser, server):
    context = browser.new_context(
        is_mobile=True, has_touch=True, viewport={"width": 390, "height": 844}
    )
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#heatmap .js-plotly-plot[data-drawn]")
    buttons = page.locator(".modebar-btn").count()
    context.close()
    assert buttons == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_small_fields_show_their_texts(open_page, width):
    workbench = open_page(width=width)
    workbench.experiment("Sweep")
    workbench.open("Prune layers")
    workbench.locator("#slice-name").wait_for()
    assert workbench.evaluate(CUT) == []
