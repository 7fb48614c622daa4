"""HTML in any text a person, a file or a model gives: the browser asks no other host for it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from .page import PATIENCE

pytestmark = pytest.mark.browser
TABS = ("Spectra", "Allocation", "Compress", "Compare", "Runs & export")
OPEN_ALL = """() => document.querySelectorAll('button.label-wrap:not(.open)')
  .forEach(button => button.click())"""
FIELDS = "input[type=text]:visible, input:not([type]):visible, textarea:visible"


@pytest.fixture
def other_host():
    """The address of another host, and what it was asked for."""
    asked_for = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked_for.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked_for
    server.shutdown()


@pytest.fixture
def unguarded(browser, server):
    """A page whose browser ignores the policy of the server: what is escaped must do alone."""
    context = browser.new_context(bypass_csp=True, viewport={"width": 1360, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(server.url)
    page.wait_for_selector("#heatmap .js-plotly-plot")
    yield page
    context.close()


def test_the_server_allows_no_other_host(browser, server):
    page = browser.new_page()
    policy = page.goto(server.url).headers["content-security-policy"]
    page.close()
    assert "default-src 'self'" in policy
    assert "img-src 'self' data: blob:" in policy
    assert "http" not in policy


def test_no_text_field_makes_the_browser_ask_another_host(unguarded, other_host, tmp_path):
    page, (url, asked_for) = unguarded, other_host
    filled = 0
    for tab in TABS:
        page.get_by_role("tab", name=tab, exact=True).click()
        page.evaluate(OPEN_ALL)
        page.wait_for_timeout(500)
        for number, field in enumerate(page.query_selector_all(FIELDS)):
            if not field.is_visible() or not field.is_editable():
                continue
            where = f"{url}/{tab[:3]}-{number}"
            before = field.input_value()
            field.fill(f'<img src="{where}-html"> ![x]({where}-markdown)')
            field.press("Enter")
            field.press("Tab")
            page.wait_for_timeout(150)
            filled += 1
            if field.is_visible() and field.is_editable():
                field.fill(before)
                field.press("Tab")
    recipe = {"model": f'<img src="{url}/model">', "data": f'<img src="{url}/data">'}
    for number, values in enumerate((recipe, {"component_ratios": {f'<img src="{url}/part">': 1}})):
        file = tmp_path / f"recipe-{number}.json"
        file.write_text(json.dumps(values))
        page.locator("#load-recipe input[type=file]").first.set_input_files(file)
        page.wait_for_timeout(1000)
    page.get_by_role("tab", name="Compress", exact=True).click()
    page.wait_for_timeout(1000)
    assert filled > 10
    assert asked_for == []
