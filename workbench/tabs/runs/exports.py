"""The run on show as a folder or file for other programs, and on the hub."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import target_text, text
from ...components import Textbox, small_button
from ...events import QUIET, bind
from ...jobs import ExportJob, PushJob
from ...page import Page, put_recipe
from ...store import Store


@dataclass(frozen=True)
class Exports:
    fit: gr.Markdown
    format: gr.Dropdown
    fitting_ranks: gr.Button
    export: gr.Button
    folders: gr.Textbox
    repository: gr.Textbox
    private: gr.Checkbox
    push: gr.Button


def layout() -> Exports:
    with gr.Accordion("Export", open=True):
        gr.Markdown(text.EXPORT_HELP)
        fit = gr.Markdown(elem_id="stock-fit")
        with gr.Row(elem_classes="bottom"):
            kind = gr.Dropdown(
                [(words, name) for name, words in target_text.FORMATS.items()],
                value=target_text.WITH_CODE,
                label="Format",
                elem_id="export-format",
            )
            fitting = small_button("Put ranks that fit into the form", "stock-ranks", 240)
            write = small_button("Export", "export", variant="primary")
        folders = Textbox(
            label="Exported to",
            interactive=False,
            buttons=["copy"],
            lines=1,
            elem_id="exported",
        )
        gr.Markdown(text.PUSH_HELP)
        with gr.Row(elem_classes="bottom"):
            repository = Textbox(label="Repository", placeholder="owner/name", elem_id="push-repo")
            private = gr.Checkbox(True, label="Private", scale=0, min_width=120)
            send = small_button("Push", "push")
    return Exports(fit, kind, fitting, write, folders, repository, private, send)


def wire(page: Page, store: Store, parts: Exports, opened: gr.State) -> None:
    parts.fitting_ranks.click(bind(fitting_recipe, store), opened, page.recipe_outputs, **QUIET)
    parts.export.click(bind(export, store), [opened, parts.format], None, **QUIET)
    inputs = [opened, parts.format, parts.repository, parts.private]
    parts.push.click(bind(push, store), inputs, None, **QUIET)


def outputs(parts: Exports) -> list[Any]:
    """The components that follow the run on show: whether it fits a stock architecture, the button,
    the exported folders.
    """
    return [parts.fit, parts.fitting_ranks, parts.folders]


def fitting_recipe(store: Store, run_id: str) -> list[Any]:
    """The run's recipe in the form, with ranks that a stock architecture has."""
    run = store.runs.get(run_id)
    ranks = lrcore.stock_of(run.history).to_dict()["ranks"]
    return put_recipe(run.recipe.with_(overrides=ranks))


def export(store: Store, run_id: str, target: str) -> None:
    """Queue an export for a target."""
    store.jobs.submit(ExportJob(run_id, target, store.runs.get(run_id).name))


def push(store: Store, run_id: str, target: str, repository: str, private: bool) -> None:
    """Queue an export and its upload. Raises InputError for what is no repository's name, and for a
    file.
    """
    name = store.runs.get(run_id).name
    if repository.count("/") != 1:
        raise lrcore.InputError(f"'{repository}' is no repository name. Write owner/name.")
    if lrcore.TARGETS[target].format == "gguf":
        raise lrcore.InputError(target_text.FILE_NOT_PUSHED)
    store.jobs.submit(PushJob(run_id, target, repository.strip(), private, name))
