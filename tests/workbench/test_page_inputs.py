"""Invalid values in every input of the page.

Each response must be valid or an error message of one sentence; the log must have no error, the
server must keep running, and no run may be added or removed. Events are sent as by a browser. Jobs
are refused, so that no value starts a computation.
"""

import random
import re
import time
from collections.abc import Sequence

import pytest
from page_client import PageClient, PageEvent, PageResponse
from page_server import PATIENCE, served

import lrcore
from workbench.app.app import build_app
from workbench.jobs import KINDS, AnalyzeJob, CompressJob
from workbench.state.job_record import ENDED
from workbench.state.store import Store
from workbench.widgets.form import FIELD_NAMES, input_values

LONG = "a" * 100_000
COMMON_INVALID_VALUES = [
    *(None, "", " \n\t ", True, [None], {"a": 1}, -1, 1.5, 1e308, float("nan"), "1e999"),
    *("<script>alert(1)</script>", "\u202eevil\u200f\0", "\ud800", LONG),
]
INVALID_VALUES = [
    *COMMON_INVALID_VALUES,
    *([], {}, ["a"], [[]], 0, 10**12, 10**30, float("inf"), "NaN", "-Infinity", "0x10", "1,5"),
    *("no\0thing", "'; drop table runs; --", "../../../etc/passwd", "/no/such/place", "a" * 5000),
]
INVALID_FILES = {
    "empty.json": b"",
    "binary.json": bytes(range(256)),
    "deep.json": b"[" * 50_000,
    "other.yaml": b"methd: a3\n",
    "list.yaml": b"[1, 2]",
    "range.json": b'{"ratio": NaN}',
    "numbers.jsonl": b"5\n",
    "latin.txt": "\xe9".encode("latin-1"),
}
EVENT_DATA = (
    *([], "x", 5, {}, {"x": "a", "custom": ["a", "b", "c"]}, {"custom": 5}),
    {"layer": "a", "component": 5, "rank": "x"},
    {"layer": 10**12, "component": "mlp", "rank": -1},
    *(
        {"form": "exe"},
        {"runs": 5},
        {"runs": [[]]},
        {"run": {}},
        {"action": "fly", "job": "nobody"},
    ),
    *({"action": action, "job": "nobody", "file": "x"} for action in ("table", "open", "cancel")),
)
CLICK_EVENTS = {"select", "edit", "open", "choose", "compare", "wake"}
# Components with input of users and scripts; all others hold state or only display values.
INPUT_TYPES = (
    *("textbox", "number", "slider", "dropdown", "checkbox", "checkboxgroup", "radio", "json"),
    *("file", "uploadbutton", "dataframe", "api", "code", "image", "multimodaltextbox"),
)
TRACEBACK = re.compile(r"Traceback|server's log|^\w*(Error|Exception)\b|File \"")
SENTENCE_ENDINGS = (".", "?", "...")


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4)


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe):
    """Return a store with an analyzed model and a run, which refuses further jobs."""
    store = Store(tmp_path_factory.mktemp("page") / "runs", KINDS)
    measured = lrcore.EvaluationSettings(recipe.data, samples=2, seq_len=16)
    for job in (AnalyzeJob(recipe), CompressJob(recipe, "first", measured)):
        record, end = store.jobs.submit(job), time.monotonic() + PATIENCE
        while record.state not in ENDED:
            assert time.monotonic() < end, record
            time.sleep(0.02)
        assert record.state == "done", record.error

    def refuse(record):
        raise lrcore.InputError("No job runs in this test.")

    store.jobs._work = refuse
    return store


@pytest.fixture(scope="module")
def page(store, recipe):
    with served(build_app(store)) as url:
        yield from open_client(url, store, recipe)


