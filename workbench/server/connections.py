"""Limits on connections: the time for a request to begin, and the number of open connections.

Uvicorn waits without limit for the head of a request. Each idle connection holds a file descriptor;
if none is free, no run can be read or written.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_TIMEOUT = 20.0  # seconds from the opening of a connection, or its last answer, to a full head
MAX_CONNECTIONS = 1000  # or half of the files that the process can open, if that is less


def connection_limit() -> int:
    """Return the largest number of open connections."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_unlimited = files == resource.RLIM_INFINITY
    return MAX_CONNECTIONS if is_unlimited else min(MAX_CONNECTIONS, files // 2)


class LimitedConnection(AutoHTTPProtocol):
    """Uvicorn's HTTP protocol, which closes a connection on which no request begins in time, and
    every connection beyond `connection_limit`.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > connection_limit():
            transport.abort()
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _update_timer(self) -> None:
        """Start the timer between requests; bodies and answers have limits of their own."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_TIMEOUT, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self.transport.get_protocol() is self:  # otherwise a websocket has taken over
            self.transport.close()
