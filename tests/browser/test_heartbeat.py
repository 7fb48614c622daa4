"""The rate at which a page polls the server, by a clock that the test moves."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from workbench.base.assets import script

pytestmark = [pytest.mark.browser]

# What Gradio gives the script, and what became of it.
STAGE = """script => {
  window.asked = 0; window.told = []; window.state = ['one', false]; window.unseen = false;
  Object.defineProperty(document, 'hidden', { get: () => window.unseen });
  const server = { version_now: async () => { window.asked++; return [...window.state]; } };
  new Function('server', 'trigger', script)(server, name => window.told.push(name)); }"""


@pytest.fixture
def page(browser) -> Iterator[Page]:
    page = browser.new_page()
    page.clock.install()
    page.evaluate(STAGE, script("heartbeat.js"))
    page.clock.run_for(10_000)  # what follows the opening of a page
    yield page
    page.close()


def count_requests(page: Page, seconds: int) -> int:
    """How often the page asks within so many seconds of its clock."""
    before = page.evaluate("asked")
    page.clock.run_for(1000 * seconds)
    return page.evaluate("asked") - before


def ticks(page: Page, seconds: int) -> int:
    page.evaluate("told.length = 0")
    page.clock.run_for(1000 * seconds)
    return page.evaluate("told.filter(one => one === 'tick').length")


def test_a_page_at_rest_asks_seldom_and_one_where_something_runs_every_second(page):
    assert 10 <= count_requests(page, 60) <= 13
    page.evaluate("state[1] = true")
    page.clock.run_for(5_000)
    assert 55 <= count_requests(page, 60) <= 61


def test_what_is_new_is_told_at_the_next_question(page):
    assert ticks(page, 60) <= 4
    page.evaluate("state[0] = 'two'")
    assert ticks(page, 6) == 1


def test_after_a_person_did_something_it_looks_every_second(page):
    page.clock.run_for(1000)
    page.keyboard.press("Shift")
    assert ticks(page, 5) >= 4


def test_a_click_without_a_pointer_is_something_that_a_person_did(page):
    page.evaluate("document.body.click()")
    assert ticks(page, 5) >= 4


def test_a_page_that_nobody_sees_asks_nothing_until_it_is_seen_again(page):
    page.evaluate("unseen = true")
    page.clock.run_for(5_000)
    assert count_requests(page, 600) == 0
    before = page.evaluate("asked")
    page.evaluate("unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
    assert page.evaluate("asked") == before + 1
    assert 10 <= count_requests(page, 60) <= 13
