"""A page without a browser: sends the requests of Gradio's page and draws nothing."""

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from stream import PATIENCE, Refused, Stream

DEEPEST = 4  # depth of changes that follow changes
CONFIG = "window.gradio_config = "  # the configuration in the page
_TOLD = re.compile(r"dispatchEvent\(new Event\('([\w: ]+)'\)\)")  # of `events.announce`
_HEARS = re.compile(r'listenToChanges\(element, trigger, (\["workbench:.*?\])')
_WATCHED = "], true); //"


@dataclass
class Visitor:
    """Open page: the values of its components, and the time of each answer.

    took: seconds by the elem_id of the component with the event, without the events that follow
    changes of the answer. Streamed answers, such as live figures, arrive while the page goes on.
    """

    url: str
    took: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A connection per request: the server closes a kept connection after five seconds, which a
        # browser handles by asking again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, limits=limits)
        self.stream = Stream(self.http, "")
        self.open()

    def open(self) -> None:
        """Load the page, as a reload does."""
        began = time.perf_counter()
        self.stream.close()
        self.session = uuid.uuid4().hex[:12]
        self.stream = Stream(self.http, self.session)
        page = self.http.get("/").raise_for_status().text
        config, _ = json.JSONDecoder().raw_decode(page[page.index(CONFIG) + len(CONFIG) :])
        self.steps = {step["id"]: step for step in config["dependencies"]}
        self.values = {
            component["id"]: component["props"].get("value") for component in config["components"]
        }
        named = [
            (component["props"].get("elem_id"), component["id"])
            for component in config["components"]
        ]
        self.ids = {name: at for name, at in named if name}
        scripts = {
            component["props"].get("elem_id"): str(component["props"].get("js_on_load"))
            for component in config["components"]
        }
        # Listeners made by `components.at_rest` and `in_sight`: changes to listen for, listeners
        # out of sight, and listeners to redraw.
        matches = {name: _HEARS.search(script) for name, script in scripts.items()}
        self.hears = {name: json.loads(match[1]) for name, match in matches.items() if match}
        self.unseen = {name for name in self.hears if _WATCHED in scripts[name]}
        self.stale: set[str] = set()
        self._asked_last: dict[int, str] = {}  # events by step that the page does not wait for
        self._later: dict[int, Any] = {}  # event data for such a step after its answer
        loads = [step for step in config["dependencies"] if "load" in _events(step)]
        for step in loads:
            self._settle(self._follow(step), DEEPEST)
        self._record_time("open", began)

    def does(self, elem_id: str, event: str, value: Any = None, event_data: Any = None) -> None:
        """Perform an event of a component, and its follow-up events. event_data: such as the button
        of a list.
        """
        began, at = time.perf_counter(), self.ids[elem_id]
        if value is not None:
            self.values[at] = value
        changed = self._fire(at, event, event_data)
        self._record_time(f"{elem_id} {event}", began)
        self._settle(changed, DEEPEST)

    def fills(self, values: Mapping[str, Any]) -> None:
        """Set the values of components by elem_id, as a recipe does."""
        for elem_id, value in values.items():
            self.values[self.ids[elem_id]] = value

    def value_of(self, elem_id: str) -> Any:
        """Return the value of a component."""
        return self.values[self.ids[elem_id]]

    def looks(self, elem_id: str) -> None:
        """Scroll to a section of `components.in_sight`."""
        self.unseen.discard(elem_id)
        self.stale.add(elem_id)
        self.rests()

    def leaves_sight(self, elem_id: str) -> None:
        """Scroll away from a section."""
        self.unseen.add(elem_id)

    def rests(self) -> None:
        """Perform the events that follow a fifth of a second without input."""
        self._catch_up()
        for elem_id in sorted(self.stale - self.unseen):
            self.stale.discard(elem_id)
            self.does(elem_id, "tick")

    def beat(self) -> str:
        """Poll the server for the version of the displayed state."""
        request = {
            "data": None,
            "component_id": self.ids["heartbeat"],
            "fn_name": "version_now",
            "session_hash": self.session,
        }
        began = time.perf_counter()
        answer = self.http.post("/gradio_api/component_server", json=request).raise_for_status()
        self._record_time("heartbeat", began)
        return answer.json()[0]

    def runs(self, **view: Any) -> dict[str, Any]:
        """Return a page of the table of runs, by default the first; view: the fields of
        `listing.View`.
        """
        request = {
            "data": view,
            "component_id": self.ids["runs-table"],
            "fn_name": "runs_listed",
            "session_hash": self.session,
        }
        return (
            self.http.post("/gradio_api/component_server", json=request).raise_for_status().json()
        )

    def leave(self, elem_id: str, event: str) -> None:
        """Send a request, and leave before the answer."""
        for step in self._listeners(self.ids[elem_id], event):
            for after in [step, *self._followers(step)]:
                if after["backend_fn"]:
                    self._join(after)
        self.close()

    def close(self) -> None:
        """Close the page, even if answers are pending."""
        self.stream.close()
        self.http.close()

    # --- the behavior of Gradio's page ---

    def _fire(self, at: int, event: str, event_data: Any = None, awaited: bool = True) -> list[int]:
        """Perform an event, and return the components that the answers change."""
        steps = self._listeners(at, event)
        return [
            component_id
            for step in steps
            for component_id in self._follow(step, event_data, awaited)
        ]

    def _settle(self, changed: list[int], depth: int) -> None:
        """Perform the events that follow changes, recursively up to a depth."""
        for at in changed if depth else []:
            self._settle(self._fire(at, "change", awaited=False), depth - 1)

    def _listeners(self, at: int, event: str) -> list[dict[str, Any]]:
        return [step for step in self.steps.values() if [at, event] in _targets(step)]

    def _followers(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            follower for follower in self.steps.values() if follower["trigger_after"] == step["id"]
        ]

    def _follow(
        self, step: dict[str, Any], event_data: Any = None, awaited: bool = True
    ) -> list[int]:
        """Perform a step and its followers, and return the changed components. awaited: wait for a
        streamed answer too.
        """
        if not step["backend_fn"]:
            self._announce(step)
            changed = []
        elif awaited or not step["types"]["generator"]:
            changed = self._store_answers(step["outputs"], self._answer(step, event_data))
        else:
            self._go_on_beside(step, event_data)
            changed = []
        for after in self._followers(step):
            changed += self._follow(after, None, awaited)
        return changed

    def _go_on_beside(self, step: dict[str, Any], event_data: Any) -> None:
        """Send a request without waiting. While the last request of a step is pending, keep the
        newest later one (`trigger_mode` "always_last") or none ("once").
        """
        if self.stream.waits(self._asked_last.get(step["id"])):
            if step["trigger_mode"] == "always_last":
                self._later[step["id"]] = event_data
            return
        self._later.pop(step["id"], None)
        self._asked_last[step["id"]] = event = self._join(step, event_data)
        self.stream.expect(event, awaited=False)

    def _catch_up(self) -> None:
        """Send the requests that waited for earlier answers."""
        for number, event_data in [*self._later.items()]:
            self._go_on_beside(self.steps[number], event_data)

    def _announce(self, step: dict[str, Any]) -> None:
        """Perform the script of `events.announce`."""
        announcement = _TOLD.search(str(step["js"]))
        if announcement:
            self.stale |= {name for name, names in self.hears.items() if announcement[1] in names}

    def _value(self, at: int) -> Any:
        """Return the value of an input; of a form, see `events.form_data`, those of its parts."""
        readers = self._listeners(at, "read")
        return [self.values[part] for part in readers[0]["inputs"]] if readers else self.values[at]

    def _answer(self, step: dict[str, Any], event_data: Any = None) -> Sequence[Any]:
        if not step["queue"]:
            return self._request("run/predict", step, event_data)["data"]
        event = self._join(step, event_data)
        self.stream.expect(event)
        answer = self.stream.answer(event)
        if not answer["success"]:
            raise Refused(str(answer["output"].get("error")))
        return answer["output"]["data"]

    def _join(self, step: dict[str, Any], event_data: Any = None) -> str:
        return self._request("queue/join", step, event_data)["event_id"]

    def _request(self, where: str, step: dict[str, Any], event_data: Any = None) -> dict[str, Any]:
        request = {
            "data": [self._value(at) for at in step["inputs"]],
            "fn_index": step["id"],
            "session_hash": self.session,
            "trigger_id": _targets(step)[0][0] if _targets(step) else None,
            "event_data": event_data,
        }
        answer = self.http.post(f"/gradio_api/{where}", json=request)
        if answer.status_code == 500:
            raise Refused(str(answer.json().get("error")))
        return answer.raise_for_status().json()

    def _store_answers(self, outputs: Sequence[int], data: Sequence[Any]) -> list[int]:
        """Store the answers, and return the components with changed values."""
        changed = []
        for at, new in zip(outputs, data, strict=False):
            if isinstance(new, dict) and new.get("__type__") == "update":
                if "value" not in new:
                    continue
                new = new["value"]
            if new != self.values.get(at):
                self.values[at] = new
                changed.append(at)
        return changed

    def _record_time(self, name: str, began: float) -> None:
        self.took.setdefault(name, []).append(time.perf_counter() - began)


def _targets(step: dict[str, Any]) -> list[list[Any]]:
    return [list(target) for target in step["targets"]]


def _events(step: dict[str, Any]) -> set[str]:
    return {event for _, event in step["targets"]}
