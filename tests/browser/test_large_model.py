"""The page on 80 layers, 8192 wide: a click brings one cell, thinned, and nothing of the other
layers.
"""

import pytest

from .conftest import Server
from .page import PATIENCE, Workbench
from .test_curves import click_cell

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def large(browser, tmp_path_factory, cache):
    server = Server(tmp_path_factory.mktemp("large"), cache, "scripts/large_model.py")
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(server.url)
    workbench = Workbench(page)
    workbench.analysed()
    yield workbench
    page.context.close()
    server.stop()


def test_a_click_brings_one_cell(large):
    large.page.wait_for_timeout(3000)  # until the page has all it opens with
    received = []
    wire = large.page.context.new_cdp_session(large.page)
    wire.send("Network.enable")
    wire.on("Network.dataReceived", lambda message: received.append(message["dataLength"]))
    click_cell(large, 57, "mlp")
    large.page.wait_for_selector("#cell-heading h3[data-layer='57'][data-name='mlp']")
    large.page.wait_for_timeout(2000)
    print(f"a click brings {sum(received):,} bytes")
    assert 0 < sum(received) < 150_000
    traces = large.plot("spectrum")["traces"]
    assert [trace["name"] for trace in traces] == ["Activation-aware", "Raw weight"]
    assert all(100 < len(trace["y"]) <= 500 for trace in traces)


def test_the_bars_follow_the_slider(large):
    large.allocation()
    for ratio in (0.25, 0.3):
        large.slide("field-ratio", "bars", ratio)
    assert len(large.plot("bars")["traces"][1]["y"]) == 80
