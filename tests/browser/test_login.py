"""The login of a page that other machines can reach."""

import pytest
from page_server import Server

from .page import visit

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def public_server(tmp_path_factory, cache):
    """Return a server with a host name and a password."""
    folder = tmp_path_factory.mktemp("others")
    server = Server(folder, cache, LRCORE_NAMES="bench.example", LRCORE_PASSWORD=PASSWORD)
    yield server
    server.stop()


def test_the_page_opens_with_the_password_only(browser, public_server):
    page = visit(browser, public_server.url)
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
