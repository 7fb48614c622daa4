"""The patches of Gradio, and evidence that Gradio still needs them."""

import asyncio
import json
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

import gradio as gr
import httpx
import pytest
from gradio.queueing import Queue
from gradio.state_holder import SessionState, StateHolder
from gradio_client import Client
from page_client import PageClient, PageEvent
from page_server import PATIENCE, served

from workbench.server import gradio_patches as patches
from workbench.server.gradio_patches import CheckedBlocks


def page_with_button(kind, listener, queue=True):
    """Return a page with a button that calls the listener."""
    with kind(analytics_enabled=False) as page:
        number = gr.Number()
        gr.Button().click(listener, None, number, concurrency_limit=None, queue=queue)
    return page


@pytest.fixture(scope="module")
def busy():
    """Return the address and the queue of a server, and the event for which its listener waits."""
    release = threading.Event()

    def slow() -> int:
        release.wait(60)
        return 1

    page = page_with_button(gr.Blocks, slow)
    patches.limit_queue(page)
    with served(page) as url:
        yield url, release, page._queue
        release.set()


def join(http, page):
    event = {"data": [], "fn_index": 0, "session_hash": page}
    return http.post("/gradio_api/queue/join", json=event)


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_too_many_events_of_a_page_are_refused_and_other_pages_are_served(busy, monkeypatch):
    url, release, queue = busy
    with httpx.Client(base_url=url, timeout=60) as http:
        statuses = [join(http, "greedy").status_code for _ in range(patches.MAX_PAGE_EVENTS)]
        assert statuses == [200] * patches.MAX_PAGE_EVENTS
        answer = join(http, "greedy")
        sentence = patches.TOO_MANY.format(patches.MAX_PAGE_EVENTS)
        assert (answer.status_code, answer.json()["detail"]) == (503, sentence)
        assert join(http, "another").status_code == 200
        monkeypatch.setattr(queue, "max_size", 0)
        assert join(http, "a third").status_code == 503
        monkeypatch.undo()
        release.set()
        with http.stream("GET", "/gradio_api/queue/data?session_hash=another") as lines:
            assert any("process_completed" in line for line in lines.iter_lines())
        wait_until(lambda: not patches.events_of(queue, "greedy"))
        assert join(http, "greedy").status_code == 200


def test_events_outside_the_queue_are_limited(monkeypatch):
    page = CheckedBlocks(analytics_enabled=False)
    with ExitStack() as running:
        for _ in range(patches.MAX_PAGE_EVENTS):
            running.enter_context(page._counted("greedy"))
        with pytest.raises(gr.Error, match="30 events of this page"):
            running.enter_context(page._counted("greedy"))
        with page._counted("another"):
            pass
        monkeypatch.setattr(patches, "MAX_EVENTS", patches.MAX_PAGE_EVENTS)
        with pytest.raises(gr.Error):
            running.enter_context(page._counted("another"))
    with page._counted("greedy"):
        pass


def test_a_refusal_outside_the_queue_has_a_message(monkeypatch):
    page = page_with_button(CheckedBlocks, lambda: 1, queue=False)
    event = {"data": [], "fn_index": 0, "session_hash": "page"}
    with served(page) as url, httpx.Client(base_url=url, timeout=60) as http:
        answers = [http.post("/gradio_api/run/predict", json=event)]
        monkeypatch.setattr(patches, "MAX_PAGE_EVENTS", 0)
        answers.append(http.post("/gradio_api/run/predict", json=event))
    assert [answer.status_code for answer in answers] == [200, 500]
    assert answers[0].json()["data"] == [1]
    assert answers[1].json()["error"] == patches.TOO_MANY.format(0)


def test_unread_answers_are_dropped_after_a_timeout(busy):
    """A page that reads its answers loses none."""
    url, release, queue = busy
    release.set()
    answers, pending = patches.UnreadAnswers(queue), queue.pending_messages_per_session

    def drop(current_time: float) -> None:
        asyncio.run(answers.drop_old(current_time))

    with httpx.Client(base_url=url, timeout=60) as http:
        assert join(http, "vanished").status_code == 200
        wait_until(lambda: not patches.events_of(queue, "vanished"))
        drop(1000.0)
        drop(1000.0 + 0.9 * patches.ANSWER_TIMEOUT)
        assert pending["vanished"].qsize()
        assert join(http, "there").status_code == 200
        wait_until(lambda: not patches.events_of(queue, "there"))
        drop(1000.0 + patches.ANSWER_TIMEOUT)
        assert "vanished" not in pending
        assert "vanished" not in queue.pending_event_ids_session
        with http.stream("GET", "/gradio_api/queue/data?session_hash=there") as lines:
            assert any("process_completed" in line for line in lines.iter_lines())
        drop(1000.0 + 3 * patches.ANSWER_TIMEOUT)
        assert join(http, "vanished").status_code == 200  # the page returns


