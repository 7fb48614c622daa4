"""Exports of the opened run: folders or files for other programs, downloads, and uploads to the
hub.
"""

import re
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.recipes.history import standard_fit_of
from lrcore.recipes.targets import TARGETS

from ... import words
from ...jobs import ExportJob, PushJob
from ...jobs.exports import exported_path
from ...state.downloads import download_of, issue_ticket
from ...state.store import Store
from ...views import markup
from ...widgets.components import download_from, small_button
from ...widgets.events import QUIET, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page, put_recipe


@dataclass(frozen=True)
class Exports:
    """fit: whether a standard architecture can load the run. download, folders: hidden until the
    run is exported.
    """

    fit: gr.Markdown
    format: gr.Dropdown
    compatible_ranks: gr.Button
    export: gr.Button
    download: gr.Button
    folders: gr.Textbox
    push: FieldGroup


def layout() -> Exports:
    """Place the controls."""
    text = words.compare_and_runs
    with gr.Accordion(text.EXPORT, open=True):
        gr.HTML(markup.folded(text.LOADING_EXPORTS, text.EXPORT_HELP))
        fit = gr.Markdown(elem_id="stock-fit")
        with gr.Row(elem_classes="bottom"):
            kind = gr.Dropdown(
                [(label, name) for name, label in text.FORMATS.items()],
                value=text.WITH_CODE,
                label=text.FORMAT,
                elem_id="export-format",
            )
            compatible = small_button(text.COMPATIBLE_RANKS, "stock-ranks", 240)
            write = small_button(text.EXPORT, "export", variant="primary")
            save = small_button(text.DOWNLOAD, "export-download", 140, visible=False)
        folders = gr.Textbox(
            label=text.EXPORTED_TO,
            interactive=False,
            buttons=["copy"],
            lines=1,
            elem_id="exported",
            visible=False,
        )
        gr.Markdown(text.PUSH_HELP, elem_classes=EXPERT)
        fields = [
            Field("push-repo", text.REPOSITORY, "", placeholder="owner/name"),
            Field("push-private", text.PRIVATE, True),
        ]
        send = field_group("push-fields", fields, ("push", text.PUSH), elem_classes=EXPERT)
    return Exports(fit, kind, compatible, write, save, folders, send)


def wire(page: Page, store: Store, parts: Exports, opened: gr.State) -> None:
    """Attach the handlers. opened: the id of the opened run."""
    parts.compatible_ranks.click(
        bind(use_compatible_ranks, store), opened, page.recipe_outputs, **QUIET
    )
    parts.export.click(bind(export, store), [opened, parts.format], None, **QUIET)
    parts.download.click(bind(download, store), [opened, parts.format], page.downloads, **QUIET)
    inputs = [opened, parts.format, parts.push]
    listen([parts.push.value.submit], bind(push_fields, store), inputs, None, **QUIET)


def outputs(parts: Exports) -> list[Any]:
    """Return the components that change with the opened run."""
    return [parts.fit, parts.compatible_ranks, parts.folders, parts.download]


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
