"""The cost of an idle page and of an event."""

import json
import threading
import time
from types import SimpleNamespace

import gradio as gr
import pytest
from page_server import PATIENCE

import lrcore
from workbench import build_app
from workbench.state.live import LiveRequest
from workbench.state.store import Store
from workbench.widgets import polling
from workbench.widgets.form import FIELD_NAMES, input_values


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build_app(Store(tmp_path_factory.mktemp("runs")))


def test_runs_are_read_before_the_first_page_opens(tmp_path, monkeypatch):
    """Reading thousands of runs takes seconds."""
    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path))
    read, original_all = threading.Event(), lrcore.Runs.all
    monkeypatch.setattr(lrcore.Runs, "all", lambda runs: original_all(runs) or read.set())
    build_app()
    assert read.wait(30)


def test_the_page_has_no_gradio_timer(page):
    assert not [block for block in page.blocks.values() if isinstance(block, gr.Timer)]


def test_the_page_is_light(page):
    """Gradio's page compares each component with each listener when it opens."""
    assert len(page.config["components"]) <= 200
    assert len(page.config["dependencies"]) <= 120
    assert len(json.dumps(page.config, default=str)) <= 250_000


def test_events_without_progress_update_no_loading_status(page):
    """Gradio's page updates the status of each listed component at each event."""
    events = page.config["dependencies"]
    hidden = [event for event in events if event["show_progress"] == "hidden"]
    assert len(hidden) > 80
    private = [event for event in hidden if event["api_visibility"] != "public"]
    assert {len(event["show_progress_on"]) for event in private} == {0}


def test_form_fields_are_not_inputs_of_listeners(page):
    """Gradio's page draws the status of each input at each event."""
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


def test_a_run_of_a_different_model_does_not_complete_the_step(tmp_path, monkeypatch):
    store, values = Store(tmp_path), input_values(lrcore.Recipe("demo-llama"))
    for model, is_done in (("demo-opt", False), ("demo-llama", True)):
        run = SimpleNamespace(id=model, recipe=lrcore.Recipe(model), account=None)
        monkeypatch.setattr(store.runs, "all", lambda run=run: [run])
        assert json.loads(polling.state(store, values)[-1])[2] is is_done


def test_gradio_does_not_summarize_events(page):
    queue = page._queue
    queue.events_recorded = 1
    record = {"time": time.time(), "status": "success", "process_time": 1.0, "function": "on_poll"}
    assert queue.compute_analytics_summary([record]) == {"functions": {}}


def test_the_version_changes_only_with_displayed_content(tmp_path):
    store = Store(tmp_path)
    seen = [polling.version(store)]
    assert polling.version(store) == seen[0]
    store.objects.put("small", "one", object())
    seen.append(polling.version(store))
    store.objects.drop("small", "one")
    seen.append(polling.version(store))
    plan = SimpleNamespace(account=SimpleNamespace(budget="params", achieved=0.2))
    store.live.request(LiveRequest("key", "browser", None, lrcore.Recipe(model="none"), plan))
    end = time.monotonic() + PATIENCE
    while store.live.peek("key") is None:  # an error, since the model does not exist
        assert time.monotonic() < end
        time.sleep(0.02)
    seen.append(polling.version(store))
    assert len({*seen}) == 4


def test_the_server_is_busy_during_a_measurement_or_with_a_waiting_job(tmp_path, monkeypatch):
    store = Store(tmp_path)
    assert not polling.is_busy(store)
    monkeypatch.setattr(store.live, "_lacks_figure", lambda request: True)
    plan = SimpleNamespace(account=SimpleNamespace(budget="params", achieved=0.2))
    store.live.request(LiveRequest("key", "browser", None, lrcore.Recipe(model="none"), plan))
    assert polling.is_busy(store)
    store.live.drop_request("browser")
    assert not polling.is_busy(store)
    monkeypatch.setattr(store.jobs, "waiting", lambda: [object()])
    assert polling.is_busy(store)


def test_the_queue_of_an_idle_server_is_checked_rarely(tmp_path):
    page = build_app(Store(tmp_path))  # no event has reached it
    assert page._queue.sleep_when_free >= 0.02
    assert page._queue.progress_update_sleep_when_free >= 1
    tracked_progress = {event.show_progress for event in page.fns.values() if event.tracks_progress}
    assert not tracked_progress  # no event uses `gr.Progress`, which is checked as rarely
