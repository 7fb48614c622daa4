"""The page put together: a `Store` (models, runs, jobs; no Gradio) and a `Page` (components)."""

import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

import lrcore

from . import (
    api,
    first_analysis,
    heap,
    left_pages,
    polling,
    selection_events,
    sidebar,
    slow_clients,
    slow_start,
    text,
    waiting,
)
from .access import login
from .assets import STYLE, script
from .ended_streams import EndedStreams
from .events import QUIET, bind, present_browser
from .first_script import FirstScript
from .form import START
from .gate import ANY, LARGEST, Gate, Names
from .gone_listeners import GoneListeners
from .jobs import KINDS, start_analysis
from .page import Page
from .plotly_file import PlotlyFile
from .quick_blocks import Blocks
from .security import SecurityHeaders
from .store import Store
from .tabs import TABS
from .theme import THEME


def launch_settings(names: Names, password: str = "") -> dict[str, Any]:
    """What the page is launched with. names: of the page; password: what is asked for, if any.

    Agents do not log in: with a password there is no MCP server.
    """
    gates = [
        Middleware(SecurityHeaders, framed=ANY in names.others),
        Middleware(Gate, names=names),
        Middleware(PlotlyFile),
        Middleware(FirstScript),
        Middleware(GoneListeners),
        Middleware(EndedStreams),
    ]
    return {
        "mcp_server": find_spec("mcp") is not None and not password,  # comes with gradio[mcp]
        "theme": THEME,
        "css_paths": [STYLE],
        "run_history": False,
        "footer_links": ["settings"],
        "max_file_size": LARGEST,
        "state_session_capacity": left_pages.MOST,
        "ssr_mode": False,  # a second server, which would ask in the browser's place
        "app_kwargs": {"middleware": gates},
        "auth": login(password) if password else None,
        "auth_message": text.LOGIN if password else None,
    }


def __getattr__(name: str) -> Any:
    """LAUNCH, the settings of a page of this machine's own: made anew each time, since Gradio adds
    to what it is given.
    """
    if name != "LAUNCH":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return launch_settings(Names())


PATIENCE = 3.0  # seconds that the page waits for the runs; 10,000 of them take half as long


def build_app(store: Store | None = None) -> gr.Blocks:
    """store: one that holds something already; a fresh one by default."""
    heap.share()
    slow_clients.limit()
    slow_start.wait()
    if store is None:
        store = Store(lrcore.runs_root(), KINDS, present_browser)
        reading = threading.Thread(target=read_ahead, args=(store,), daemon=True)
        reading.start()
        reading.join(PATIENCE)
    with Blocks(title=text.NAME, analytics_enabled=False, fill_width=True) as demo:
        titles = tuple(tab.TITLE for tab in TABS)
        page = Page(demo.load, titles, analysis_key=gr.State(first_analysis.put(store)))
        with gr.Sidebar(width=330, elem_id="sidebar"):
            sidebar.build(page, store)
        page.tabs.render()
        with page.tabs:
            for tab in TABS:
                with gr.Tab(tab.TITLE, id=tab.TITLE) as shown:
                    tab.build(page, store, shown)
        selection_events.wire(page)
        polling.wire(page, store)
        api.build(store)
        demo.load(bind(analyse_default, store), None, None, **QUIET)
        demo.load(None, None, None, js=script("close-sidebar.js"), **QUIET)
        waiting.limit(demo.queue()._queue)
        for event in demo.fns.values():
            if event.renderable:  # gr.render takes no show_progress_on; see QUIET
                event.show_progress_on = []
    return demo


def read_ahead(store: Store) -> None:
    """Read what was done to every run: of thousands, the first page would wait seconds for it."""
    with heap.staying(), suppress(Exception):  # who asks for the runs is told
        store.runs.all()


def analyse_default(store: Store) -> None:
    """What a newcomer sees first: the analysis of the form's defaults."""
    start_analysis(store, START, measure=False)
