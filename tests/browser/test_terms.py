"""Explanations of terms."""

import pytest

from workbench.words.glossary import TERMS

pytestmark = [pytest.mark.browser]

HEADING = "#cell-heading h3 dfn.term"
BOXES = "['cell-heading', 'spectrum'].map((id) => document.getElementById(id).offsetTop)"


def test_terms_are_explained_at_the_pointer_by_keyboard_and_by_a_tap(open_page):
    workbench = open_page(ready=False)
    tip, term = workbench.locator("#term-tip"), workbench.locator(HEADING)
    term.wait_for()
    workbench.settled()
    positions = workbench.evaluate(BOXES)
    term.hover()
    tip.wait_for()
    assert tip.inner_text() == TERMS["QK"]
    assert workbench.evaluate(BOXES) == positions
    workbench.page.mouse.move(0, 0)
    tip.wait_for(state="hidden")
    term.focus()
    tip.wait_for()
    assert term.get_attribute("aria-describedby") == "term-tip"
    workbench.page.keyboard.press("Escape")
    tip.wait_for(state="hidden")
    term.dispatch_event("click")  # of a touch screen
    tip.wait_for()
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["y"] >= 0
