"""Requests of the page without input, to its host only, and frames of a page at rest."""

import pytest

from .page import PATIENCE, SCRIPT, Workbench, visit

pytestmark = pytest.mark.browser


def test_the_content_security_policy_allows_no_other_host(browser, server):
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


def test_a_page_at_rest_requests_no_animation_frame(browser, server):
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

    workbench.until(lambda: frames_in_half_a_second() == 0, "the page keeps drawing")
    assert page.evaluate("framesAsked") > 0
    page.close()


def test_an_answer_arrives_even_if_the_stream_ends_before_it(browser, server):
    """Gradio ends the event stream after the last answer, even if a request is on its way."""
    page = visit(browser, server.url)
    workbench = Workbench(page)
    workbench.analyzed()
    workbench.settled()
    ended = []

    def end_first(route):
        if ended:
            return route.continue_()
        ended.append(route.request.url)
        end = 'data: {"msg": "close_stream"}\n\n'
        return route.fulfill(body=end, content_type="text/event-stream")

    page.route("**/queue/data?*", end_first)
    page.keyboard.press("Shift")  # a key makes the page poll at once
    workbench.until(lambda: ended, "the page does not open a stream")
    looks = page.evaluate("questions.looks.asked")
    workbench.until(
        lambda: page.evaluate("questions.looks.answered") >= looks, "the answer never arrives"
    )
    page.context.close()
