"""Once a second, and when the page opens: the strip, the jobs, and marks that change when
something is ready.
"""

from typing import Any

import gradio as gr

from . import guide, markup, text
from .jobs.sweep import tables
from .keys import calibration_key, factor_key
from .parts import LIVE, QUIET, clicked, download, spoken
from .session import Session


def wire(session: Session) -> None:
    seen = gr.State(
        ()
        # what this browser was last sent: only what changed is sent again, so a selection in the log
        # stays
    )
    watched = [
        session.strip,
        session.job_panel,
        session.hint,
        session.shown,
        session.factored,
        session.surveyed,
        session.figures,
        session.stamp,
        session.guide,
    ]

    def look(seen: tuple, *said: Any) -> list[Any]:
        now = state(session, said)
        old = [*seen] if seen else [None] * len(now)
        sent = [
            new if new != before and new is not None else gr.skip()
            for new, before in zip(now, old, strict=True)
        ]
        kept = [new if new is not None else before for new, before in zip(now, old, strict=True)]
        return [*sent, kept if kept != old else gr.skip()]

    @spoken
    def act(event: gr.EventData) -> Any:
        said = clicked(event)
        if said["action"] == "table":
            return download(
                said["file"],
                tables(session.jobs.get(said["job"]), session.runs)[said["file"]],
            )
        {"cancel": session.jobs.cancel, "again": session.jobs.again, "forget": session.jobs.forget}[
            said["action"]
        ](said["job"])
        return gr.skip()

    gr.Timer(1).tick(
        look, [seen, *session.form.all], [*watched, seen], **QUIET, concurrency_limit=None
    )
    for board in (session.strip, session.job_panel):
        board.select(act, None, session.downloads, **QUIET).then(
            look, [seen, *session.form.all], [*watched, seen], **LIVE
        )


def state(session: Session, said: Any) -> list[Any]:
    """In the order of `watched`; None: leave as it is."""
    recipe = session.form.try_recipe(said)
    analysed = recipe is not None and session.peek_analysis(recipe) is not None
    factored = recipe is not None and session.peek_factors(recipe) is not None
    return [
        markup.strip(session.jobs),
        markup.job_list(session.jobs),
        markup.note("" if analysed or recipe is None or session.jobs.waiting() else text.STALE),
        list(calibration_key(recipe)) if analysed else None,
        list(factor_key(recipe)) if factored else None,
        session.methods_here(recipe) if recipe else None,
        session.live.count(),
        session.runs.stamp(),
        guide.done(session, analysed, factored),
    ]
