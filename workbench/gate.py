"""The gate before Gradio: which hosts and origins may ask, and how much they may send.

A page of another site may ask a server of this machine in its reader's name, and may give its own
name this machine's address (DNS rebinding). What it cannot do is choose the Host and Origin headers
that the browser sends, so these are checked.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("workbench.gate")

LARGEST = 8 * 2**20  # bytes of a request: a form, a recipe, a text of prompts
BODY = 120.0  # seconds in which the body of a request has to come
HELD = 16 * LARGEST  # bytes of the bodies of all requests that are not answered
BUSY = "The server holds as much as it can of requests that are not answered. Try again later."
NO_REQUEST = "The request is none that the page makes, so it is not answered. Check its body."
FAILED = "The server failed to answer this request. The server's log has the details."
# What reading a request that is none leads to.
MISTAKES = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
ROUTING = ("fastapi.routing", "starlette.routing")  # modules that call what answers
OURS = ("workbench", "lrcore")
LATE = f"The request did not come within {BODY:.0f} seconds. Try again."
UPLOADS = (".json", ".jsonl", ".parquet", ".txt", ".yaml", ".yml")
ANY = "*"  # a name that stands for all
SHARED = ".gradio.live"  # the addresses that Gradio gives its public tunnels
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::\d+)?")
_DISPOSITION = re.compile(rb"content-disposition:([^\r\n]*)", re.I)
_FILE = re.compile(rb'filename\*?\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))', re.I)
_DEFAULT_PORT = re.compile(r":(80|443)$")


@dataclass(frozen=True)
class Names:
    """The names of a page in Host headers.

    host: the address that the server listens on. others: further names, such as that of a reverse
    proxy; `ANY` for all. shared: whether Gradio's public tunnel leads here.
    """

    host: str = "127.0.0.1"
    others: tuple[str, ...] = ()
    shared: bool = False

    @property
    def alone(self) -> bool:
        """Whether only this machine reaches the page: further names are for others."""
        return _is_loopback(self.host) and not self.shared and not self.others

    def hold(self, header: str) -> bool:
        """Whether a Host header names this page. Where other machines reach it, any address in
        numbers does: a name of another site is what rebinding needs.
        """
        match = _HOST.fullmatch(header.strip().lower())
        name = match[1].strip("[]").rstrip(".") if match else ""
        if name and ANY in self.others:
            return True
        if name in {self.host.lower().strip("[]"), *map(str.lower, self.others)}:
            return True
        if self.shared and name.endswith(SHARED):
            return True
        return _is_loopback(name) or (not self.alone and _is_address(name))

    def same(self, origin: str, host: str) -> bool:
        """Whether an Origin header is of the page that is asked by this Host header, or of one of
        the further names.
        """
        try:
            asking = urlsplit(origin.strip().lower())
        except ValueError:  # half an address in brackets
            return False
        if asking.scheme not in ("http", "https") or not asking.netloc:
            return False
        own = _DEFAULT_PORT.sub("", host.strip().lower())
        return _DEFAULT_PORT.sub("", asking.netloc) == own or (
            (asking.hostname or "") in map(str.lower, self.others)
        )


class Gate:
    """ASGI middleware that refuses, with one sentence, what is not for this page."""

    def __init__(self, app: Any, names: Names) -> None:
        self.app, self.names = app, names
        self.held = 0  # bytes of bodies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refused = self.refusal(scope)
        if refused is not None and scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})  # answered with 403
        if refused is not None:
            return await _answer(send, *refused)
        if scope["type"] == "websocket":
            return await self.app(scope, receive, send)
        if scope["method"] == "GET":
            return await self._pass(scope, receive, send)
        parts: list[Any] = []
        try:
            refused = await self._read(scope, receive, parts)
            if refused is not None:
                return await _answer(send, *refused)
            await self._pass(scope, _again(parts, receive), send)
        finally:
            self.held -= sum(map(_size, parts))

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the page answer. What Gradio raises for a request that a route of its does not take
        is one sentence, and one line of the log: nothing of the page asks so. A fault of the server
        is a sentence too, and stands in the log as one.
        """
        begun: list[Any] = []

        async def sending(message: Any) -> None:
            begun.append(message["type"])
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            if begun:
                raise
            if _is_fault(error, scope):
                log.exception("failed: %r", scope["path"][:80])
                await _answer(send, 500, FAILED)
            else:
                log.warning("refused: %r (%s)", scope["path"][:80], type(error).__name__)
                await _answer(send, 400, NO_REQUEST)

    async def _read(self, scope: Any, receive: Any, parts: list[Any]) -> tuple[int, str] | None:
        """Put the messages of a request's body into parts; why it is refused, if it is."""
        claimed = next(_values(scope, b"content-length"), "0")
        more = not re.fullmatch("[0-9]+", claimed) or (
            len(claimed) < 12 and int(claimed) <= LARGEST
        )
        left = LARGEST if more else -1
        try:
            async with asyncio.timeout(BODY):
                while more and left >= 0:
                    if self.held > HELD:
                        return 503, BUSY
                    parts.append(await receive())
                    self.held += _size(parts[-1])
                    left -= _size(parts[-1])
                    last = parts[-1]
                    more = last["type"] == "http.request" and last.get("more_body", False)
        except TimeoutError:
            return 408, LATE
        if left < 0:
            return 413, f"A request may hold {LARGEST // 2**20} MB at most."
        if scope["path"].rstrip("/").endswith("/upload"):
            whole = b"".join(part.get("body", b"") for part in parts)
            if not all(name.endswith(UPLOADS) for name in _file_names(whole)):
                return 415, f"A file may be one of {', '.join(UPLOADS)}."
        return None

    def refusal(self, scope: Any) -> tuple[int, str] | None:
        """Status and sentence; None for a request that may pass."""
        hosts, origins = list(_values(scope, b"host")), list(_values(scope, b"origin"))
        if len(hosts) != 1 or not self.names.hold(hosts[0]):
            name = "several hosts" if len(hosts) > 1 else f"'{''.join(hosts)[:80]}'"
            return 403, (
                f"This server is not called {name}: open the address that it printed, or start it "
                "with --name."
            )
        within = "same-origin" in _values(scope, b"sec-fetch-site")
        strange = any(not (self.names.same(one, hosts[0]) or within) for one in origins)
        across = {"cross-site", "same-site"} & set(_values(scope, b"sec-fetch-site"))
        link = "navigate" in _values(scope, b"sec-fetch-mode") and scope.get("method") == "GET"
        if strange or (across and not origins and not link):
            return 403, "A page of another site asked, which this server does not answer."
        return None


