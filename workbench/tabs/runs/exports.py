"""Exports of the opened run: folders or files for other programs, downloads, and uploads to the
hub.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.recipes.history import standard_fit_of
from lrcore.recipes.targets import TARGETS
from lrcore.runs.runs import Run

from ... import words
from ...jobs import ExportJob, PushJob
from ...jobs.exports import exported_path
from ...state.downloads import download_of, issue_ticket
from ...state.store import Store
from ...views import markup, run_text
from ...widgets.components import FLOW, PRIMARY, button_row_html, download_from, panel
from ...widgets.events import QUIET, EventValues, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page, put_recipe

# ids of buttons
COMPATIBLE_RANKS, EXPORT, DOWNLOAD = "stock-ranks", "export", "export-download"


@dataclass(frozen=True)
class Exports:
    """fit: whether a standard architecture can load the run. folders: hidden until the run is
    exported.
    """

    fit: gr.HTML
    format: gr.Dropdown
    actions: gr.HTML
    folders: gr.Textbox
    push: FieldGroup


def layout() -> Exports:
    """Place the controls."""
    text = words.compare_and_runs
    with gr.Accordion(text.EXPORT, open=True, elem_classes=FLOW):
        fit = panel("stock-fit")
        kind = gr.Dropdown(
            [(label, name) for name, label in text.FORMATS.items()],
            value=text.WITH_CODE,
            label=text.FORMAT,
            elem_id="export-format",
        )
        actions = panel("export-actions")
        folders = gr.Textbox(
            label=text.EXPORTED_TO,
            interactive=False,
            buttons=["copy"],
            lines=1,
            elem_id="exported",
            visible=False,
        )
        fields = [
            Field("push-repo", text.REPOSITORY, "", placeholder="owner/name"),
            Field("push-private", text.PRIVATE, True),
        ]
        begin = ("push", text.PUSH)
        send = field_group("push-fields", fields, begin, text.PUSH_HELP, elem_classes=EXPERT)
    return Exports(fit, kind, actions, folders, send)


def wire(page: Page, store: Store, parts: Exports, opened: gr.State) -> None:
    """Attach the handlers. opened: the id of the opened run."""
    chosen, outputs = [opened, parts.format], [*page.recipe_outputs, page.downloads]
    parts.actions.select(bind(press, page, store), chosen, outputs, **QUIET)
    inputs = [opened, parts.format, parts.push]
    listen([parts.push.value.submit], bind(push_fields, store), inputs, None, **QUIET)


def outputs(parts: Exports) -> list[Any]:
    """Return the components that change with the opened run."""
    return [parts.fit, parts.actions, parts.folders]


def values(run: Run, folders: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """Return the values of `outputs`. folders: of the exports so far."""
    fit = standard_fit_of(run.history)
    labels = {EXPORT: words.compare_and_runs.EXPORT}
    if fit and fit.ranks and not fit.qualifies:
        labels = {COMPATIBLE_RANKS: words.compare_and_runs.COMPATIBLE_RANKS, **labels}
    if folders:
        labels[DOWNLOAD] = words.compare_and_runs.DOWNLOAD
    return (
        markup.folded(words.compare_and_runs.LOADING_EXPORTS, words.compare_and_runs.EXPORT_HELP)
        + markup.note(run_text.standard_fit(fit, not run.ranks_csv)),
        button_row_html(labels, classes={EXPORT: PRIMARY}),
        gr.update(value="\n".join(folders), visible=bool(folders)),
    )


def press(
    page: Page, store: Store, event: gr.EventData, run_id: str, target: str
) -> dict[Any, Any]:
    """Load compatible ranks, export a run, or download an export. Returns values by component."""
    pressed = EventValues(event)
    action = pressed["action"]
    if action == COMPATIBLE_RANKS:
        return dict(zip(page.recipe_outputs, use_compatible_ranks(store, run_id), strict=True))
    if action == DOWNLOAD:
        return {page.downloads: download(store, run_id, target)}
    if action != EXPORT:
        raise pressed.unclear("action")
    export(store, run_id, target)
    return {page.downloads: gr.skip()}


def use_compatible_ranks(store: Store, run_id: str) -> list[Any]:
    """Load the recipe of a run with ranks that a standard architecture supports."""
    run = store.runs.get(run_id)
    ranks = standard_fit_of(run.history).to_dict()["ranks"]
    return put_recipe(run.recipe.with_(rank_overrides=ranks))


def export(store: Store, run_id: str, target: str) -> None:
    """Queue an export for a target."""
    store.jobs.submit(ExportJob(run_id, target, store.runs.get(run_id).name))


def download(store: Store, run_id: str, target: str) -> str:
    """Return the zip archive of an export as a file to download.

    Raises InputError if the run has not been exported for this target.
    """
    run = store.runs.get(run_id)
    name = re.sub(r"[^\w.-]+", "-", run.name, flags=re.ASCII).strip("-.") or run.id
    archive = download_of(exported_path(run, target), name)
    return download_from(f"./downloads/{issue_ticket(archive)}", archive.file_name)


def push_fields(store: Store, run_id: str, target: str, values: list[Any]) -> None:
    """Queue an export and the upload. values: of the fields."""
    push(store, run_id, target, *values)


def push(store: Store, run_id: str, target: str, repository: str, private: bool) -> None:
    """Queue an export and the upload.

    Raises InputError for an invalid name of a repository, and for a target that is a file.
    """
    name = store.runs.get(run_id).name
    if repository.count("/") != 1:
        raise lrcore.InputError(words.compare_and_runs.NOT_A_REPOSITORY.format(repository))
    if TARGETS[target].format == "gguf":
        raise lrcore.InputError(words.compare_and_runs.FILE_NOT_PUSHED)
    store.jobs.submit(PushJob(run_id, target, repository.strip(), private, name))
