"""A page that others reach: nobody sees it without the password."""

import pytest
from page_server import Server

from .page import visit

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def reached_by_others(tmp_path_factory, cache):
    """A server with a name beyond this machine."""
    folder = tmp_path_factory.mktemp("others")
    server = Server(folder, cache, LRCORE_NAMES="bench.example", LRCORE_PASSWORD=PASSWORD)
    yield server
    server.stop()


def test_the_page_asks_for_the_password_and_opens_with_it(browser, reached_by_others):
    page = visit(browser, reached_by_others.url)
    name, password = page.locator("input[type=text]"), page.locator("input[type=password]")
    log_in = page.get_by_role("button", name="Log")
    name.fill("anybody")
    password.fill(PASSWORD + "x")
    with page.expect_response("**/login") as refused:
        log_in.click()
    assert refused.value.status == 400
    assert page.locator("#heatmap").count() == 0
    name.fill("anybody")
    password.fill(PASSWORD)
    log_in.click()
    page.locator("#heatmap").wait_for(state="attached")
    page.context.close()
