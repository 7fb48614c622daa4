"""One page cannot fill the queue of events: what it asks on top is refused, others are answered."""

import asyncio
import threading
import time
from contextlib import ExitStack

import gradio as gr
import httpx
import pytest
from page_server import launched

from workbench import waiting
from workbench.quick_blocks import Blocks


@pytest.fixture(scope="module")
def busy():
    """A server whose one event waits until it is let go; the address, and the gate."""
    gate = threading.Event()

    def slow() -> int:
        gate.wait(60)
        return 1

    with gr.Blocks(analytics_enabled=False) as demo:
        number = gr.Number()
        gr.Button().click(slow, None, number, concurrency_limit=None)
        demo.queue()
    waiting.limit(demo._queue)
    url = launched(demo, ssr_mode=False)
    yield url.rstrip("/"), gate, demo._queue
    gate.set()
    demo.close()


def join(http, session):
    asked = {"data": [], "fn_index": 0, "session_hash": session}
    return http.post("/gradio_api/queue/join", json=asked)


def test_a_page_that_asks_too_much_is_refused_and_others_are_not(busy, monkeypatch):
    url, gate, queue = busy
    with httpx.Client(base_url=url, timeout=60) as http:
        taken = [join(http, "greedy").status_code for _ in range(waiting.OWN)]
        assert taken == [200] * waiting.OWN
        refused = join(http, "greedy")
        assert (refused.status_code, refused.json()["detail"]) == (
            503,
            waiting.FULL.format(waiting.OWN),
        )
        assert join(http, "another").status_code == 200
        monkeypatch.setattr(queue, "max_size", 0)
        assert join(http, "a third").status_code == 503
        monkeypatch.undo()
        gate.set()
        with http.stream("GET", "/gradio_api/queue/data?session_hash=another") as lines:
            assert any("process_completed" in line for line in lines.iter_lines())
        while waiting.waiting(queue, "greedy"):
            gate.wait(0.01)
        assert join(http, "greedy").status_code == 200


def test_a_page_that_asks_too_much_past_the_queue_is_refused_and_others_are_not(monkeypatch):
    beside = waiting.Beside()
    with ExitStack() as held:
        for _ in range(waiting.OWN):
            held.enter_context(beside.place("greedy"))
        with pytest.raises(gr.Error, match=waiting.FULL.format(waiting.OWN)[:20]):
            held.enter_context(beside.place("greedy"))
        with beside.place("another"):
            pass
        monkeypatch.setattr(waiting, "MOST", waiting.OWN)
        with pytest.raises(gr.Error):
            held.enter_context(beside.place("another"))
    with beside.place("greedy"):
        pass


def test_a_refusal_past_the_queue_is_a_sentence(monkeypatch):
    with Blocks(analytics_enabled=False) as demo:
        number = gr.Number()
        gr.Button().click(lambda: 1, None, number, queue=False)
    url = launched(demo, ssr_mode=False)
    asked = {"data": [], "fn_index": 0, "session_hash": "one"}
    with httpx.Client(base_url=url, timeout=60) as http:
        answers = [http.post("/gradio_api/run/predict", json=asked)]
        monkeypatch.setattr(waiting, "OWN", 0)
        answers.append(http.post("/gradio_api/run/predict", json=asked))
    demo.close()
    assert [one.status_code for one in answers] == [200, 500]
    assert [answers[0].json()["data"], answers[1].json()["error"]] == [[1], waiting.FULL.format(0)]


def test_answers_that_nobody_fetches_are_dropped(busy):
    """A page that asks and vanishes costs nothing for long; one that is there loses nothing."""
    url, gate, queue = busy
    gate.set()
    unread, kept = waiting.Unread(queue), queue.pending_messages_per_session

    def drop(now: float) -> None:
        asyncio.run(unread.drop(now))

    with httpx.Client(base_url=url, timeout=60) as http:
        assert join(http, "vanished").status_code == 200
        while waiting.waiting(queue, "vanished"):
            time.sleep(0.01)
        drop(1000.0)
        drop(1000.0 + 0.9 * waiting.UNREAD)
        assert kept["vanished"].qsize()
        assert join(http, "there").status_code == 200
        while waiting.waiting(queue, "there"):
            time.sleep(0.01)
        drop(1000.0 + waiting.UNREAD)
        assert "vanished" not in kept
        assert "vanished" not in queue.pending_event_ids_session
        with http.stream("GET", "/gradio_api/queue/data?session_hash=there") as lines:
            assert any("process_completed" in line for line in lines.iter_lines())
        drop(1000.0 + 3 * waiting.UNREAD)
        assert join(http, "vanished").status_code == 200  # it comes back


def test_the_queue_looks_at_itself_often_while_events_come(busy, monkeypatch):
    """An event waits until the next look."""
    url, gate, queue = busy
    gate.set()
    monkeypatch.setattr(waiting, "PAUSE", 0.3)
    with httpx.Client(base_url=url, timeout=60) as http:
        assert join(http, "a fourth").status_code == 200
        assert queue.sleep_when_free == waiting.AWAKE
        end = time.monotonic() + 60
        while queue.sleep_when_free != waiting.IDLE:
            assert time.monotonic() < end
            time.sleep(0.05)
