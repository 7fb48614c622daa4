"""Every input of the page, given what nobody should type: each answer is what the page shows or one
sentence, no fault is logged, the server goes on, and no run comes or goes.

The events are asked as a browser asks them. What they would compute in a job is refused here, so
that nothing runs that a bad value did not ask for.
"""

import random
import re
import time
from collections.abc import Sequence

import pytest
from page_client import Answer, PageClient, Question
from page_server import served

import lrcore
from workbench.app.app import build_app
from workbench.jobs import KINDS, AnalyzeJob, CompressJob
from workbench.state.job_record import ENDED
from workbench.state.store import Store
from workbench.widgets.form import FIELD_NAMES, input_values

LONG = "a" * 100_000
FEW = [
    *(None, "", " \n\t ", True, [None], {"a": 1}, -1, 1.5, 1e308, float("nan"), "1e999"),
    *("<script>alert(1)</script>", "\u202eevil\u200f\0", "\ud800", LONG),
]
NOBODY_SAYS = [
    *FEW,
    *([], {}, ["a"], [[]], 0, 10**12, 10**30, float("inf"), "NaN", "-Infinity", "0x10", "1,5"),
    *("no\0thing", "'; drop table runs; --", "../../../etc/passwd", "/no/such/place", "a" * 5000),
]
NO_FILES = {
    "empty.json": b"",
    "binary.json": bytes(range(256)),
    "deep.json": b"[" * 50_000,
    "other.yaml": b"methd: a3\n",
    "list.yaml": b"[1, 2]",
    "range.json": b'{"ratio": NaN}',
    "numbers.jsonl": b"5\n",
    "latin.txt": "\xe9".encode("latin-1"),
}
EVENTS = (
    *([], "x", 5, {}, {"x": "a", "custom": ["a", "b", "c"]}, {"custom": 5}),
    {"layer": "a", "component": 5, "rank": "x", "gesture": None},
    {"layer": 10**12, "component": "mlp", "rank": -1, "gesture": 1},
    *(
        {"form": "exe"},
        {"runs": 5},
        {"runs": [[]]},
        {"run": {}},
        {"action": "fly", "job": "nobody"},
    ),
    *({"action": action, "job": "nobody", "file": "x"} for action in ("table", "open", "cancel")),
)
PRESSED = {"select", "edit", "open", "choose", "compare", "wake"}
# What holds what a person or a script gives; the rest is what the server keeps or only shows.
TYPED = (
    *("textbox", "number", "slider", "dropdown", "checkbox", "checkboxgroup", "radio", "json"),
    *("file", "uploadbutton", "dataframe", "api", "code", "image", "multimodaltextbox"),
)
FAULT = re.compile(r"Traceback|server's log|^\w*(Error|Exception)\b|File \"")
ENDINGS = (".", "?", "...")


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4)


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe):
    """A store with a model that is analysed and a run; no job after these."""
    store = Store(tmp_path_factory.mktemp("page") / "runs", KINDS)
    measured = lrcore.EvaluationSettings(recipe.data, samples=2, seq_len=16)
    for job in (AnalyzeJob(recipe), CompressJob(recipe, "first", measured)):
        record, end = store.jobs.submit(job), time.monotonic() + 120
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
        yield from prepared(url, store, recipe)


def prepared(url, store, recipe):
    """A client of the page whose fields hold what a person would choose."""
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
    opened = next(number for number, name in named(client).items() if name == "on_open_row")
    ((_, answer),) = client.answer_all([Question(opened, [], {"run": run})])
    assert answer.error is None
    yield client
    client.http.close()


def named(page: PageClient) -> dict[int, str]:
    """The names of the listeners that this project has in Python."""
    return {
        number: listener["api_name"]
        for number, listener in page.listeners.items()
        if listener["backend_fn"]
    }


def usual(page: PageClient, listener: int, run: str) -> list:
    """Values that a listener takes well."""
    recipe = {"model": "demo-llama"}
    of_scripts = {
        "analyze": [recipe, 0.9],
        "allocate": [recipe],
        "compress": [recipe, "name"],
        "evaluate": [run, "stories", 2, 16],
        "compare": [[run], "Once", 2, 0.0, 0],
    }
    return of_scripts.get(named(page)[listener]) or page.at_first(listener)


def typed_inputs(page: PageClient) -> list[tuple[int, int]]:
    """(listener, place of the input) of all that is typed, of every listener."""
    return [
        (number, position)
        for number in named(page)
        for position, component_id in enumerate(page.listeners[number]["inputs"])
        if page.components[component_id]["type"] in TYPED
    ]


def questions(
    page: PageClient, listener: int, position: int, run: str, field_values: Sequence
) -> list[Question]:
    """One input of a listener with all that nobody says; fields of a form with `field_values`."""
    good = usual(page, listener, run)
    kind = page.components[page.listeners[listener]["inputs"][position]]["type"]
    values = list(NOBODY_SAYS)
    if kind == "json" and isinstance(good[position], list):
        fields = range(len(good[position]))
        values += [
            _with(good[position], field, field_value)
            for field in fields
            for field_value in field_values
        ]
    if kind in ("file", "uploadbutton"):
        values += [page.upload(name, content) for name, content in NO_FILES.items()]
    return [Question(listener, _with(good, position, value)) for value in values]


