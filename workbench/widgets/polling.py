"""Updates of the open page: status bar, jobs, and keys that change when a result is ready."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.evidence.measure import evidence_key

from .. import words
from ..jobs import TableJob, paper_table, sweep
from ..state.keys import calibration_key, factor_key, without_measurements
from ..state.quality import measured_qualities
from ..state.store import Store
from ..views import job_markup, markup, memory, picker_markup
from . import calibration_text, chosen, steps
from .components import download, heartbeat
from .events import LIVE, PRESSED, QUIET, EventValues, bind, listen, present_browser
from .form import try_recipe
from .page import Page


def wire(page: Page, store: Store) -> None:
    watched = [  # in the order of `state`
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
        page.finished_job,
        page.steps,
    ]
    update, inputs, outputs = (
        bind(poll, store),
        [page.digests, *page.form.inputs],
        [*watched, page.digests],
    )
    clock = heartbeat("heartbeat", lambda: version(store), lambda: is_busy(store))
    # `choice` changes when a recipe was loaded
    listen([clock.tick, page.choice.change], update, inputs, outputs, **LIVE)
    # Gradio closes its stream of answers after the last one. The answer to an event that arrives at
    # that moment is sent only when another event opens the stream again. This listener is such an
    # event, in case the answer to `update` was lost.
    clock.wake(lambda: None, None, None, **QUIET | {"trigger_mode": "multiple"})
    pressed = [page.status_bar.select, page.job_list.select]
    targets = [page.downloads, page.opened_run, page.run_address, page.chosen, page.tabs]
    act_and_poll = bind(acted, store)
    listen(pressed, act_and_poll, [page.chosen, *inputs], [*targets, *outputs], **PRESSED)


def version(store: Store) -> str:
    """Return a value that changes with everything that `state` reads outside the form."""
    parts = (
        job_markup.status_bar(store.jobs),
        job_markup.job_list(store.jobs),
        store.live.count(),
        store.runs.stamp(),
        store.objects.changes,
    )
    return digest(parts)


def is_busy(store: Store) -> bool:
    """Return True if running work will soon change `version`."""
    return bool(store.jobs.waiting()) or store.live.is_busy()


def poll(store: Store, digests: Mapping[str, str] | None, *values: Any) -> list[Any]:
    """Return the values of `state` that the page does not have yet, then `digests` with them.

    digests: of the values that the page has, by position. The page holds them, so an answer that is
    lost, or overtaken by an older one, is repeated by the next poll.
    """
    current, digests = state(store, values), digests or {}
    new_digests = {
        str(position): digest(value) for position, value in enumerate(current) if value is not None
    }
    changes = {
        position
        for position, new_digest in new_digests.items()
        if digests.get(position) != new_digest
    }
    return [
        *(
            value if str(position) in changes else gr.skip()
            for position, value in enumerate(current)
        ),
        {**digests, **new_digests} if changes else gr.skip(),
    ]


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that change with the `repr` of a value."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def state(store: Store, values: Sequence[Any]) -> list[Any]:
    """Return the values of the watched components; None leaves a component unchanged."""
    recipe = try_recipe(values)
    analyzed = recipe is not None and store.peek_analysis(recipe) is not None
    factored = recipe is not None and store.peek_factors(recipe) is not None
    browser = present_browser()
    waiting = [job for job in store.jobs.waiting() if job.concerns(browser)]
    runs = store.runs.all()
    has_run = recipe is not None and any(run.recipe.model == recipe.model for run in runs)
    has_run = has_run and not any(job.is_stored for job in waiting)
    stale = (
        ""
        if analyzed or recipe is None
        else words.spectra.STALE_FOR_NOW
        if waiting
        else words.spectra.STALE
    )
    run_ids = {run.id for run in runs}
    return [
        job_markup.status_bar(store.jobs, browser, run_ids),
        job_markup.job_list(store.jobs, run_ids),
        markup.note(stale, "stale"),
        model_note(store, recipe),
        calibration_text.text_note(store, recipe),
        list(calibration_key(recipe)) if analyzed else None,
        factors_state(store, recipe) if recipe else None,
        store.methods_factorized(recipe) if recipe else None,
        store.live.count(),
        store.runs.stamp(),
        finished_job(store, browser),
        steps.done(analyzed, factored, has_run),
    ]


def finished_job(store: Store, browser: Hashable) -> str | None:
    """Return the id of the last job whose answers a browser has not opened yet, or None."""
    ids = [
        record.id
        for record in store.jobs.all()
        if record.job.opens_answers
        and record.state == "done"
        and not record.was_read
        and browser in record.clients
    ]
    return ids[-1] if ids else None


def model_note(store: Store, recipe: lrcore.Recipe | None) -> str:
    """Return the note and the device of a loaded model.

    Hidden data for the lists of methods and policies follow.
    """
    if recipe is None:
        return ""
    dense, measured = store.peek_dense(recipe), measured_qualities(store, recipe)
    hidden = picker_markup.measured(measured, recipe) if measured else ""
    if dense is None:
        return hidden
    return markup.note(dense.note) + memory.device_bar(dense) + hidden


def factors_state(store: Store, recipe: lrcore.Recipe) -> list[Any] | None:
    """Return a value that changes when the plan of a recipe has to be redrawn; None for no change.

    It is the key of the cached factors, and whether the plan is a draft. If only the measurements
    of the policy are missing, it is the key of the factors without them and the state of their job.
    """
    if store.peek_factors(recipe) is not None:
        is_draft = False
        with suppress(lrcore.InputError):  # a budget that cannot be met has no plan
            is_draft = store.is_draft(recipe)
        return [*factor_key(store.factors_recipe(recipe)), is_draft]
    missing = store.missing_evidence(recipe)
    if missing is None:
        return None
    progress = [missing.is_running, missing.seconds is None]
    return [*factor_key(without_measurements(recipe)), *evidence_key(recipe)[:1], *progress]


def acted(
    store: Store,
    event: gr.EventData,
    ids: list[str],
    digests: Mapping[str, str] | None,
    *values: Any,
) -> list[Any]:
    """Handle a button of the status bar or of a job, and return the values of `act` and `poll`."""
    return [*act(store, ids, event), *poll(store, digests, *values)]


def act(store: Store, ids: list[str], event: gr.EventData) -> list[Any]:
    """Handle a button of the status bar or of a job.

    ids: of the runs to compare. Returns values of the download, the open run (page and address),
    the runs to compare, and the open tab.
    """
    pressed = EventValues(event)
    action, job_id = pressed["action"], pressed["job"]
    unchanged = gr.skip()
    if action == "table":
        record = store.jobs.get(job_id)
        if record is None:
            raise lrcore.InputError(words.compare_and_runs.RUNS_DELETED)
        if isinstance(record.job, TableJob):
            files = paper_table.table_files(store, job_id, record.job)
        else:
            files = sweep.table_files(record, store.runs)
        return [download(pressed["file"], files[pressed["file"]]), *[unchanged] * 4]
    if action in ("open", "compare"):
        run_ids = runs_of_job(store, job_id)
        if action == "open":
            return [
                unchanged,
                run_ids[0],
                run_ids[0],
                unchanged,
                gr.Tabs(selected=words.compare_and_runs.RUNS_TAB),
            ]
        compared = chosen.add(store, ids, run_ids)
        return [
            unchanged,
            unchanged,
            unchanged,
            compared,
            gr.Tabs(selected=words.compare_and_runs.COMPARE_TAB),
        ]
    actions = {
        "cancel": store.jobs.cancel,
        "again": store.jobs.restart,
        "forget": partial(paper_table.remove, store),
        "read": store.jobs.mark_read,
    }
    if action not in actions:
        raise pressed.unclear("action")
    actions[action](job_id)
    return [unchanged] * 5


def runs_of_job(store: Store, job_id: str) -> list[str]:
    """Return the existing runs of a job.

    Raises InputError if all of them were deleted since the last poll of the page.
    """
    record = store.jobs.get(job_id)
    run_ids = [] if record is None else [run.id for run in store.runs_by_id(record.result)]
    if not run_ids:
        raise lrcore.InputError(words.compare_and_runs.RUNS_DELETED)
    return run_ids
