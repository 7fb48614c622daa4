"""Clients that are slow or vanish: how long the server waits for a request to begin, and how many
connections it holds.

Uvicorn waits for ever for the head of a request. What a client does not send holds a connection of
the server, and each is a file: without any left, no run can be read or written either.
"""

import asyncio
from typing import Any

import uvicorn.config
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD = 20.0  # seconds from the opening of a connection, or its last answer, to the next whole head
MOST = 1000  # connections at once, or half of the files that the process may open


def limit() -> None:
    """Let every server of this process that is started from now on be as patient and no more."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Patient.__name__}"


def most_connections() -> int:
    """How many connections are held at once."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)


class Patient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's connection, which is closed where no request begins in time, or there are too many
    of them.
    """

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        """Wait for a request, unless there is one: its body and its answer have other limits."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._end is None:
            self._end = self.loop.call_later(HEAD, self._close)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _close(self) -> None:
        if self.transport.get_protocol() is self:  # no websocket has taken it
            self.transport.close()
