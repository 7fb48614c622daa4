"""An answer stream whose page has closed."""

import logging

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from starlette.middleware import Middleware

from workbench.server.ended_streams import EndedStreams
from workbench.server.request_errors import handlers


def streaming(error: Exception) -> TestClient:
    """Return a client of the page's middleware around an app whose only stream fails after its
    first message.
    """
    inner = FastAPI(exception_handlers=handlers())

    async def messages():
        yield "data: first\n\n"
        raise error

    @inner.get("/queue/data")
    def stream() -> StreamingResponse:
        return StreamingResponse(messages(), media_type="text/event-stream")

    app = FastAPI(middleware=[Middleware(EndedStreams)])
    app.mount("/", inner)
    return TestClient(app)


def test_a_stream_of_a_closed_page_ends_without_a_traceback(caplog):
    with caplog.at_level(logging.INFO, "workbench.server"):
        streaming(HTTPException(404)).get("/queue/data?session_hash=closed")
    assert [record.exc_info for record in caplog.records if "stream" in record.message] == [None]


def test_a_fault_in_a_stream_is_logged_and_raised(caplog):
    with pytest.raises(OSError, match="disk"):
        streaming(OSError("disk")).get("/queue/data?session_hash=open")
    assert any(record.exc_info for record in caplog.records)