def open_client(url, store, recipe):
    """Yield a client of the page with valid values in its fields."""
    client = PageClient(url)
    run = store.runs.all()[0].id
    for component in client.components.values():
        props, name = component["props"], component["props"].get("elem_id")
        if name == "compare-runs":
            props["value"] = [run]
        elif name == "prompt":
            props["value"] = "Once upon"
        elif isinstance(props.get("value"), list) and len(props["value"]) == len(FIELD_NAMES):
            props["value"] = input_values(recipe)[0]
    opened = next(
        number for number, name in listener_names(client).items() if name == "on_open_row"
    )
    ((_, response),) = client.send_all([PageEvent(opened, [], {"run": run})])
    assert response.error is None
    yield client
    client.http.close()


def listener_names(page: PageClient) -> dict[int, str]:
    """Return the names of the listeners that run Python."""
    return {
        number: listener["api_name"]
        for number, listener in page.listeners.items()
        if listener["backend_fn"]
    }


def valid_values(page: PageClient, listener: int, run: str) -> list:
    """Return valid values of a listener's inputs."""
    recipe = {"model": "demo-llama"}
    endpoint_values = {
        "analyze": [recipe, 0.9],
        "allocate": [recipe],
        "compress": [recipe, "name"],
        "evaluate": [run, "stories", 2, 16],
        "compare": [[run], "Once", 2, 0.0, 0],
    }
    return endpoint_values.get(listener_names(page)[listener]) or page.initial_values(listener)


def typed_inputs(page: PageClient) -> list[tuple[int, int]]:
    """Return (listener, position) of each input of users, for all listeners."""
    return [
        (number, position)
        for number in listener_names(page)
        for position, component_id in enumerate(page.listeners[number]["inputs"])
        if page.components[component_id]["type"] in INPUT_TYPES
        or is_form(page.components[component_id])
    ]


def is_form(component: dict) -> bool:
    """Return True for the values of a form, and for a group of fields."""
    return component["type"] == "html" and isinstance(component["props"].get("value"), list)


def invalid_events(
    page: PageClient, listener: int, position: int, run: str, field_values: Sequence
) -> list[PageEvent]:
    """Return events with all invalid values in an input; fields of a form get `field_values`."""
    good = valid_values(page, listener, run)
    kind = page.components[page.listeners[listener]["inputs"][position]]["type"]
    values = list(INVALID_VALUES)
    if kind == "html" and isinstance(good[position], list):
        values += [
            _replace(
                good[position],
                at,
                field | {"value": field_value} if isinstance(field, dict) else field_value,
            )
            for at, field in enumerate(good[position])
            for field_value in field_values
        ]
    if kind in ("file", "uploadbutton"):
        values += [page.upload(name, content) for name, content in INVALID_FILES.items()]
    return [PageEvent(listener, _replace(good, position, value)) for value in values]


def _replace(values: list, position: int, value: object) -> list:
    return [*values[:position], value, *values[position + 1 :]]


def invalid_responses(
    page: PageClient, responses: Sequence[tuple[PageEvent, PageResponse]]
) -> list[str]:
    """Return the responses that are neither valid nor an error message of one sentence."""
    names = listener_names(page)
    return [
        f"{names[event.listener]} {str(event)[-200:]}: {response.error or response.text}"[:500]
        for event, response in responses
        if TRACEBACK.search(response.text if response.error is None else response.error)
        or (response.error is not None and not is_sentence(response.error))
    ]


def is_sentence(error: str) -> bool:
    return "\n" not in error and error.endswith(SENTENCE_ENDINGS) and len(error) < 1500


def files(store: Store) -> list[str]:
    """Return the files of all runs, without job records and uploaded texts."""
    inside = (path.relative_to(store.runs.folder) for path in store.runs.folder.rglob("*"))
    run_files = (path for path in inside if path.parts[0][0] != "." and ".sqlite" not in path.name)
    return sorted(map(str, run_files))


def check(page, store, capfd, caplog, events):
    """Send events, and check responses, log, runs and that the server keeps running."""
    before = files(store)
    assert invalid_responses(page, list(page.send_all(events))) == []
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err
    assert [record.getMessage() for record in caplog.records if record.levelno >= 40] == []
    assert files(store) == before
    assert page.http.get("/config").status_code == 200


