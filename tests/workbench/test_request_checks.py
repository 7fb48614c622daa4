"""Requests of foreign hosts and origins, oversized requests and wrong types of files."""

import asyncio
import logging

import pytest
from gradio.route_utils import FnIndexInferError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.testclient import TestClient

from workbench.server.host_names import HostNames
from workbench.server.request_checks import MAX_BODY, RequestChecks
from workbench.server.request_errors import FAILED, INVALID, handlers

LOOPBACK, LAN = HostNames(), HostNames("0.0.0.0")
PROXY = HostNames("127.0.0.1", ("bench.example",))


def send_request(names, method="GET", path="/", body=b"", kind="http", **headers):
    """Return the status and the body of the response; 200 if the checks passed."""
    passed, sent = [], []
    listed = [
        (key.replace("_", "-").encode(), value.encode())
        for key, values in ({"host": "127.0.0.1:7860"} | headers).items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    scope = {"type": kind, "method": method, "path": path, "headers": listed}
    parts = [body[at : at + 2**20] for at in range(0, len(body), 2**20)] or [b""]

    async def receive():
        first = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": first, "more_body": bool(parts)}

    async def page(scope, receive, send):
        received, is_incomplete = b"", scope["type"] == "http"
        while is_incomplete:
            message = await receive()
            received += message["body"]
            is_incomplete = message["more_body"]
        passed.append(received)

    async def send(message):
        sent.append(message)

    asyncio.run(RequestChecks(page, names)(scope, receive, send))
    if passed:
        assert not sent
        assert passed == [body]
        return 200, ""
    if kind == "websocket":
        assert sent[0]["type"] == "websocket.close"
        return 403, ""
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (LOOPBACK, "127.0.0.1:7860"),
        (LOOPBACK, "localhost:7860"),
        (LOOPBACK, "LOCALHOST"),
        (LOOPBACK, "[::1]:7860"),
        (LOOPBACK, "[::1]"),
        (LOOPBACK, "127.0.0.2:7860"),
        (LOOPBACK, "localhost.:7860"),
        (LOOPBACK, "127.0.0.1.:7860"),
        (HostNames("desk"), "desk:7860"),
        (LAN, "192.168.1.7:7860"),
        (LAN, "localhost"),
        (PROXY, "bench.example"),
        (HostNames("0.0.0.0", ("*",)), "owner-name.hf.space"),
    ],
)
def test_requests_to_the_names_of_the_server_pass(names, host):
    assert send_request(names, host=host) == (200, "")
    assert send_request(names, "POST", host=host, body=b"{}", origin=f"http://{host}") == (200, "")


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (LOOPBACK, "evil.example:7860"),
        (LOOPBACK, "localhost.evil.example"),
        (LOOPBACK, "127.0.0.1.evil.example"),
        (LOOPBACK, "192.168.1.7:7860"),
        (LOOPBACK, "x.gradio.live"),
        (LOOPBACK, ""),
        (LOOPBACK, ":7860"),
        (LOOPBACK, "."),
        (LOOPBACK, "[::2]:7860"),
        (LOOPBACK, "[::ffff:192.168.1.7]"),
        (LOOPBACK, "[::1"),
        (LOOPBACK, "[::1]evil.example"),
        (LOOPBACK, "[::1%evil]"),
        (LOOPBACK, "127.0.0.1:7860:1"),
        (LOOPBACK, "127.0.0.1:evil.example"),
        (LOOPBACK, "127.0.0.1/evil.example"),
        (LOOPBACK, "127.0.0.1, evil.example"),
        (LOOPBACK, "evil.example."),
        (LOOPBACK, "localhost.evil.example."),
        (LOOPBACK, "0x7f000001"),
        (LOOPBACK, "2130706433"),
        (LOOPBACK, "0.0.0.0:7860"),
        (LAN, "evil.example.:7860"),
        (LOOPBACK, "evil.example@127.0.0.1"),
        (LOOPBACK, ["127.0.0.1", "evil.example"]),
        (LOOPBACK, []),
        (LAN, "evil.example"),
        (PROXY, "bench.example.evil.example"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_foreign_host_name_is_refused(names, host, kind):
    """After DNS rebinding, a browser sends requests here under the name of a foreign site."""
    status, sentence = send_request(names, host=host, kind=kind)
    assert status == 403
    assert kind == "websocket" or sentence.startswith("This server does not answer to ")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1:7861",
        "http://127.0.0.1:7860.evil.example",
        "http://evil.example#http://127.0.0.1:7860",
        "file://127.0.0.1:7860",
        "http://[::1",
        "http://[evil.example]",
        "http://127.0.0.1:99999999",
        "http://127.0.0.1:7860:1",
        "http://evil.example@127.0.0.1:7860",
        "http://127.0.0.1:7860@evil.example",
        "http://[::1]:7860",
        "//127.0.0.1:7860",
        "null",
        "NULL",
        "",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_foreign_origin_is_refused(origin, method, kind):
    assert send_request(LOOPBACK, method, origin=origin, kind=kind)[0] == 403
    assert send_request(LOOPBACK, method, origin=origin)[0] == 403
    assert send_request(LAN, method, host="192.168.1.7:7860", origin=origin)[0] == 403


def test_a_cross_site_request_without_an_origin_is_refused():
    for where in ("cross-site", "same-site"):
        assert send_request(LOOPBACK, "POST", sec_fetch_site=where)[0] == 403
        for mode, status in (("navigate", 200), ("no-cors", 403), ("cors", 403)):
            # a link, an image or script, a fetch or stream
            assert send_request(LOOPBACK, sec_fetch_site=where, sec_fetch_mode=mode)[0] == status
        assert send_request(LOOPBACK, sec_fetch_site=where)[0] == 403
    assert send_request(LOOPBACK, "POST", sec_fetch_site="same-origin", origin="null")[0] == 200
    assert send_request(LOOPBACK, "POST")[0] == 200  # scripts send neither header


def test_a_proxy_that_rewrites_the_host_needs_its_name():
    assert send_request(PROXY, "POST", origin="https://bench.example")[0] == 200
    assert send_request(LOOPBACK, "POST", origin="https://bench.example")[0] == 403
    assert (
        send_request(PROXY, "POST", host="bench.example", origin="https://bench.example:443")[0]
        == 200
    )


def test_the_size_of_a_request_is_limited():
    assert send_request(LOOPBACK, "POST", body=bytes(MAX_BODY))[0] == 200
    assert send_request(LOOPBACK, "POST", body=bytes(MAX_BODY + 1))[0] == 413
    claimed = send_request(LOOPBACK, "POST", body=b"x", content_length=str(10**12))
    assert claimed == (413, "A request can hold at most 8 MB.")


def upload(name: str) -> bytes:
    return (
        b'--b\r\nContent-Disposition: form-data; name="files"; '
        + name.encode()
        + b"\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--\r\n"
    )


def test_uploads_of_other_file_types_are_refused():
    path = "/gradio_api/upload"
    for good in ('filename="recipe.json"', 'filename="a.b.YAML"', "filename=texts.parquet"):
        assert send_request(LOOPBACK, "POST", path, upload(good))[0] == 200
    for bad in (
        'filename="page.html"',
        'filename="recipe.json.exe"',
        'filename="weights.pkl"',
        'filename="model.zip"',
        'filename="training_args.bin"',
        "filename=\"x.json\"; filename*=UTF-8''x.svg",
        'filename="no-extension"',
        'filename=""',
        "FILENAME=shell.sh",
    ):
        status, sentence = send_request(LOOPBACK, "POST", path, upload(bad))
        assert (status, sentence[:20]) == (415, "An uploaded file mus"), bad
    many = upload('filename="a.json"') + upload('filename="b.html"')
    assert send_request(LOOPBACK, "POST", path + "/", many)[0] == 415


def failing_client(module, error):
    """Return a client of a page whose route, in a module of this name, raises an error."""
    inside = {"__name__": module, "error": error}
    exec("async def route(request):\n    raise error", inside)
    routes = [Route(path, inside["route"], methods=["GET", "POST"]) for path in ("/", "/file/{x}")]
    return TestClient(
        Starlette(routes=routes, exception_handlers=handlers()),
        "http://127.0.0.1",
        raise_server_exceptions=False,
    )


BAD_REQUESTS = (
    KeyError("x"),
    ValueError("x"),
    TypeError("x"),
    AttributeError("x"),
    RecursionError(),
)
REQUESTS = (("POST", "/"), ("GET", "/?x=1"), ("GET", "/file/1"))


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@pytest.mark.parametrize(
    "error", [*BAD_REQUESTS, FnIndexInferError("x"), ClientDisconnect()], ids=repr
)
def test_a_request_that_gradio_cannot_read_is_refused_and_logged_in_a_line(
    error, method, path, caplog
):
    answer = failing_client("gradio.routes", error).request(method, path)
    assert (answer.status_code, answer.text) == (400, INVALID)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)


SERVER_ERRORS = {
    "KeyError in the workbench": ("workbench.tabs.runs", KeyError("x"), REQUESTS[0]),
    "ValueError in the core": ("lrcore.runs", ValueError("x"), REQUESTS[1]),
    "OSError": ("gradio.routes", OSError("x"), REQUESTS[0]),
    "MemoryError": ("gradio.routes", MemoryError(), REQUESTS[2]),
    "request without input": ("gradio.routes", KeyError("x"), ("GET", "/")),
}


@pytest.mark.parametrize("case", SERVER_ERRORS)
def test_a_server_error_returns_a_message_and_is_logged_with_a_traceback(case, caplog):
    module, error, (method, path) = SERVER_ERRORS[case]
    answer = failing_client(module, error).request(method, path)
    assert (answer.status_code, answer.text) == (500, FAILED)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info[1] is error
