"""The opened run: summary, files, name and tags."""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.recipes.history import Healed, standard_fit_of
from lrcore.runs.runs import Run
from lrcore.system.path_access import strip_paths

from ... import words
from ...state.store import Store
from ...views import export, job_markup, markup, run_text
from ...widgets.components import download, panel, small_button
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.page import Page, put_recipe


@dataclass(frozen=True)
class RunDetails:
    """The components of the opened run."""

    heading: gr.HTML
    use: gr.Button
    recipe: gr.Button
    ranks: gr.Button
    report: gr.Button
    name: gr.Textbox
    rename: gr.Button
    tags: gr.Textbox
    set_tags: gr.Button
    delete: gr.Button
    folder: gr.Textbox


def layout() -> RunDetails:
    """Place the components of the opened run."""
    text = words.compare_and_runs
    heading = panel("run-heading")
    with gr.Row(equal_height=True):
        use = gr.Button(text.LOAD_SETTINGS, variant="primary", size="sm", elem_id="run-open")
        recipe = gr.Button(text.RECIPE, size="sm", elem_id="run-recipe")
        ranks = gr.Button(text.RANKS_CSV, size="sm", elem_id="run-ranks")
        report = gr.Button(text.REPORT, size="sm", elem_id="run-report")
    with gr.Row(elem_classes=["bottom", EXPERT]):
        name = gr.Textbox(label=text.NAME, elem_id="run-rename-name")
        rename = small_button(text.RENAME, "run-rename")
        tags = gr.Textbox(label=text.TAGS, info=text.TAGS_INFO, elem_id="run-tags")
        save_tags = small_button(text.SET_TAGS, "run-retag")
        delete = small_button(text.DELETE, "run-delete", variant="stop")
    folder = gr.Textbox(
        label=text.FOLDER,
        interactive=False,
        buttons=["copy"],
        elem_id="run-folder",
        elem_classes=EXPERT,
    )
    return RunDetails(
        heading, use, recipe, ranks, report, name, rename, tags, save_tags, delete, folder
    )


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
    parts.use.click(bind(load_settings, store), opened, page.recipe_outputs, **QUIET)
    for button, handler in (
        (parts.recipe, download_recipe),
        (parts.ranks, download_ranks),
        (parts.report, download_report),
    ):
        button.click(bind(handler, store), opened, page.downloads, **QUIET)
    parts.rename.click(bind(rename, store), [opened, parts.name], None, **QUIET)
    parts.set_tags.click(bind(set_tags, store), [opened, parts.tags], None, **QUIET)
    parts.delete.click(bind(delete, store), opened, [address, undo, deleted], **QUIET)
    undo.click(bind(restore, store), deleted, [opened, address, undo], **QUIET)


def wire_run(
    page: Page, store: Store, opened: gr.State, run_outputs: list[Any], export_format: gr.Dropdown
) -> None:
    """Show the opened run. run_outputs: in the order of `show`.

    The format of an export changes only with the run, so that a chosen format stays.
    """
    inputs = [opened, page.runs_stamp]
    listen([opened.change, page.runs_stamp.change], bind(show, store), inputs, run_outputs, **DRAWN)
    listen([opened.change], bind(target_format, store), [opened], export_format, **DRAWN)


def outputs(parts: RunDetails) -> list[Any]:
    """Return the components of the values that `description` returns."""
    return [parts.heading, parts.name, parts.tags, parts.folder]


def show(store: Store, run_id: str, stamp: str) -> tuple[Any, ...]:
    """Return the column, the description, the standard fit, the exports and the card.

    stamp: changes with the runs on disk.
    """
    if run_id not in store.runs.ids():
        hidden = gr.update(visible=False)
        return hidden, *[""] * 5, hidden, hidden, hidden, ""
    run = store.runs.get(run_id)
    folders = [row["folder"] for row in store.runs.results(run_id, "export")]
    return (
        gr.update(visible=True),
        *description(run),
        *standard_fit(run),
        gr.update(value="\n".join(folders), visible=bool(folders)),
        gr.update(visible=bool(folders)),
        markup.as_markdown(
            export.model_card(run).split("\n---\n", 1)[-1]
        ),  # the front matter is for the hub
    )


def description(run: Run) -> tuple[str, str, str, str]:
    """Return heading, name, tags and folder of a run."""
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
        run.name,
        ", ".join(run.tags),
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


def standard_fit(run: Run) -> tuple[str, dict[str, Any]]:
    """Return whether a standard architecture can load the run, and the button for other ranks."""
    fit = standard_fit_of(run.history)
    has_ranks = bool(fit and fit.ranks and not fit.qualifies)
    return (
        markup.as_markdown(run_text.standard_fit(fit, not run.ranks_csv)),
        gr.update(visible=has_ranks),
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
