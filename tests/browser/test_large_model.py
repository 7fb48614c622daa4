"""The page on 80 layers, 8192 wide: a click loads a single thinned cell."""

import pytest
from page_server import Server

from .conftest import stop
from .page import Workbench, visit
from .test_curves import click_cell

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def large(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    server = Server(folder, folder / "cache", "scripts/large_model.py")
    workbench = Workbench(visit(browser, server.url))
    workbench.analyzed()
    yield workbench
    workbench.page.context.close()
    stop(server)


def test_a_click_loads_one_cell(large):
    large.looked()  # the requests of the start are answered
    received = []
    wire = large.page.context.new_cdp_session(large.page)
    wire.send("Network.enable")
    wire.on("Network.dataReceived", lambda message: received.append(message["dataLength"]))
    click_cell(large, 57, "mlp")
    large.answered()
    large.until(lambda: received, "the click loads nothing")
    print(f"a click loads {sum(received):,} bytes")
    assert sum(received) < 150_000
    traces = large.until(lambda: large.plot("spectrum")["traces"], "the spectrum is not drawn")
    assert [trace["name"] for trace in traces] == ["Activation-aware", "Raw weight"]
    assert all(100 < len(trace["y"]) <= 500 for trace in traces)


def test_bars_of_a_large_model_follow_the_slider(large):
    large.allocation()
    for ratio in (0.25, 0.3):
        large.at_ratio(ratio)
    assert len(large.plot("bars")["traces"][1]["y"]) == 80
