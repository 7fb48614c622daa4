"""Texts of lists and boxes fit into them."""

import pytest

pytestmark = pytest.mark.browser

# Pixels between the end of the box of a list and its arrow, for each visible list
ROOM = """[...document.querySelectorAll('.secondary-wrap:has(.icon-wrap) > input')]
  .filter((box) => box.checkVisibility())
  .map((box) => box.parentElement.querySelector('.icon-wrap').getBoundingClientRect().left
    - box.getBoundingClientRect().right + parseFloat(getComputedStyle(box).paddingRight))"""
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


@pytest.mark.parametrize("width", [390, 1440])
def test_small_fields_show_their_texts(open_page, width):
    workbench = open_page(width=width)
    workbench.experiment("Sweep")
    workbench.open("Prune layers")
    workbench.locator("#slice-name").wait_for()
    assert workbench.evaluate(CUT) == []
