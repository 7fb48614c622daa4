"""The cost of an idle page, and of an event."""

import json
import threading
import time
from types import SimpleNamespace

import gradio as gr
import pytest

import lrcore
from workbench import build_app
from workbench.state.live import LiveRequest
from workbench.state.store import Store
from workbench.widgets import polling
from workbench.widgets.form import FIELD_NAMES, input_values


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build_app(Store(tmp_path_factory.mktemp("runs")))


def test_a_server_reads_its_runs_before_a_page_asks(tmp_path, monkeypatch):
    """Of thousands, the first page would wait seconds for it."""
    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path))
    read, original_all = threading.Event(), lrcore.Runs.all
    monkeypatch.setattr(lrcore.Runs, "all", lambda runs: original_all(runs) or read.set())
    build_app()
    assert read.wait(30)


def test_no_clock_of_gradio_runs(page):
    assert not [block for block in page.blocks.values() if isinstance(block, gr.Timer)]


def test_an_event_without_progress_touches_no_other_component(page):
    """Gradio's page goes through the targets of every event so far, at every event."""
    events = page.config["dependencies"]
    hidden = [event for event in events if event["show_progress"] == "hidden"]
    assert len(hidden) > 80
    private = [event for event in hidden if event["api_visibility"] != "public"]
    assert {len(event["show_progress_on"]) for event in private} == {0}


def test_the_fields_of_the_form_are_no_inputs_of_listeners(page):
    """Gradio's page draws the status of every input so far, at every event."""
    fields = {
        block._id: block.elem_id
        for block in page.blocks.values()
        if str(getattr(block, "elem_id", "")).startswith("field-")
    }
    assert len(fields) == len(FIELD_NAMES)
    events = page.config["dependencies"]
    on_server = [e for e in events if e["backend_fn"] and e["api_visibility"] != "public"]
    inputs = {part for event in on_server for part in event["inputs"]}
    assert {fields[part] for part in fields.keys() & inputs} == {"field-method", "field-policy"}


def test_a_run_of_another_model_gives_no_check_mark(tmp_path, monkeypatch):
    store, values = Store(tmp_path), input_values(lrcore.Recipe("demo-llama"))
    for model, is_done in (("demo-opt", False), ("demo-llama", True)):
        run = SimpleNamespace(recipe=lrcore.Recipe(model))
        monkeypatch.setattr(store.runs, "all", lambda run=run: [run])
        assert json.loads(polling.state(store, values)[-1])[2] is is_done


def test_gradio_summarises_no_events(page):
    queue = page._queue
    queue.events_recorded = 1
    record = {"time": time.time(), "status": "success", "process_time": 1.0, "function": "on_poll"}
    assert queue.compute_analytics_summary([record]) == {"functions": {}}


def test_the_version_changes_with_what_is_shown_and_with_nothing_else(tmp_path):
    store = Store(tmp_path)
    seen = [polling.version(store)]
    assert polling.version(store) == seen[0]
    store.objects.put("small", "one", object())
    seen.append(polling.version(store))
    store.objects.drop("small", "one")
    seen.append(polling.version(store))
    store.live.request(LiveRequest("key", "browser", None, lrcore.Recipe(model="none"), None))
    end = time.monotonic() + 60
    while store.live.peek("key") is None:  # its error: there is no such model
        assert time.monotonic() < end
        time.sleep(0.02)
    seen.append(polling.version(store))
    assert len({*seen}) == 4


def test_something_runs_while_a_figure_is_measured_or_a_job_waits(tmp_path, monkeypatch):
    store = Store(tmp_path)
    assert not polling.is_busy(store)
    monkeypatch.setattr(store.live, "_lacks_figure", lambda request: True)
    store.live.request(LiveRequest("key", "browser", None, lrcore.Recipe(model="none"), None))
    assert polling.is_busy(store)
    store.live.drop_request("browser")
    assert not polling.is_busy(store)
    monkeypatch.setattr(store.jobs, "waiting", lambda: [object()])
    assert polling.is_busy(store)


def test_the_queue_of_a_server_at_rest_is_looked_at_seldom(page):
    assert page._queue.sleep_when_free >= 0.02
    assert page._queue.progress_update_sleep_when_free >= 1
    tracked_progress = {event.show_progress for event in page.fns.values() if event.tracks_progress}
    assert not tracked_progress  # no event tells `gr.Progress`, which is looked at as seldom
