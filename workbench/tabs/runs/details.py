"""The opened run: summary, files, name and tags."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.recipes.history import Healed
from lrcore.runs.runs import Run
from lrcore.system.path_access import strip_paths

from ... import words
from ...state.store import Store
from ...views import export, job_markup, markup, run_text
from ...widgets.components import PRIMARY, STOP, button_row, download, panel
from ...widgets.events import DRAWN, QUIET, EventValues, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.fields import Field, FieldGroup, field_group, group_value
from ...widgets.page import Page, put_recipe
from . import exports


@dataclass(frozen=True)
class RunDetails:
    """The components of the opened run."""

    heading: gr.HTML
    actions: gr.HTML
    labels: FieldGroup
    folder: gr.Textbox


def layout() -> RunDetails:
    """Place the components of the opened run."""
    text = words.compare_and_runs
    heading = panel("run-heading")
    files = {name: label for name, (label, _) in FILES.items()}
    labels = {LOAD: text.LOAD_SETTINGS, **files, DELETE: text.DELETE}
    actions = button_row("run-actions", labels, {LOAD: PRIMARY, DELETE: f"{STOP} {EXPERT}"})
    save = ("run-rename", text.SAVE_LABELS)
    names = field_group("run-labels", label_fields(), save, elem_classes=EXPERT)
    folder = gr.Textbox(
        label=text.FOLDER,
        interactive=False,
        buttons=["copy"],
        elem_id="run-folder",
        elem_classes=EXPERT,
    )
    return RunDetails(heading, actions, names, folder)


def label_fields() -> list[Field]:
    """Return the fields of name and tags."""
    text = words.compare_and_runs
    return [
        Field("run-rename-name", text.NAME, ""),
        Field("run-tags", text.TAGS, "", text.TAGS_INFO),
    ]


def model_card() -> gr.Markdown:
    """Place the model card."""
    with gr.Accordion(words.compare_and_runs.MODEL_CARD, open=False):
        return gr.Markdown(elem_id="model-card")


def undo_button() -> gr.Button:
    """Place the button that restores the deleted run; it is outside the column of the run."""
    return gr.Button(words.compare_and_runs.RESTORE, size="sm", visible=False, elem_id="run-undo")


def wire(page: Page, store: Store, parts: RunDetails, undo: gr.Button) -> None:
    """Attach the handlers. undo: the button that restores the run that was deleted last."""
    opened, address, deleted = page.opened_run, page.run_address, gr.State("")
    removed = [address, undo, deleted]
    outputs = [*page.recipe_outputs, *removed, page.downloads]
    parts.actions.select(bind(press, page, store, removed), opened, outputs, **QUIET)
    labels = [opened, parts.labels]
    listen([parts.labels.value.submit], bind(set_labels, store), labels, None, **QUIET)
    undo.click(bind(restore, store), deleted, [opened, address, undo], **QUIET)


def wire_run(
    page: Page, store: Store, table: gr.HTML, run_outputs: list[Any], export_format: gr.Dropdown
) -> None:
    """Show the opened run. table: of runs. run_outputs: in the order of `show`.

    The format of an export changes only with the run, so that a chosen format stays.
    """
    opened, inputs = page.opened_run, [page.opened_run, page.runs_stamp]
    listen([opened.change, table.tick], bind(show, store), inputs, run_outputs, **DRAWN)
    listen([opened.change], bind(target_format, store), [opened], export_format, **DRAWN)


def outputs(parts: RunDetails) -> list[Any]:
    """Return the components of the values that `description` returns."""
    return [parts.heading, parts.labels.value, parts.folder]


def show(store: Store, run_id: str, stamp: str) -> tuple[Any, ...]:
    """Return the column, the description, the exports and the card.

    stamp: changes with the runs on disk.
    """
    if run_id not in store.runs.ids():
        hidden = gr.update(visible=False)
        return hidden, "", group_value(label_fields()), "", "", "", hidden, ""
    run = store.runs.get(run_id)
    folders = [row["folder"] for row in store.runs.results(run_id, "export")]
    return (
        gr.update(visible=True),
        *description(run),
        *exports.values(run, folders),
        markup.as_markdown(
            export.model_card(run).split("\n---\n", 1)[-1]
        ),  # the front matter is for the hub
    )


def description(run: Run) -> tuple[str, list[dict[str, Any]], str]:
    """Return heading, fields of name and tags, and folder of a run."""
    account = run.account.to_dict()
    heading = (
        f"<h3>{escape(run.name)}</h3>"
        + markup.summary(account, markup.prediction_cell(account) + measured(run))
        + markup.note(run_text.pruned(run.history))
        + markup.note(run_text.sliced(run.history))
        + healing(run)
    )
    return (
        heading,
        group_value(label_fields(), [run.name, ", ".join(run.tags)]),
        strip_paths(str(run.checkpoint.absolute())),
    )


def healing(run: Run) -> str:
    """Return a sentence about the last healing, with the loss curve; "" without one."""
    step = run.step(Healed)
    curve = "" if step is None else job_markup.loss_curve(step.cross_entropy)
    return markup.note(run_text.healed(run.history)) + curve


def measured(run: Run) -> str:
    """Return the cell with the perplexity that was measured last."""
    if not run.evaluations or not run.evaluations[-1]["perplexity"]:
        return markup.cell(
            words.compare_and_runs.MEASURED_PERPLEXITY, words.compare_and_runs.NOT_MEASURED
        )
    last = run.evaluations[-1]
    dense = last["dense_perplexity"]
    change = f"{markup.change(last['perplexity'], dense)} ({dense:.4f}) · " if dense else ""
    info = change + words.compare_and_runs.protocol(last["protocol"])
    value = run_text.measured_perplexity(last)
    return markup.cell(words.compare_and_runs.MEASURED_PERPLEXITY, value, info)


def target_format(store: Store, run_id: str) -> dict[str, Any]:
    """Return the export format of the target in the run's recipe."""
    exists = run_id in store.runs.ids()
    return gr.update(
        value=store.runs.get(run_id).recipe.target if exists else words.compare_and_runs.WITH_CODE
    )


