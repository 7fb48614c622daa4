"""The web app: Gradio's page mounted in FastAPI, behind the checks of this package."""

import hashlib
import logging
import re
from importlib.util import find_spec

import gradio as gr
import uvicorn
from fastapi import FastAPI, Response
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from .. import words
from ..base.assets import PLOTLY_JS, script, shared_definitions, style
from ..views.picker_markup import entries
from ..widgets.theme import THEME
from .access import login
from .browser_cookie import BrowserCookie
from .connections import LimitedConnection
from .ended_streams import EndedStreams
from .gradio_patches import FirstScripts
from .host_names import ANY_NAME, HostNames
from .request_checks import MAX_BODY, RequestChecks
from .request_errors import handlers
from .security_headers import SecurityHeaders
from .zip_download import ROUTE, answer_download

with PLOTLY_JS.open(encoding="utf-8") as _file:  # the first line names the version
    _version = re.search(r"v(\d+\.\d+\.\d+)", _file.read(200))
PLOTLY_VERSION = _version[1] if _version else ""
PAGE_SCRIPTS = (
    "address.js",
    "gestures.js",
    "read-forms.js",
    "change-listener.js",
    "expert-fold.js",
    "plot-pdf.js",
    "dropdown-tab.js",
    "pickers.js",
    "terms.js",
    "guidance.js",
)
PAGE_CONSTANTS = {
    "ENTRIES": entries(),
    "MORE": words.pickers.MORE,
    "TERMS": words.glossary.TERMS,
    "GUIDANCE": words.guidance.page_values(),
}
# Scripts of the whole page, and Plotly. New scripts and a new version of Plotly have a new address
# that no browser cached.
SCRIPTS_ROUTE = "/page-scripts.js"
HEAD = f'<script async src="./static-files/{PLOTLY_JS.name}?{PLOTLY_VERSION}"></script>'


class PageScripts:
    """The file with all scripts of a page."""

    def __init__(self) -> None:
        self.text = script(*PAGE_SCRIPTS, **PAGE_CONSTANTS) + shared_definitions()

    @property
    def address(self) -> str:
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return f".{SCRIPTS_ROUTE}?{digest[:16]}"

    async def answer(self) -> Response:
        """Return the file, which a browser may keep, since other scripts have another address."""
        lasting = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(self.text, media_type="text/javascript", headers=lasting)


def web_app(page: gr.Blocks, names: HostNames, password: str = "") -> FastAPI:
    """Return the ASGI app of a page.

    password: "" for none. With a password there is no MCP server, because agents do not log in.
    """
    app = FastAPI(
        openapi_url=None,
        middleware=[
            Middleware(GZipMiddleware, compresslevel=5),
            Middleware(SecurityHeaders, allow_frames=ANY_NAME in names.more),
            Middleware(RequestChecks, names=names),
            Middleware(EndedStreams),
            Middleware(BrowserCookie),
        ],
    )
    app.mount("/static-files", StaticFiles(directory=PLOTLY_JS.parent))
    scripts = PageScripts()
    app.add_api_route(SCRIPTS_ROUTE, scripts.answer, methods=["GET"], response_model=None)
    app.add_api_route(ROUTE, answer_download, methods=["GET"], response_model=None)
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=names.host,
        app_kwargs={
            "exception_handlers": handlers(),
            "middleware": [Middleware(FirstScripts, files=[scripts.address])],
        },
        auth=login(password) if password else None,
        auth_message=words.spectra.LOGIN if password else None,
        mcp_server=find_spec("mcp") is not None and not password,
        theme=THEME,
        css=style(),
        head=HEAD,
        footer_links=["api", "settings"],
        max_file_size=MAX_BODY,
        run_history=False,
        ssr_mode=False,  # a second server, which would send requests in place of the browser
    )


class PageServer(uvicorn.Server):
    """Uvicorn's server, which prints the address of the page once it listens."""

    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host = "127.0.0.1" if self.config.host == "0.0.0.0" else self.config.host
            print(f"Running on http://{host}:{self.config.port}", flush=True)

    async def shutdown(self, sockets: list | None = None) -> None:
        """End the server. Streams of answers are still open; uvicorn logs each as an error."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def page_server(app: FastAPI, host: str, port: int) -> PageServer:
    """Return a server of the app, not started."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=LimitedConnection,
        log_level="warning",
        timeout_graceful_shutdown=1,  # streams of answers stay open
    )
    return PageServer(config)
