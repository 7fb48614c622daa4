"""Requests of the page without input: none to another host, no frame while it is at rest."""

import pytest

from .page import PATIENCE, SCRIPT, Workbench, visit

pytestmark = pytest.mark.browser


def test_the_server_allows_no_other_host(browser, server):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    policy = page.goto(server.url).headers["content-security-policy"]
    page.close()
    assert "default-src 'self'" in policy
    assert "img-src 'self' data: blob:" in policy
    assert "http" not in policy


COUNT_FRAMES = """
window.framesAsked = 0;
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = draw => { window.framesAsked += 1; return ask(draw); };
"""


def test_a_page_at_rest_asks_for_no_frame(browser, server):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.add_init_script(SCRIPT + COUNT_FRAMES)
    page.goto(server.url)
    page.wait_for_selector("#heatmap .js-plotly-plot")
    workbench = Workbench(page)

    def frames_in_half_a_second():
        before = page.evaluate("framesAsked")
        page.wait_for_timeout(500)
        return page.evaluate("framesAsked") - before

    workbench.until(lambda: frames_in_half_a_second() == 0, "something is drawn anew")
    assert page.evaluate("framesAsked") > 0
    page.close()


def test_an_answer_outstanding_when_the_stream_ends_still_comes(browser, server):
    """Gradio ends the stream of answers after the last one, though a question may be on its way."""
    page = visit(browser, server.url)
    workbench = Workbench(page)
    workbench.analyzed()
    workbench.settled()
    ended = []

    def end_one(route):
        if ended:
            return route.continue_()
        ended.append(route.request.url)
        end = 'data: {"msg": "close_stream"}\n\n'
        return route.fulfill(body=end, content_type="text/event-stream")

    page.route("**/queue/data?*", end_one)
    page.keyboard.press("Shift")  # the page looks at once what is new
    workbench.until(lambda: ended, "the page does not ask")
    looks = page.evaluate("questions.looks.asked")
    workbench.until(
        lambda: page.evaluate("questions.looks.answered") >= looks, "the page waits for ever"
    )
    page.context.close()
