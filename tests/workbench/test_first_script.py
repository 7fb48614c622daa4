"""A script before Gradio's own, in every page and in nothing else."""

import asyncio
import gzip
import re

import pytest

from workbench.assets import FOLDER
from workbench.first_script import FIRST, FirstScript
from workbench.plotly_file import NAME, PlotlyFile

PAGE = b"<html><head><title>x</title></head></html>"


def answer(kind, *parts, accepts=b"", **more):
    """What a browser gets of an application that answers with these parts."""
    sent = []
    length = str(sum(map(len, parts))).encode()
    headers = [(b"content-type", kind), (b"content-length", length), *more.get("headers", ())]

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for i, part in enumerate(parts, start=1):
            last = i == len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": not last})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"accept-encoding", accepts)]}
    asyncio.run(FirstScript(app)(scope, None, send))
    start, *bodies = sent
    return dict(start["headers"]), b"".join(body["body"] for body in bodies)


@pytest.mark.parametrize("cut", [0, 8, len(PAGE)])
def test_a_page_starts_with_the_script(cut):
    headers, body = answer(b"text/html; charset=utf-8", PAGE[:cut], PAGE[cut:])
    assert body == PAGE.replace(b"<head>", FIRST)
    assert b"performance.now" in body
    assert f'src="./{NAME}"'.encode() in body
    assert int(headers[b"content-length"]) == len(body)


def test_one_script_alone_writes_the_address():
    """Which it remembers: one that wrote beside it was forgotten where the browser goes back."""
    scripts = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js")}
    own = [name for name, words in scripts.items() if re.search(r"\bhistory\b[.\[]", words)]
    assert own == ["address.js"]
    assert (FOLDER / own[0]).read_bytes() in FIRST


def test_other_answers_are_left_alone():
    assert answer(b"application/json", PAGE)[1] == PAGE
    packed = answer(b"text/html", PAGE, headers=[(b"content-encoding", b"br")])
    assert packed[1] == PAGE


def test_a_page_is_compressed_for_a_browser_that_takes_that():
    headers, body = answer(b"text/html", PAGE * 100, accepts=b"br;q=1, gzip")
    assert headers[b"content-encoding"] == b"gzip"
    assert int(headers[b"content-length"]) == len(body) < len(gzip.decompress(body)) / 2
    assert gzip.decompress(body).startswith(PAGE.replace(b"<head>", FIRST))


def plotly(path, accepts):
    """Headers and body of what is answered for a path; None where the application is asked."""
    sent = []

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        sent.append(None)

    asked = {"type": "http", "method": "GET", "path": path}
    asked["headers"] = [(b"accept-encoding", accepts)]
    asyncio.run(PlotlyFile(app)(asked, None, send))
    return None if sent[0] is None else (dict(sent[0]["headers"]), sent[1]["body"])


def test_plotly_is_served_compressed_and_to_be_kept():
    headers, packed = plotly(f"/{NAME}", b"gzip, br")
    plain_headers, plain = plotly(f"/{NAME}", b"")
    assert gzip.decompress(packed) == plain
    assert headers[b"content-encoding"] == b"gzip"
    assert b"content-encoding" not in plain_headers
    assert b"immutable" in headers[b"cache-control"]
    assert plotly("/gradio_api/info", b"gzip") is None
