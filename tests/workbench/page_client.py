"""A client that sends the events of a page over HTTP, without the page's JavaScript."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

PATIENCE = 120  # seconds to wait for a response
CONCURRENT_EVENTS = 20  # events in the queue at once, fewer than a page may have


@dataclass(frozen=True)
class PageEvent:
    """An event: the index of its listener, the values of its inputs, and its event data."""

    listener: int
    values: Sequence[Any]
    data: Any = None


@dataclass(frozen=True)
class PageResponse:
    """The response to an event: its values or its error message, and the text as sent."""

    error: str | None
    data: Any
    text: str


class PageClient:
    """An open page of a server."""

    def __init__(self, url: str, session: str = "page") -> None:
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)
        self.session = session
        self.config = self.http.get("/config").json()
        self.components = {component["id"]: component for component in self.config["components"]}
        self.listeners = {listener["id"]: listener for listener in self.config["dependencies"]}

    def initial_values(self, listener: int) -> list[Any]:
        """Return the initial values of a listener's inputs; None for server-side state."""
        return [
            self.components[number]["props"].get("value")
            for number in self.listeners[listener]["inputs"]
        ]

    def send_all(self, events: Sequence[PageEvent]) -> Iterator[tuple[PageEvent, PageResponse]]:
        """Yield each event with its response, in any order."""
        queued = [event for event in events if self.listeners[event.listener]["queue"]]
        for start in range(0, len(queued), CONCURRENT_EVENTS):
            joined = {
                self.join(event): event for event in queued[start : start + CONCURRENT_EVENTS]
            }
            for number, response in self._responses(joined):
                yield joined[number], response
        for event in events:
            if not self.listeners[event.listener]["queue"]:
                yield event, self.run(event)

    def join(self, event: PageEvent) -> str:
        """Put an event into the queue, and return its id."""
        response = self._post("queue/join", event)
        assert response.status_code == 200, (response.status_code, response.text[:500], event)
        return response.json()["event_id"]

    def run(self, event: PageEvent) -> PageResponse:
        """Send an event without the queue."""
        response = self._post("run/predict", event)
        assert response.status_code in (200, 500), (
            response.status_code,
            response.text[:500],
            event,
        )
        content = response.json()
        refused = None if response.status_code == 200 else str(content.get("error"))
        return PageResponse(refused, content.get("data"), response.text)

    def _post(self, where: str, event: PageEvent) -> httpx.Response:
        request = {
            "data": list(event.values),
            "fn_index": event.listener,
            "session_hash": self.session,
            "event_data": event.data,
        }
        # httpx refuses NaN and lone surrogates, which a client may send
        return self.http.post(
            f"/gradio_api/{where}",
            content=json.dumps(request),
            headers={"content-type": "application/json"},
        )

    def _responses(self, events_by_id: dict[str, PageEvent]) -> Iterator[tuple[str, PageResponse]]:
        pending = set(events_by_id)
        address = f"/gradio_api/queue/data?session_hash={self.session}"
        with self.http.stream("GET", address) as lines:
            for line in lines.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message["msg"] != "process_completed":
                    continue
                output = message["output"]
                refused = None if message["success"] else str(output.get("error"))
                yield message["event_id"], PageResponse(refused, output.get("data"), line)
                pending.discard(message["event_id"])
                if not pending:
                    return
        raise AssertionError(f"{len(pending)} responses are missing")

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Upload a file, and return the value of its component."""
        response = self.http.post("/gradio_api/upload", files={"files": (name, content)})
        assert response.status_code == 200, response.text
        return {
            "path": response.json()[0],
            "orig_name": name,
            "size": len(content),
            "meta": {"_type": "gradio.FileData"},
        }
