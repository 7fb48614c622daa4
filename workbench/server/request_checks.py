"""Checks of every request before it reaches Gradio: host, origin, size and type of uploads."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from starlette.responses import PlainTextResponse

from .host_names import HostNames

MAX_BODY = 8 * 2**20  # bytes of one request: a form, a recipe, a text of prompts
BODY_TIMEOUT = 120.0  # seconds for the complete body of a request
MAX_PENDING = 16 * MAX_BODY  # bytes of the bodies of all unanswered requests
UPLOAD_TYPES = (
    *(".csv", ".json", ".jsonl", ".md", ".ndjson", ".parquet", ".tsv", ".txt", ".yaml", ".yml"),
)
BUSY = "The server is handling as much data as it can. Try again later."
TIMED_OUT = f"The request did not arrive within {BODY_TIMEOUT:.0f} seconds. Try again."
TOO_LARGE = f"A request can hold at most {MAX_BODY // 2**20} MB."
CROSS_SITE = "Requests from pages of other sites are not answered."
_DISPOSITION = re.compile(rb"content-disposition:([^\r\n]*)", re.I)
_FILE_NAME = re.compile(rb'filename\*?\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))', re.I)
Refusal = tuple[int, str]  # HTTP status and sentence


class RequestChecks:
    """ASGI middleware that refuses requests with a wrong host, origin or body, with a message."""

    def __init__(self, app: Any, names: HostNames) -> None:
        self.app, self.names = app, names
        self.pending = 0  # bytes of the bodies of unanswered requests

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope)
        if scope["type"] == "websocket":
            if refusal is None:
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})  # the client sees 403
            return
        messages: list[Any] = []
        try:
            if refusal is None and scope["method"] not in ("GET", "HEAD"):
                refusal = await self._read_body(scope, receive, messages)
            if refusal is None:
                await self.app(scope, _replay(messages, receive), send)
            else:
                status, sentence = refusal
                await PlainTextResponse(sentence, status)(scope, receive, send)
        finally:
            self.pending -= sum(map(_size, messages))

    async def _read_body(self, scope: Any, receive: Any, messages: list[Any]) -> Refusal | None:
        """Append the messages of a request's body; return the reason if it is refused."""
        length = next(_values(scope, b"content-length"), "0")
        is_number = re.fullmatch("[0-9]+", length) is not None
        if is_number and (len(length) > 12 or int(length) > MAX_BODY):
            return 413, TOO_LARGE
        remaining, has_more = MAX_BODY, True
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while has_more and remaining >= 0:
                    if self.pending > MAX_PENDING:
                        return 503, BUSY
                    message = await receive()
                    messages.append(message)
                    self.pending += _size(message)
                    remaining -= _size(message)
                    has_more = message["type"] == "http.request" and message.get("more_body", False)
        except TimeoutError:
            return 408, TIMED_OUT
        if remaining < 0:
            return 413, TOO_LARGE
        if scope["path"].rstrip("/").endswith("/upload"):
            body = b"".join(message.get("body", b"") for message in messages)
            if not all(name.endswith(UPLOAD_TYPES) for name in _file_names(body)):
                return 415, f"An uploaded file must be one of {', '.join(UPLOAD_TYPES)}."
        return None

    def refusal(self, scope: Any) -> Refusal | None:
        """Return status and sentence for a request with a wrong host or origin, else None."""
        hosts, origins = list(_values(scope, b"host")), list(_values(scope, b"origin"))
        if len(hosts) != 1 or not self.names.accepts(hosts[0]):
            name = "several hosts" if len(hosts) > 1 else f"'{''.join(hosts)[:80]}'"
            return 403, (
                f"This server does not answer to {name}. Open the address that it printed, or "
                "start it with --name."
            )
        sites = set(_values(scope, b"sec-fetch-site"))
        same_site = "same-origin" in sites
        if any(not (same_site or self.names.is_same_origin(o, hosts[0])) for o in origins):
            return 403, CROSS_SITE
        # Browsers send these headers for fetches by other sites, which are refused, and if a person
        # follows a link to this page, which is allowed.
        is_link = "navigate" in _values(scope, b"sec-fetch-mode") and scope.get("method") == "GET"
        if {"cross-site", "same-site"} & sites and not origins and not is_link:
            return 403, CROSS_SITE
        return None


def _size(message: Any) -> int:
    return len(message.get("body", b""))


def _file_names(body: bytes) -> Iterator[str]:
    """Yield the file names in a multipart form, in lower case."""
    for line in _DISPOSITION.finditer(body):
        for match in _FILE_NAME.finditer(line[1]):
            yield (match[1] or match[2] or b"").decode("utf-8", "replace").strip().lower()


def _replay(messages: list[Any], receive: Any) -> Any:
    """Return a `receive` for the app: the messages that were read already, then further ones."""
    remaining = iter(messages)

    async def receive_again() -> Any:
        message = next(remaining, None)
        return message if message is not None else await receive()

    return receive_again


def _values(scope: Any, name: bytes) -> Iterator[str]:
    return (value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)
