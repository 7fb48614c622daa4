"""The browser that shows the page is told to ask no other host for anything."""

import pytest

pytestmark = pytest.mark.browser


def test_the_server_allows_no_other_host(browser, server):
    page = browser.new_page()
    policy = page.goto(server.url).headers["content-security-policy"]
    page.close()
    assert "default-src 'self'" in policy
    assert "img-src 'self' data: blob:" in policy
    assert "http" not in policy
