"""The run on show: what it is, its files, its name and tags."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import export, markup, run_markup, run_text, target_text, text
from ...assets import script
from ...components import Textbox, download, panel, small_button
from ...events import DRAWN, QUIET, bind, listen
from ...page import Page, put_recipe
from ...store import Store


@dataclass(frozen=True)
class RunDetails:
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
    heading = panel("run-heading")
    with gr.Row(equal_height=True):
        use = gr.Button("Open in the form", variant="primary", size="sm", elem_id="run-open")
        recipe = gr.Button("Recipe", size="sm", elem_id="run-recipe")
        ranks = gr.Button("Ranks CSV", size="sm", elem_id="run-ranks")
        report = gr.Button("Report HTML", size="sm", elem_id="run-report")
    with gr.Row(elem_classes="bottom"):
        name = Textbox(label="Name", elem_id="run-rename-name")
        rename = small_button("Rename", "run-rename")
        tags = Textbox(label="Tags", info="separated by commas", elem_id="run-tags")
        set_tags_ = small_button("Set tags", "run-retag")
        delete = small_button("Delete", "run-delete", variant="stop")
    folder = Textbox(
        label="Checkpoint folder", interactive=False, buttons=["copy"], elem_id="run-folder"
    )
    return RunDetails(
        heading, use, recipe, ranks, report, name, rename, tags, set_tags_, delete, folder
    )


def model_card() -> gr.Markdown:
    with gr.Accordion("Model card", open=False):
        return gr.Markdown(elem_id="model-card")


def wire(page: Page, store: Store, parts: RunDetails, opened: gr.State, address: gr.HTML) -> None:
    parts.use.click(bind(open_in_form, store), opened, page.recipe_outputs, **QUIET)
    for button, give in (
        (parts.recipe, download_recipe),
        (parts.ranks, download_ranks),
        (parts.report, download_report),
    ):
        button.click(bind(give, store), opened, page.downloads, **QUIET)
    parts.rename.click(bind(rename, store), [opened, parts.name], None, **QUIET)
    parts.set_tags.click(bind(set_tags, store), [opened, parts.tags], None, **QUIET)
    parts.delete.click(
        bind(delete, store),
        opened,
        address,
        js=script("confirm-delete.js", QUESTION=text.DELETE_SURE),
        **QUIET,
    )


def wire_shown(
    page: Page, store: Store, opened: gr.State, shown: list[Any], kind: gr.Dropdown
) -> None:
    """Fill everything about the run on show; shown: in the order of `show`. The format of
    an export is set where another run is opened only: what was chosen since stays.
    """
    inputs = [opened, page.runs_stamp]
    listen([opened.change, page.runs_stamp.change], bind(show, store), inputs, shown, **DRAWN)
    listen([opened.change], bind(as_target, store), [opened], kind, **DRAWN)


def outputs(parts: RunDetails) -> list[Any]:
    """The components that `described` gives the values of."""
    return [parts.heading, parts.name, parts.tags, parts.folder]


def show(store: Store, run_id: str, stamp: str) -> tuple[Any, ...]:
    """The column, what is said of the run, whether a stock architecture has its ranks, the exported
    folders, the model card. stamp: of the runs on disk, which asks for the same run again.
    """
    if run_id not in store.runs.ids():
        return gr.update(visible=False), *[""] * 5, gr.update(visible=False), "", ""
    run = store.runs.get(run_id)
    folders = [one["folder"] for one in store.runs.results(run_id, "export")]
    return (
        gr.update(visible=True),
        *described(run),
        *stock(run),
        "\n".join(folders),
        markup.as_markdown(
            export.model_card(run).split("\n---\n", 1)[-1]
        ),  # the front matter is for the hub
    )


def described(run: lrcore.Run) -> tuple[str, str, str, str]:
    """Heading, name, tags and folder of a run."""
    heading = (
        f"<h3>{markup.escape(run.name)}</h3>"
        + markup.summary(run.account.to_dict(), measured(run))
        + markup.note(text.shortened(run.history))
        + markup.note(text.sliced(run.history))
        + healing(run)
    )
    return (
        heading,
        run.name,
        ", ".join(run.tags),
        lrcore.without_paths(str(run.checkpoint.absolute())),
    )


def healing(run: lrcore.Run) -> str:
    """What the last healing did, with its loss step by step; nothing where there was none."""
    step = run.step(lrcore.Healed)
    curve = "" if step is None else run_markup.curve(step.cross_entropy)
    return markup.note(text.healed(run.history)) + curve


def measured(run: lrcore.Run) -> str:
    """The cell of the perplexity that was measured last, beside the predicted one."""
    if not run.evaluations or not run.evaluations[-1]["perplexity"]:
        return markup.cell(text.MEASURED_PERPLEXITY, text.NOT_MEASURED)
    last = run.evaluations[-1]
    before = last["dense_perplexity"]
    change = f"{markup.less(last['perplexity'], before)} ({before:.4f}) · " if before else ""
    below = change + text.protocol(last["protocol"])
    return markup.cell(text.MEASURED_PERPLEXITY, run_text.figure(last), below)


def as_target(store: Store, run_id: str) -> dict[str, Any]:
    """The format of an export: that of what the run was made for."""
    known = run_id in store.runs.ids()
    return gr.update(value=store.runs.get(run_id).recipe.target if known else target_text.WITH_CODE)


def stock(run: lrcore.Run) -> tuple[str, dict[str, Any]]:
    """Whether the run fits a stock architecture, and the button that puts ranks which fit into the
    form.
    """
    fit = lrcore.stock_of(run.history)
    has_ranks = bool(fit and fit.ranks and not fit.qualifies)
    return (
        markup.as_markdown(text.stock(fit, not run.ranks_csv)),
        gr.update(visible=has_ranks),
    )


def open_in_form(store: Store, run_id: str) -> list[Any]:
    return put_recipe(store.runs.get(run_id).recipe)


def download_recipe(store: Store, run_id: str) -> str:
    return download("recipe.json", store.runs.get(run_id).recipe.to_json())


def download_ranks(store: Store, run_id: str) -> str:
    return download("ranks.csv", ranks_of(store.runs.get(run_id)))


def download_report(store: Store, run_id: str) -> str:
    return download("report.html", export.report_html(store.runs.get(run_id)))


def rename(store: Store, run_id: str, name: str) -> None:
    store.runs.rename(run_id, name)


def set_tags(store: Store, run_id: str, typed: str) -> None:
    """typed: all tags that the run is to have, separated by commas."""
    wanted = {tag.strip() for tag in typed.split(",") if tag.strip()}
    now = set(store.runs.get(run_id).tags)
    for tag in sorted(wanted - now):
        store.runs.tag(run_id, tag)
    for tag in now - wanted:
        store.runs.untag(run_id, tag)


def delete(store: Store, run_id: str) -> Any:
    """Delete a run; the address forgets it. run_id "": the reader declined."""
    if not run_id:
        return gr.skip()
    store.delete(run_id)
    return ""


def ranks_of(run: lrcore.Run) -> str:
    """Raises InputError for a run that no ranks made."""
    if not run.ranks_csv:
        raise lrcore.InputError(text.NO_RANKS)
    return run.ranks_csv
