"""The stream of answers from Gradio's queue, read in a thread."""

import json
import socket
import threading
from contextlib import suppress
from typing import Any

import httpx

PATIENCE = 300.0  # seconds for an answer


class Refused(Exception):
    """An error message in the answer of the server."""


class Stream:
    """Stream of a session, open while events wait for answers, as in a browser. The server ends it
    when no event waits.
    """

    def __init__(self, http: httpx.Client, session: str) -> None:
        self.http, self.session = http, session
        self._told = threading.Condition()
        self._waiting: set[str] = set()
        self._unread: set[str] = set()  # waiting events with answers that are discarded
        self._answers: dict[str, dict[str, Any]] = {}
        self._broken: Exception | None = None
        self._reader: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def expect(self, event: str, awaited: bool = True) -> None:
        """Register an event accepted by the queue; awaited: `answer` will be called for it."""
        with self._told:
            if event in self._answers:  # the answer arrived earlier
                if not awaited:
                    del self._answers[event]
                return
            self._waiting.add(event)
            if not awaited:
                self._unread.add(event)
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, daemon=True)
                self._reader.start()

    def waits(self, event: str | None) -> bool:
        """Return whether an event has no answer yet."""
        with self._told:
            return event in self._waiting

    def answer(self, event: str) -> dict[str, Any]:
        """Wait for the answer of an event. Raise Refused, or the exception that ended the
        stream.
        """
        with self._told:
            is_settled = self._told.wait_for(
                lambda: event in self._answers or self._broken, PATIENCE
            )
            if event in self._answers:
                return self._answers.pop(event)
            raise self._broken if is_settled and self._broken else Refused("no answer arrived")

    def close(self) -> None:
        """Close the stream, as when a page is left."""
        with self._told:
            self._closed = True
            if self._socket is not None:
                with suppress(OSError):  # the server has closed it already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        while True:
            try:
                self._read_once()
            except Exception as error:
                with self._told:
                    self._broken = error
                    self._told.notify_all()
                return
            with self._told:
                if self._closed or not self._waiting:
                    self._reader = None
                    return

    def _read_once(self) -> None:
        parameters = {"session_hash": self.session}
        with self.http.stream("GET", "/gradio_api/queue/data", params=parameters) as lines:
            with self._told:
                connection = lines.extensions["network_stream"].get_extra_info("socket")
                self._socket = connection
                if self._closed:
                    return
            try:
                for line in lines.iter_lines():
                    if line.startswith("data:"):
                        self._dispatch(json.loads(line[5:]))
            finally:
                with self._told:
                    self._socket = None

    def _dispatch(self, message: dict[str, Any]) -> None:
        if message["msg"] == "unexpected_error":
            raise Refused(message["message"])
        if message["msg"] != "process_completed":
            return
        with self._told:
            event = message["event_id"]
            self._waiting.discard(event)
            if event in self._unread:
                self._unread.discard(event)
            else:
                self._answers[event] = message
            self._told.notify_all()
