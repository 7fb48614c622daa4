"""The clock of Gradio's loading indicator, which the page stops."""

import time

import pytest
from playwright.sync_api import Browser, Route

COUNT = """
window.frames = 0;
const request = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (draw) => { window.frames += 1; return request(draw); };
"""


def frames_at_rest(browser: Browser, url: str, with_script: bool, seconds: float) -> float:
    """Return the animation frames per second of a page at rest.

    seconds: the longest wait for a page without frames.
    """

    def without_script(route: Route) -> None:
        answer = route.fetch()
        page = answer.text().replace("String(draw).includes('performance.now()')", "false")
        route.fulfill(response=answer, body=page)

    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(COUNT)
        if not with_script:
            page.route(url + "/", without_script)
        page.goto(url + "/")
        page.wait_for_selector("#tabs", timeout=300_000)
        end, slowest = time.monotonic() + seconds, float("inf")
        while time.monotonic() < end:  # until the figures are drawn
            before = page.evaluate("window.frames")
            time.sleep(2)
            slowest = min(slowest, (page.evaluate("window.frames") - before) / 2)
            if slowest < 1:
                break
        return slowest


@pytest.mark.browser
def test_a_page_at_rest_draws_no_frames(browser, server):
    assert frames_at_rest(browser, server.url, with_script=True, seconds=120) < 1


@pytest.mark.browser
@pytest.mark.soak
def test_gradio_without_the_script_draws_frames_forever(browser, server):
    """If this fails, `FirstScripts` is no longer needed."""
    assert frames_at_rest(browser, server.url, with_script=False, seconds=20) > 5
