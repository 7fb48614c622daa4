"""A script that asks the events of a page as a browser does, past the page's own JavaScript."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

PATIENCE = 120  # seconds without an answer
AT_ONCE = 20  # events of one page that wait: fewer than a page may have


@dataclass(frozen=True)
class Question:
    """One event: the index of its listener, the values of its inputs, what a click says."""

    listener: int
    values: Sequence[Any]
    event: Any = None


@dataclass(frozen=True)
class Answer:
    """What came: the values, or the sentence of a refusal; `text` is all that was sent."""

    error: str | None
    data: Any
    text: str


class PageClient:
    """One opened page of a server."""

    def __init__(self, url: str, session: str = "page") -> None:
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)
        self.session = session
        self.config = self.http.get("/config").json()
        self.components = {component["id"]: component for component in self.config["components"]}
        self.listeners = {listener["id"]: listener for listener in self.config["dependencies"]}

    def at_first(self, listener: int) -> list[Any]:
        """The values of a listener's inputs as the page opens; None of what the server keeps."""
        return [
            self.components[number]["props"].get("value")
            for number in self.listeners[listener]["inputs"]
        ]

    def answer_all(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """The answer to every question, some at once, in any order."""
        queued = [question for question in questions if self.listeners[question.listener]["queue"]]
        for start in range(0, len(queued), AT_ONCE):
            joined = {self.join(question): question for question in queued[start : start + AT_ONCE]}
            for number, answer in self._answers(joined):
                yield joined[number], answer
        for question in questions:
            if not self.listeners[question.listener]["queue"]:
                yield question, self.run(question)

    def join(self, question: Question) -> str:
        """Put a question into the queue; its number."""
        answer = self._post("queue/join", question)
        assert answer.status_code == 200, (answer.status_code, answer.text[:500], question)
        return answer.json()["event_id"]

    def run(self, question: Question) -> Answer:
        """Ask past the queue."""
        answer = self._post("run/predict", question)
        assert answer.status_code in (200, 500), (answer.status_code, answer.text[:500], question)
        content = answer.json()
        refused = None if answer.status_code == 200 else str(content.get("error"))
        return Answer(refused, content.get("data"), answer.text)

    def _post(self, where: str, question: Question) -> httpx.Response:
        request = {
            "data": list(question.values),
            "fn_index": question.listener,
            "session_hash": self.session,
            "event_data": question.event,
        }
        # not httpx's own: it takes neither NaN nor half a surrogate, and a client may send both
        return self.http.post(
            f"/gradio_api/{where}",
            content=json.dumps(request),
            headers={"content-type": "application/json"},
        )

    def _answers(self, questions_by_event: dict[str, Question]) -> Iterator[tuple[str, Answer]]:
        pending = set(questions_by_event)
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
                yield message["event_id"], Answer(refused, output.get("data"), line)
                pending.discard(message["event_id"])
                if not pending:
                    return
        raise AssertionError(f"{len(pending)} answers did not come")

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """A file as its component is given it."""
        answer = self.http.post("/gradio_api/upload", files={"files": (name, content)})
        assert answer.status_code == 200, answer.text
        return {
            "path": answer.json()[0],
            "orig_name": name,
            "size": len(content),
            "meta": {"_type": "gradio.FileData"},
        }
