"""The page, composed: its parts, the tabs, and what runs when it opens."""

from importlib.util import find_spec

import gradio as gr

import lrcore

from . import api, guide, selection, sidebar, text, tick
from .assets import PLOTLY_JS, STYLE, script
from .parts import QUIET
from .session import Session
from .tabs import TABS
from .theme import THEME

LAUNCH = {
    "mcp_server": find_spec("mcp") is not None,  # comes with gradio[mcp]
    "theme": THEME,
    "css_paths": [STYLE],
    "run_history": False,
    "footer_links": ["settings"],
}


def build_app(session: Session | None = None) -> gr.Blocks:
    """session: one whose shelf holds something already; a fresh one by default."""
    gr.set_static_paths([PLOTLY_JS.parent])
    session = session or Session()
    with gr.Blocks(title=text.NAME, analytics_enabled=False, fill_width=True) as demo:
        session.make_components()
        session.mark = selection.mark()
        session.guide = guide.build()
        session.titles = [tab.TITLE for tab in TABS]
        session.opened = demo.load
        with gr.Sidebar(width=330, elem_id="sidebar"):
            sidebar.build(session)
        with gr.Tabs(elem_id="tabs") as session.tabs:
            for tab in TABS:
                with gr.Tab(tab.TITLE, id=tab.TITLE) as session.tab:
                    tab.build(session)
        selection.wire(session)
        tick.wire(session)
        api.build(session)
        demo.load(lambda: session.start_analysis(lrcore.Recipe()) and None, None, None, **QUIET)
        demo.load(None, None, None, js=script("close-sidebar.js"), **QUIET)
    return demo
