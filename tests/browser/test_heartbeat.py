"""The rate at which a page polls the server, by a clock that the test moves."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from workbench.base.assets import script

pytestmark = [pytest.mark.browser]

# The interface that Gradio provides to the script, and records of its calls.
STAGE = """script => {
  window.asked = 0; window.triggered = []; window.state = ['one', false]; window.unseen = false;
  Object.defineProperty(document, 'hidden', { get: () => window.unseen });
  const server = { version_now: async () => { window.asked++; return [...window.state]; } };
  new Function('server', 'trigger', script)(server, name => window.triggered.push(name)); }"""


@pytest.fixture
def page(browser) -> Iterator[Page]:
    page = browser.new_page()
    page.clock.install()
    page.evaluate(STAGE, script("heartbeat.js"))
    page.clock.run_for(10_000)  # the polls after a page opens
    yield page
    page.close()


def count_requests(page: Page, seconds: int) -> int:
    """Return the number of polls within so many seconds of the page's clock."""
    before = page.evaluate("asked")
    page.clock.run_for(1000 * seconds)
    return page.evaluate("asked") - before


def ticks(page: Page, seconds: int) -> int:
    page.evaluate("triggered.length = 0")
    page.clock.run_for(1000 * seconds)
    return page.evaluate("triggered.filter(name => name === 'tick').length")


def test_a_page_polls_every_few_seconds_at_rest_and_every_second_during_a_job(page):
    assert 10 <= count_requests(page, 60) <= 13
    page.evaluate("state[1] = true")
    page.clock.run_for(5_000)
    assert 55 <= count_requests(page, 60) <= 61


def test_changes_reach_the_page_with_the_next_poll(page):
    assert ticks(page, 60) <= 4
    page.evaluate("state[0] = 'two'")
    assert ticks(page, 6) == 1


def test_a_page_polls_every_second_after_a_key_press(page):
    page.clock.run_for(1000)
    page.keyboard.press("Shift")
    assert ticks(page, 5) >= 4


def test_a_page_polls_every_second_after_a_click_by_script(page):
    page.evaluate("document.body.click()")
    assert ticks(page, 5) >= 4


def test_a_hidden_page_does_not_poll_until_it_is_visible_again(page):
    page.evaluate("unseen = true")
    page.clock.run_for(5_000)
    assert count_requests(page, 600) == 0
    before = page.evaluate("asked")
    page.evaluate("unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
    assert page.evaluate("asked") == before + 1
    assert 10 <= count_requests(page, 60) <= 13