def test_every_input_component_is_an_input_of_an_event(page):
    input_ids = {
        page.listeners[number]["inputs"][position] for number, position in typed_inputs(page)
    }
    in_forms = {
        part
        for listener in page.listeners.values()
        if "read" in {event for _, event in listener["targets"]}
        for part in listener["inputs"]
    }
    typed = {
        number
        for number, component in page.components.items()
        if component["type"] in {*INPUT_TYPES} - {"api"}
        and component["props"].get("interactive", True)
    }
    untested = [
        page.components[component_id]["props"] for component_id in typed - input_ids - in_forms
    ]
    assert [properties.get("elem_id") or properties.get("label") for properties in untested] == []
    assert len(input_ids) > 45


def test_invalid_values_are_refused_with_an_error_message(page, store, capfd, caplog):
    """Test each input with its first event and a sixth of the values."""
    run, first = store.runs.all()[0].id, {}
    for listener, position in typed_inputs(page):
        first.setdefault(page.listeners[listener]["inputs"][position], (listener, position))
    events = [
        event
        for first_input in first.values()
        for event in invalid_events(page, *first_input, run, COMMON_INVALID_VALUES)
    ]
    check(page, store, capfd, caplog, random.Random(0).sample(events, len(events) // 6))


def test_invalid_event_data_is_refused_with_an_error_message(page, store, capfd, caplog):
    click_listeners = [
        number
        for number in listener_names(page)
        if CLICK_EVENTS & {event for _, event in page.listeners[number]["targets"]}
    ]
    assert len(click_listeners) > 10
    run = store.runs.all()[0].id
    events = [
        PageEvent(number, valid_values(page, number, run), event)
        for number in click_listeners
        for event in EVENT_DATA
    ]
    check(page, store, capfd, caplog, events)


BODIES = (
    *("", "5", "[]", "{}", "null", "[" * 100_000, "\xff", '{"data": 5}', '{"data": [NaN]}'),
    *('{"data": [], "fn_index": 99999999}', '{"data": [], "fn_index": "x"}'),
    *('{"data": [], "fn_index": 0, "session_hash": []}', '{"data": ["\\ud800"], "fn_index": 0}'),
)
ROUTES = (
    *("run/predict", "queue/join", "call/nobody", "call/allocate", "call/v2/allocate", "reset"),
    *("cancel", "component_server", "upload", "vibe-edit/"),
)


@pytest.mark.parametrize("route", ROUTES)
def test_invalid_request_bodies_cause_no_server_error(route, page, store, capfd, caplog):
    kind = {"Content-Type": "application/json"}
    responses = [
        page.http.post(f"/gradio_api/{route}", content=body.encode("latin-1"), headers=kind).text
        for body in BODIES
    ]
    assert [
        response
        for response in responses
        if "Internal Server Error" in response or TRACEBACK.search(response)
    ] == []
    check(page, store, capfd, caplog, [])


COMPONENT_VALUES = (
    *(None, 5, "x", [], {}, {"sort": []}, {"sort": {}}, {"columns": [[]]}, {"columns": 5}),
    *({"page": 10**400}, {"page": "1"}, {"page": -1}, {"words": {}}, {"falling": []}, [{}] * 3),
)


@pytest.mark.parametrize("name", ["runs-table runs_listed", "heartbeat version_now"])
def test_invalid_values_for_functions_of_components_cause_no_server_error(
    name, page, store, capfd, caplog
):
    elem_id, function = name.split()
    (at,) = [
        k
        for k, component in page.components.items()
        if component["props"].get("elem_id") == elem_id
    ]
    request = {"component_id": at, "fn_name": function, "session_hash": "page"}
    responses = [
        page.http.post("/gradio_api/component_server", json=request | {"data": value})
        for value in COMPONENT_VALUES
    ]
    assert {response.status_code for response in responses} == {200}
    check(page, store, capfd, caplog, [])


@pytest.mark.soak
def test_invalid_values_are_refused_by_all_events(page, store, capfd, caplog):
    """Test each input of each event with all values."""
    run = store.runs.all()[0].id
    for typed_input in typed_inputs(page):
        check(page, store, capfd, caplog, invalid_events(page, *typed_input, run, INVALID_VALUES))
