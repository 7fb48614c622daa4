"""Answers to requests that fail inside Gradio's routes: one sentence instead of a traceback."""

import logging
from traceback import walk_tb
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse

log = logging.getLogger("workbench.server")

INVALID = "Invalid request. Check its address and its body."
FAILED = "The server failed to answer this request. The server's log has the details."
ROUTING = ("fastapi.routing", "starlette.routing")  # modules that call the functions of a route
PROJECT = ("workbench", "low_rank_workbench", "lrcore")


def handlers() -> dict[Any, Any]:
    """Return FastAPI exception handlers for Gradio's app, by exception class."""
    # imported late: modules of Gradio read environment variables that the command line sets
    from gradio.route_utils import FnIndexInferError
    from starlette.requests import ClientDisconnect

    # the exceptions of routes that read an invalid body, query or address
    invalid = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
    kinds = (*invalid, FnIndexInferError, ClientDisconnect)
    return dict.fromkeys(kinds, answer_invalid) | {Exception: answer_failure}


async def answer_invalid(request: Request, error: Exception) -> PlainTextResponse:
    """Answer 400 if the client's data caused the error, else 500."""
    if _is_server_fault(request, error):
        return await answer_failure(request, error)
    log.warning("invalid request: %r (%s)", request.url.path[:80], type(error).__name__)
    return PlainTextResponse(INVALID, 400)


async def answer_failure(request: Request, error: Exception) -> PlainTextResponse:
    """Log the error and answer 500.

    An HTTPException after the answer began is no fault: a stream ends because its page is closed,
    see `EndedStreams`.
    """
    if isinstance(error.__cause__, HTTPException):
        log.info("stream ended: %r (%s)", request.url.path[:80], error.__cause__.detail)
        return PlainTextResponse(error.__cause__.detail, error.__cause__.status_code)
    log.error("request failed: %r", request.url.path[:80], exc_info=error)
    return PlainTextResponse(FAILED, 500)


def _is_server_fault(request: Request, error: Exception) -> bool:
    """Return True if no data of the client can explain the error.

    An error in code of this project is always the server's fault.
    """
    has_data = request.method not in ("GET", "HEAD") or request.url.query
    if not (has_data or request.path_params):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    route = max((i for i, module in enumerate(modules) if module in ROUTING), default=-1)
    return any(module.partition(".")[0] in PROJECT for module in modules[route + 1 :])