def load_settings(store: Store, run_id: str) -> list[Any]:
    """Load the recipe of a run into the form."""
    return put_recipe(store.runs.get(run_id).recipe)


def download_recipe(store: Store, run_id: str) -> str:
    """Return the recipe as a file to download."""
    return download("recipe.json", store.runs.get(run_id).recipe.to_json())


def download_ranks(store: Store, run_id: str) -> str:
    """Return the ranks as a file to download."""
    return download("ranks.csv", ranks_of(store.runs.get(run_id)))


def download_report(store: Store, run_id: str) -> str:
    """Return the report as a file to download."""
    return download("report.html", export.report_html(store.runs.get(run_id)))


LOAD, DELETE = "run-open", "run-delete"  # ids of buttons
FILES: dict[str, tuple[str, Callable[[Store, str], str]]] = {
    "run-recipe": (words.compare_and_runs.RECIPE, download_recipe),
    "run-ranks": (words.compare_and_runs.RANKS_CSV, download_ranks),
    "run-report": (words.compare_and_runs.REPORT, download_report),
}


def press(
    page: Page, store: Store, removed: list[Any], event: gr.EventData, run_id: str
) -> dict[Any, Any]:
    """Load the settings of a run, delete it, or download a file of it.

    removed: the components of the values of `delete`. Returns values by component.
    """
    pressed = EventValues(event)
    action = pressed["action"]
    if action == LOAD:
        return dict(zip(page.recipe_outputs, load_settings(store, run_id), strict=True))
    if action == DELETE:
        return dict(zip(removed, delete(store, run_id), strict=True))
    if action not in FILES:
        raise pressed.unclear("action")
    _, file = FILES[action]
    return {page.downloads: file(store, run_id)}


def set_labels(store: Store, run_id: str, labels: list[str]) -> None:
    """Set name and tags of a run."""
    name, tags = labels
    rename(store, run_id, name)
    set_tags(store, run_id, tags)


def rename(store: Store, run_id: str, name: str) -> None:
    """Rename a run."""
    store.runs.rename(run_id, name)


def set_tags(store: Store, run_id: str, typed: str) -> None:
    """Replace the tags of a run. typed: all new tags, separated by commas."""
    new_tags = {tag.strip() for tag in typed.split(",") if tag.strip()}
    old_tags = set(store.runs.get(run_id).tags)
    for tag in sorted(new_tags - old_tags):
        store.runs.tag(run_id, tag)
    for tag in old_tags - new_tags:
        store.runs.untag(run_id, tag)


def delete(store: Store, run_id: str) -> tuple[str, Any, str]:
    """Delete a run. Returns the new address, the button that restores the run, and its id."""
    label = words.compare_and_runs.RESTORE.format(store.runs.get(run_id).name)
    store.discard(run_id)
    return "", gr.update(value=label, visible=True), run_id


def restore(store: Store, run_id: str) -> tuple[str, str, Any]:
    """Restore a deleted run. Returns its id for the page and the address, and hides the button."""
    store.runs.restore(run_id)
    return run_id, run_id, gr.update(visible=False)


def ranks_of(run: Run) -> str:
    """Return the ranks of a run as CSV. Raises InputError for a run without ranks."""
    if not run.ranks_csv:
        raise lrcore.InputError(words.compare_and_runs.NO_RANKS)
    return run.ranks_csv
