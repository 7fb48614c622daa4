"""Slow, idle and disconnected clients, which must not block other clients."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, suppress

import httpx
import pytest
import uvicorn
from page_server import served

from workbench.app.app import build_app
from workbench.jobs import KINDS
from workbench.server import connections, request_checks
from workbench.server.host_names import HostNames
from workbench.server.request_checks import BUSY, TIMED_OUT, RequestChecks
from workbench.server.web_app import page_server
from workbench.state.store import Store

PATIENCE = 60  # seconds until a test fails
POST = b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PART = POST + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000\r\n\r\n--b"
READ = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Serve the page, and return its address."""
    app = build_app(Store(tmp_path_factory.mktemp("slow") / "runs", KINDS))
    with served(app) as url:
        yield url


@pytest.fixture
def connected():
    """Return a function that opens connections and sends bytes; close them at the end."""
    with ExitStack() as held:

        def connect(url, sent=b"", count=1):
            host, port = url.removeprefix("http://").split(":")
            made = []
            for _ in range(count):
                connection = held.enter_context(
                    socket.create_connection((host, int(port)), PATIENCE)
                )
                connection.sendall(sent)
                made.append(connection)
            return made

        yield connect


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        (b"", 200),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", 50),
        (PART, 50),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", 50),
        (READ * 20, 5),  # without reading the responses
    ],
    ids=("idle", "incomplete header", "stalled upload", "no chunk", "unread responses"),
)
def test_other_clients_are_served_while_connections_stall(page, connected, sent, count):
    held = connected(page, sent, count)
    with httpx.Client(base_url=page, timeout=PATIENCE) as client:
        assert client.get("/config").status_code == 200
        assert client.post("/gradio_api/call/models", json={"data": []}).status_code == 200
        uploaded = client.post("/gradio_api/upload", files={"files": ("a.json", b"{}")})
        assert uploaded.status_code == 200
    assert len(held) == count
    if not sent:  # an idle connection can still be used
        held[0].sendall(READ)
        assert held[0].recv(12) == b"HTTP/1.1 200"


def test_the_page_has_these_limits(page):
    config = page_server(lambda: None, "127.0.0.1", 0).config
    config.load()
    assert config.http_protocol_class is connections.LimitedConnection


@pytest.fixture
def limited(monkeypatch):
    """Yield the address of a server that only has the request checks, with short timeouts."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr(request_checks, "BODY_TIMEOUT", 0.2)

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    config = uvicorn.Config(
        RequestChecks(app, HostNames()),
        port=0,
        log_level="critical",
        http=connections.LimitedConnection,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    end = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    running.join(PATIENCE)


def drip(connection, seconds: float) -> None:
    """Send a byte repeatedly."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(b"a")
        time.sleep(0.01)


def receive_all(connection) -> bytes:
    """Return all bytes received until the server closes the connection."""
    received = b""
    with suppress(ConnectionResetError):  # if the server does not read all sent bytes
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", READ, READ + b"GET / HT"])
def test_a_connection_without_a_complete_request_is_closed(limited, connected, sent):
    (connection,) = connected(limited, sent)
    answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 200") if READ in sent else answer == b""


def test_a_header_sent_byte_by_byte_times_out(limited, connected):
    """The timeout is for the complete header."""
    (connection,) = connected(limited, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(connection, PATIENCE)


@pytest.mark.parametrize("sent", [PART, POST + b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_stalled_body_is_refused_with_an_error_message(limited, connected, sent):
    (connection,) = connected(limited, sent)
    answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert answer.endswith(TIMED_OUT.encode())


def test_the_length_of_a_header_is_limited(limited, connected, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", PATIENCE)
    (connection,) = connected(limited)
    with suppress(OSError):  # the server closes the connection at the limit
        connection.sendall(READ[:-2] + b"X: " + b"a" * 2**20)
    assert b"HTTP/1.1 200" not in receive_all(connection)


def test_the_number_of_connections_is_limited(limited, connected, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", PATIENCE)
    monkeypatch.setattr(connections, "connection_limit", lambda: 3)
    held = connected(limited, b"", 3)
    (next_one,) = connected(limited)
    assert receive_all(next_one) == b""
    held[0].sendall(READ)
    assert held[0].recv(12) == b"HTTP/1.1 200"


def test_the_total_size_of_pending_bodies_is_limited(monkeypatch):
    """Each body is within its limit; the first is incomplete while the second arrives."""
    monkeypatch.setattr(request_checks, "MAX_PENDING", 100)
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope)

    async def talk():
        gated, waits, rests = RequestChecks(app, HostNames()), asyncio.Event(), asyncio.Event()
        host = [(b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": host}

        def body(*sizes):
            pending_sizes = list(sizes)

            async def receive():
                if not pending_sizes:
                    rests.set()
                    await waits.wait()
                    return {"type": "http.disconnect"}
                return {
                    "type": "http.request",
                    "body": bytes(pending_sizes.pop(0)),
                    "more_body": True,
                }

            return receive

        async def send(message):
            sent.append(message)

        first = asyncio.create_task(gated(scope, body(60), send))
        await rests.wait()
        await gated(scope, body(60, 60), send)
        waits.set()
        await first
        return gated.pending

    assert asyncio.run(talk()) == 0
    assert [message.get("status") for message in sent] == [503, None]
    assert sent[1]["body"] == BUSY.encode()
    assert len(passed) == 1  # the first request; its client disconnected
