"""The runs that the page shows: lrcore's, under the names used here, and those that are chosen."""

from typing import TYPE_CHECKING, Any

import lrcore

if TYPE_CHECKING:
    from .session import Session

Run, Runs, root = lrcore.Run, lrcore.Runs, lrcore.runs_root
MOST_RUNS = 6


def picked(session: "Session", ids: list[str] | None) -> list[Run]:
    known = set(session.runs.ids())
    return [session.runs.get(run_id) for run_id in ids or [] if run_id in known]


def dense_recipe(session: "Session", ids: list[str], said: Any) -> lrcore.Recipe:
    """The dense model of the first chosen run; without a run, the form's."""
    runs = picked(session, ids)
    return runs[0].recipe if runs else session.form.recipe(said)