def _with(values: list, position: int, value: object) -> list:
    return [*values[:position], value, *values[position + 1 :]]


def wrong(page: PageClient, answers: Sequence[tuple[Question, Answer]]) -> list[str]:
    """What of these answers is neither what the page shows nor one sentence."""
    return [
        f"{named(page)[question.listener]} {str(question)[-200:]}: {answer.error or answer.text}"[
            :500
        ]
        for question, answer in answers
        if FAULT.search(answer.text if answer.error is None else answer.error)
        or (answer.error is not None and not is_sentence(answer.error))
    ]


def is_sentence(error: str) -> bool:
    return "\n" not in error and error.endswith(ENDINGS) and len(error) < 1500


def files(store: Store) -> list[str]:
    """The files of the runs; records of jobs and texts that are dropped come besides."""
    inside = (path.relative_to(store.runs.folder) for path in store.runs.folder.rglob("*"))
    run_files = (path for path in inside if path.parts[0][0] != "." and ".sqlite" not in path.name)
    return sorted(map(str, run_files))


def check(page, store, capfd, caplog, batch):
    """Ask, and look at the answers, the log, the runs and whether the server goes on."""
    before = files(store)
    assert wrong(page, list(page.answer_all(batch))) == []
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err
    assert [record.getMessage() for record in caplog.records if record.levelno >= 40] == []
    assert files(store) == before
    assert page.http.get("/config").status_code == 200


def test_every_component_that_is_typed_into_is_an_event_s_input(page):
    input_ids = {
        page.listeners[number]["inputs"][position] for number, position in typed_inputs(page)
    }
    in_forms = {
        part
        for listener in page.listeners.values()
        if not listener["backend_fn"] and listener["outputs"]
        for part in listener["inputs"]
    }
    typed = {
        number
        for number, component in page.components.items()
        if component["type"] in {*TYPED} - {"api"} and component["props"].get("interactive", True)
    }
    untested = [
        page.components[component_id]["props"] for component_id in typed - input_ids - in_forms
    ]
    assert [properties.get("elem_id") or properties.get("label") for properties in untested] == []
    assert len(input_ids) > 70


def test_what_nobody_says_is_answered_with_a_sentence(page, store, capfd, caplog):
    """Every input, through the first event that takes it; a third of the values."""
    run, first = store.runs.all()[0].id, {}
    for listener, position in typed_inputs(page):
        first.setdefault(page.listeners[listener]["inputs"][position], (listener, position))
    batch = [
        question
        for first_input in first.values()
        for question in questions(page, *first_input, run, FEW)
    ]
    check(page, store, capfd, caplog, random.Random(0).sample(batch, len(batch) // 3))


def test_events_that_say_something_else_are_answered_with_a_sentence(page, store, capfd, caplog):
    pressed = [
        number
        for number in named(page)
        if PRESSED & {event for _, event in page.listeners[number]["targets"]}
    ]
    assert len(pressed) > 10
    run = store.runs.all()[0].id
    batch = [
        Question(number, usual(page, number, run), event) for number in pressed for event in EVENTS
    ]
    check(page, store, capfd, caplog, batch)


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
def test_bodies_that_a_route_does_not_take_are_no_fault(route, page, store, capfd, caplog):
    kind = {"Content-Type": "application/json"}
    answers = [
        page.http.post(f"/gradio_api/{route}", content=body.encode("latin-1"), headers=kind).text
        for body in BODIES
    ]
    assert [
        answer for answer in answers if "Internal Server Error" in answer or FAULT.search(answer)
    ] == []
    check(page, store, capfd, caplog, [])


SENT = (
    *(None, 5, "x", [], {}, {"sort": []}, {"sort": {}}, {"columns": [[]]}, {"columns": 5}),
    *({"page": 10**400}, {"page": "1"}, {"page": -1}, {"words": {}}, {"falling": []}, [{}] * 3),
)


@pytest.mark.parametrize("name", ["runs-table runs_listed", "heartbeat version_now"])
def test_what_a_function_of_a_component_is_sent_is_no_fault(name, page, store, capfd, caplog):
    elem_id, function = name.split()
    (at,) = [
        k
        for k, component in page.components.items()
        if component["props"].get("elem_id") == elem_id
    ]
    request = {"component_id": at, "fn_name": function, "session_hash": "page"}
    answers = [
        page.http.post("/gradio_api/component_server", json=request | {"data": value})
        for value in SENT
    ]
    assert {answer.status_code for answer in answers} == {200}
    check(page, store, capfd, caplog, [])


@pytest.mark.soak
def test_what_nobody_says_to_any_event(page, store, capfd, caplog):
    """Every input of every event."""
    run = store.runs.all()[0].id
    for typed_input in typed_inputs(page):
        check(page, store, capfd, caplog, questions(page, *typed_input, run, NOBODY_SAYS))