def _is_fault(error: Exception, scope: Any) -> bool:
    """Whether a request failed by the server's fault. A client's is what a route of Gradio's cannot
    read in a body, a query or an address; what our own code raises inside of a route never is.
    """
    # late: what is imported with Gradio reads the environment, see `start`
    from gradio.route_utils import FnIndexInferError
    from starlette.requests import ClientDisconnect

    mistakes = (*MISTAKES, FnIndexInferError, ClientDisconnect)
    said = scope["method"] not in ("GET", "HEAD") or scope["query_string"]
    if not isinstance(error, mistakes) or not (said or scope.get("path_params")):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    routed = max((at for at, module in enumerate(modules) if module in ROUTING), default=-1)
    return any(module.partition(".")[0] in OURS for module in modules[routed + 1 :])


def _size(message: Any) -> int:
    return len(message.get("body", b""))


def _file_names(body: bytes) -> Iterator[str]:
    """The names of the files in a form, in lower case."""
    for line in _DISPOSITION.finditer(body):
        for match in _FILE.finditer(line[1]):
            yield (match[1] or match[2] or b"").decode("utf-8", "replace").strip().lower()


def _again(parts: list[Any], receive: Any) -> Any:
    """A `receive` that gives these messages, and then what else comes."""
    left = iter(parts)

    async def receive_again() -> Any:
        first = next(left, None)
        return first if first is not None else await receive()

    return receive_again


async def _answer(send: Any, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _values(scope: Any, name: bytes) -> Iterator[str]:
    return (value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