@contextmanager
def page_closed_with_two_streams(patch=None):
    """Serve a page that has two streams of its answers open, and close both."""
    release = threading.Event()
    page = page_with_button(gr.Blocks, lambda: release.wait(60))
    if patch:
        patch(page)
    answers, queue = "/gradio_api/queue/data?session_hash=page", page._queue
    with served(page) as url:
        with httpx.Client(base_url=url, timeout=60) as http:
            assert join(http, "page").status_code == 200
            with http.stream("GET", answers), http.stream("GET", answers):
                messages = queue.pending_messages_per_session["page"]
                wait_until(lambda: len(messages._getters) == 2)
        wait_until(lambda: "page" not in queue.pending_messages_per_session)
        yield
        release.set()


def logged_errors(caplog):
    return [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_page_may_close_with_two_streams_of_answers(caplog):
    with page_closed_with_two_streams(patches.limit_queue):
        pass
    assert not logged_errors(caplog)


def test_the_queue_is_checked_often_while_events_arrive(busy, monkeypatch):
    url, release, queue = busy
    release.set()
    monkeypatch.setattr(patches, "IDLE_AFTER", 0.3)
    with httpx.Client(base_url=url, timeout=60) as http:
        assert join(http, "a fourth").status_code == 200
        assert queue.sleep_when_free == patches.ACTIVE_INTERVAL
        wait_until(lambda: queue.sleep_when_free == patches.IDLE_INTERVAL)


def pages(*names):
    holder = StateHolder()
    holder.set_blocks(page_with_button(gr.Blocks, lambda: 1))
    for name in names:
        assert holder[name] is holder[name]
    return holder


def test_closed_pages_are_dropped_and_open_pages_are_kept():
    holder = pages("closed", "open", "came back")
    holder["closed"].is_closed = holder["came back"].is_closed = True
    current_time = datetime.now()
    patches.drop_closed_pages(holder, current_time)
    assert len(holder.session_data) == 3
    holder.time_last_used["came back"] = current_time + timedelta(minutes=1)
    patches.drop_closed_pages(holder, current_time + patches.PAGE_TIMEOUT)
    assert {*holder.session_data} == {*holder.time_last_used} == {"open", "came back"}
    patches.drop_closed_pages(holder, current_time + patches.PAGE_TIMEOUT + timedelta(minutes=2))
    assert {*holder.session_data} == {"open"}


def arguments_of(kind, component, value):
    """Return the arguments of a listener for a value of its component."""
    with kind(analytics_enabled=False) as page:
        component = component()
        gr.Button().click(lambda value: None, component, None)
    event = next(iter(page.fns.values()))
    return asyncio.run(page.preprocess_data(event, [value], SessionState(page)))


@pytest.mark.parametrize(
    ("component", "value", "argument"),
    [
        (gr.HTML, "<b>a</b>", "<b>a</b>"),
        (lambda: gr.Dropdown(["a3"]), "a3", "a3"),
        (gr.Checkbox, True, True),
        (lambda: gr.Slider(0, 1), 5, 5),  # out of range; the listener corrects it
        (lambda: gr.Number(precision=0), 0.5, 0.5),
        (gr.Textbox, None, ""),  # the browser has not drawn the text box yet
    ],
)
def test_a_listener_gets_the_value_that_was_sent(component, value, argument):
    assert arguments_of(CheckedBlocks, component, value) == [argument]


@pytest.mark.parametrize(
    ("component", "value"),
    [(gr.Textbox, 5), (gr.Checkbox, "x"), (lambda: gr.Dropdown(["a3"]), "b"), (gr.Number, "x")],
)
def test_a_value_of_a_wrong_type_is_refused(component, value):
    with pytest.raises(gr.Error, match="A field got a value that it cannot hold"):
        arguments_of(CheckedBlocks, component, value)


# Each of the following tests fails if Gradio no longer needs the patch, which can then be removed.


def test_unpatched_gradio_accepts_values_of_a_wrong_type():
    assert arguments_of(gr.Blocks, gr.Checkbox, "x") == ["x"]


def test_unpatched_gradio_does_not_limit_the_events_of_a_page():
    page = page_with_button(gr.Blocks, lambda: time.sleep(5))
    page.queue(max_size=patches.MAX_EVENTS)
    with served(page) as url, httpx.Client(base_url=url, timeout=60) as http:
        count = patches.MAX_PAGE_EVENTS + 1
        assert [join(http, "greedy").status_code for _ in range(count)] == [200] * count


def test_unpatched_gradio_fails_if_a_page_closes_with_two_streams_of_answers(caplog):
    with page_closed_with_two_streams():
        wait_until(lambda: logged_errors(caplog))


def test_unpatched_gradio_keeps_the_state_of_closed_pages():
    holder = pages("closed")
    holder["closed"].is_closed = True
    holder.time_last_used["closed"] = datetime.now() - timedelta(days=1)
    holder.delete_all_expired_state()
    assert "closed" in holder.session_data


def test_unpatched_gradio_checks_its_queue_every_millisecond():
    assert isinstance(page_with_button(gr.Blocks, lambda: 1).queue()._queue, Queue)
    assert page_with_button(gr.Blocks, lambda: 1).queue()._queue.sleep_when_free <= 0.001


def test_the_description_has_what_pages_and_clients_read_and_no_more():
    """Gradio's own description has more, and both are the same page."""

    def described(kind):
        with kind(analytics_enabled=False) as page:
            with gr.Row():
                text, number = gr.Textbox(), gr.Number(label="Value")
            alone = gr.Number()
            gr.Button().click(lambda value: value, text, alone, api_visibility="private")
            gr.Button().click(lambda value: value, number, alone, api_name="public")
        return page, page.get_config_file()

    (plain_page, plain), (page, small) = described(gr.Blocks), described(CheckedBlocks)
    assert len(str(small)) < 0.7 * len(str(plain))
    kinds = [[part["type"] for part in config["components"]] for config in (plain, small)]
    assert kinds[0].count("form") == 2
    assert kinds[1] == [kind for kind in kinds[0] if kind != "form"]
    assert len(small["dependencies"]) == len(plain["dependencies"])
    endpoints = [blocks.get_api_info()["named_endpoints"] for blocks in (plain_page, page)]
    for name in ("parameters", "returns"):  # apart from examples
        types = [[value["python_type"] for value in e["/public"][name]] for e in endpoints]
        assert types[0] == types[1]
    assert [*endpoints[1]] == ["/public"]
    with_info = {part["type"] for part in small["components"] if "api_info" in part}
    assert with_info == {"number"}


def test_endpoints_share_components_and_have_the_same_description():
    def first(request: gr.Request, name: str, count: int = 3) -> dict[str, int]:
        return {name: count}

    def second(request: gr.Request, names: list[str], title: str) -> dict[str, int]:
        return {title: len(names)}

    listeners = {"first": first, "second": second}
    with gr.Blocks(analytics_enabled=False) as plain:
        for name, listener in listeners.items():
            gr.api(listener, api_name=name)
    with gr.Blocks(analytics_enabled=False) as page:
        patches.add_endpoints(listeners)

    def described(blocks):
        endpoints = blocks.get_api_info()["named_endpoints"]
        values = [
            (path, value | {"label": ""})
            for path, endpoint in endpoints.items()
            for value in (*endpoint["parameters"], *endpoint["returns"])
        ]
        return values, len(blocks.config["components"])

    (values, components), (plain_values, plain_components) = described(page), described(plain)
    assert values == plain_values
    assert (components, plain_components) == (4, 6)
    with served(page) as url, httpx.Client(base_url=url, timeout=60) as http:
        answer = http.post("/gradio_api/run/first", json={"data": ["a", 3]})
        assert answer.json()["data"] == [{"a": 3}]


def test_a_page_with_one_described_state_reads_writes_and_follows_several():
    def shout(text: str) -> str:
        return text.upper()

    with CheckedBlocks(analytics_enabled=False) as page:
        first, second, text = gr.State(1), gr.State(2), gr.Textbox()
        private = {"api_visibility": "private"}
        gr.Button().click(lambda a, b: (a + 5, b), [first, second], [second, first], **private)
        second.change(lambda a, b: f"{a} {b}", [first, second], text, **private)
        gr.api(shout)
    config = page.get_config_file()
    assert [part["type"] for part in config["components"]].count("state") == 1
    swap, follow = config["dependencies"][:2]
    with served(page) as url:
        client = PageClient(url)
        ((_, answer),) = client.send_all([PageEvent(swap["id"], [None, None])])
        changed = json.loads(answer.text.removeprefix("data:"))["output"]["changed_state_ids"]
        assert [number for number, _ in follow["targets"]] == [second._id]
        assert second._id in changed
        ((_, answer),) = client.send_all([PageEvent(follow["id"], [None, None])])
        assert answer.data == ["2 6"]
        # the client for Python looks up the component of each number
        assert Client(url, verbose=False).predict("x", api_name="/shout") == "X"


def test_scripts_of_a_page_are_a_file_that_browsers_keep():
    page = CheckedBlocks(analytics_enabled=False)
    with served(page) as url, httpx.Client(base_url=url, timeout=60) as http:
        document = http.get("/").text
        (address,) = re.findall(r'<script src="[.](/page-scripts[.]js[?]\w+)"></script>', document)
        assert document.index(address) < document.index('type="module"')
        answer = http.get(address)
        assert "immutable" in answer.headers["cache-control"]
        assert "function attachPlot(" in answer.text
        assert "attachPlot(element" not in str(page.get_config_file()["head"])
