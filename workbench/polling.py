"""When the page opens and while something happens: the status bar, the jobs, and keys that change
when something is ready.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import gradio as gr

import lrcore

from . import calibration_text, chosen, job_markup, markup, memory, run_text, steps, text
from .assets import script
from .components import download, heartbeat
from .events import LIVE, QUIET, bind, event_data, listen
from .form import try_recipe
from .jobs import TableJob, unmeasured_evidence
from .jobs.sweep import tables
from .jobs.table import written
from .keys import calibration_key, factor_key, unmeasured
from .page import Page
from .store import Store


def wire(page: Page, store: Store) -> None:
    watched = [
        page.status_bar,
        page.job_list,
        page.hint,
        page.model_note,
        page.text_note,
        page.analysis_key,
        page.factors_key,
        page.methods_ready,
        page.figure_count,
        page.runs_stamp,
        page.steps,
    ]
    look, inputs, outputs = bind(poll, store), [page.sent, *page.form.inputs], [*watched, page.sent]
    clock = heartbeat("heartbeat", lambda: version(store), lambda: runs(store))
    listen([clock.tick], look, inputs, outputs, **LIVE)
    # Gradio's server ends the stream of answers when it has sent the last one, and a question that
    # arrives just then is answered only once another one opens the stream anew. Where it was `look`
    # that got lost, no other would come: the page waits for its answer first.
    clock.wake(lambda: None, None, None, **QUIET | {"trigger_mode": "multiple"})
    listen([page.choice.change], look, inputs, outputs, **LIVE)  # a recipe was put into the form
    for board in (page.status_bar, page.job_list):
        goes_to = [page.downloads, page.opened_run, page.run_address, page.chosen, page.tabs]
        acted = board.select(bind(act, store), page.chosen, goes_to, **QUIET)
        acted.then(None, page.chosen, None, js=script("runs-address.js"), **QUIET)
        listen(acted, look, inputs, outputs, **LIVE)


def version(store: Store) -> str:
    """Changes whenever something does that `state` shows beside what the form holds."""
    parts = (
        job_markup.status_bar(store.jobs),
        job_markup.job_list(store.jobs),
        store.live.count(),
        store.runs.stamp(),
        store.objects.changes,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def runs(store: Store) -> bool:
    """Whether anything is under way that will soon change `version`."""
    return bool(store.jobs.waiting()) or store.live.busy()


def poll(store: Store, sent: Sequence[Any], *values: Any) -> list[Any]:
    """What has changed since `sent`, in the order of `state`; then what the browser has now."""
    now = state(store, values)
    old = [*sent] if sent else [None] * len(now)
    changed = [
        new if new != before and new is not None else gr.skip()
        for new, before in zip(now, old, strict=True)
    ]
    kept = [new if new is not None else before for new, before in zip(now, old, strict=True)]
    return [*changed, kept if kept != old else gr.skip()]


def state(store: Store, values: Sequence[Any]) -> list[Any]:
    """In the order of the components watched; None: leave as it is."""
    recipe = try_recipe(values)
    analysed = recipe is not None and store.peek_analysis(recipe) is not None
    factored = recipe is not None and store.peek_factors(recipe) is not None
    dense = None if recipe is None else store.peek_dense(recipe)
    waiting = store.jobs.waiting()
    made = bool(store.runs.ids()) and not any(job.kept for job in waiting)
    stale = "" if analysed or recipe is None else text.STALE_FOR_NOW if waiting else text.STALE
    return [
        job_markup.status_bar(store.jobs),
        job_markup.job_list(store.jobs),
        markup.note(stale, "stale"),
        markup.note("" if dense is None else dense.note) + device_note(dense),
        calibration_text.note(store, recipe),
        list(calibration_key(recipe)) if analysed else None,
        factors_state(store, recipe) if recipe else None,
        store.methods_factorised(recipe) if recipe else None,
        store.live.count(),
        store.runs.stamp(),
        steps.done(analysed, factored, made),
    ]


def device_note(dense: lrcore.LoadedModel | None) -> str:
    """What the loaded model computes on; nothing before it is loaded."""
    return "" if dense is None else markup.note(memory.device_line(dense), "device")


def factors_state(store: Store, recipe: lrcore.Recipe) -> list[Any] | None:
    """The key of the factors behind the sliders, and whether the plan is a draft; where only what
    the policy measures is missing, what is known of that.
    """
    if store.peek_factors(recipe) is not None:
        key = factor_key(store.factored_by(recipe))
        with suppress(lrcore.InputError):  # a budget that cannot be met has no plan
            return [*key, store.drafted(recipe)]
        return list(key)
    lacking = unmeasured_evidence(store, recipe)
    if lacking is None:
        return None
    known = [lacking.running, lacking.seconds is None]
    return [*factor_key(unmeasured(recipe)), *lrcore.evidence_key(recipe)[:1], *known]


def act(store: Store, ids: list[str], event: gr.EventData) -> list[Any]:
    """What a button of the status bar or of a job does; a table of a sweep is a download.

    ids: of the runs to compare. Returns the download, the run on show for the page and for the
    address, the runs to compare, and the open tab.
    """
    pressed = event_data(event)
    action, job_id = pressed["action"], pressed["job"]
    stays = gr.skip()
    if action == "table":
        record = store.jobs.get(job_id)
        if record is None:
            raise lrcore.InputError(run_text.GONE)
        if isinstance(record.job, TableJob):
            files = written(store, job_id, record.job)
        else:
            files = tables(record, store.runs)
        return [download(pressed["file"], files[pressed["file"]]), *[stays] * 4]
    if action in ("open", "compare"):
        made = made_by(store, job_id)
        if action == "open":
            return [stays, made[0], made[0], stays, gr.Tabs(selected=run_text.RUNS_TAB)]
        compared = chosen.add(store, ids, made)
        return [stays, stays, stays, compared, gr.Tabs(selected=run_text.COMPARE_TAB)]
    actions = {
        "cancel": store.jobs.cancel,
        "again": store.jobs.again,
        "forget": store.jobs.forget,
        "read": store.jobs.read,
    }
    if action not in actions:
        raise pressed.unclear("action")
    actions[action](job_id)
    return [stays] * 5


def made_by(store: Store, job_id: str) -> list[str]:
    """The runs of a job that are still there. Raises InputError where there are none."""
    record = store.jobs.get(job_id)
    there = [] if record is None else [run.id for run in store.chosen_runs(record.result)]
    if not there:
        raise lrcore.InputError(run_text.GONE)
    return there
