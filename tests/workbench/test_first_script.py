"""A script before Gradio's own, in every page and in nothing else."""

import asyncio

import pytest

from workbench.first_script import FIRST, FirstScript

PAGE = b"<html><head><title>x</title></head></html>"


def answer(kind, *parts, **more):
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

    asyncio.run(FirstScript(app)({"type": "http"}, None, send))
    start, *bodies = sent
    return dict(start["headers"]), b"".join(body["body"] for body in bodies)


@pytest.mark.parametrize("cut", [0, 8, len(PAGE)])
def test_a_page_starts_with_the_script(cut):
    headers, body = answer(b"text/html; charset=utf-8", PAGE[:cut], PAGE[cut:])
    assert body == PAGE.replace(b"<head>", FIRST)
    assert b"performance.now" in body
    assert int(headers[b"content-length"]) == len(body)


def test_other_answers_are_left_alone():
    assert answer(b"application/json", PAGE)[1] == PAGE
    packed = answer(b"text/html", PAGE, headers=[(b"content-encoding", b"br")])
    assert packed[1] == PAGE
