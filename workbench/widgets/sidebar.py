"""The sidebar: model, text, Analyze, recipe files and examples."""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore

from .. import words
from ..jobs import start_analysis
from ..state.store import Store
from . import calibration_text
from .components import download, panel
from .events import QUIET, EventValues, bind, listen
from .form import read_recipe
from .page import Page, put_recipe


@dataclass(frozen=True)
class Sidebar:
    upload: gr.File
    analyze: gr.Button
    save: gr.Button
    load: gr.UploadButton
    examples: gr.HTML


def build(page: Page, store: Store) -> None:
    wire(page, store, layout(page))


def layout(page: Page) -> Sidebar:
    form = page.form
    gr.Markdown(f"## {words.spectra.APP_NAME}\n{words.spectra.INTRO}", elem_id="brand")
    form["model"].render()
    page.model_note.render()
    form["data"].render()
    page.text_note.render()
    upload = gr.File(
        label=calibration_text.DROP,
        file_types=calibration_text.ENDINGS,
        height=44,
        elem_id="drop-text",
    )
    with gr.Accordion(words.spectra.SOURCE_SETTINGS, open=False):
        for name in ("revision", "dtype", "device", "offload"):
            form[name].render()
    with gr.Accordion(words.spectra.WINDOW_SETTINGS, open=False):
        with gr.Row(elem_classes="pair"):
            for name in ("samples", "seq_len", "sampling", "seed"):
                form[name].render()
        form["bos"].render()
    page.hint.render()
    analyze = gr.Button(words.spectra.ANALYZE, variant="primary", elem_id="analyse")
    with gr.Accordion(words.spectra.RECIPE_AND_EXAMPLES, open=False):
        with gr.Row():
            save = gr.Button(words.spectra.SAVE_RECIPE, size="sm", elem_id="save-recipe")
            load = gr.UploadButton(
                words.spectra.LOAD_RECIPE,
                size="sm",
                file_types=[".json", ".yaml", ".yml"],
                elem_id="load-recipe",
            )
        examples = panel("examples", value=example_buttons())
    return Sidebar(upload, analyze, save, load, examples)


def wire(page: Page, store: Store, parts: Sidebar) -> None:
    form, outputs, start = page.form.inputs, page.recipe_outputs, bind(analyze, store)
    stored = bind(calibration_text.store_upload, store)
    parts.upload.upload(stored, parts.upload, [page.form["data"], parts.upload], **QUIET)
    listen([parts.analyze.click], start, form, None, **QUIET)
    listen([parts.save.click], bind(save_recipe), form, page.downloads, **QUIET)
    parts.load.upload(bind(open_file, store), parts.load, outputs, **QUIET)
    listen([parts.examples.select], bind(open_example, store), form, outputs, **QUIET)


def analyze(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the missing results of the form's recipe, in place of those queued before."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def save_recipe(*values: Any) -> str:
    return download("recipe.json", read_recipe(values).to_json())


def open_file(store: Store, browser: gr.Request, path: str) -> list[Any]:
    """Load the recipe of a file, and queue its missing results except measurements."""
    start_analysis(store, lrcore.Recipe.read(path), browser.session_hash, measure=False)
    return load_recipe(path)


def load_recipe(path: str) -> list[Any]:
    return put_recipe(lrcore.Recipe.read(path))


def example_buttons() -> str:
    """Return a button for each example."""
    buttons = "".join(
        f"<button type='button' class='act' data-action='{name}'>{escape(title)}</button>"
        for name, (title, _) in example_recipes().items()
    )
    return f"<p>{words.spectra.EXAMPLES}</p>{buttons}"


def open_example(store: Store, browser: gr.Request, event: gr.EventData, *values: Any) -> list[Any]:
    """Load the example whose button was pressed, and queue its results except measurements."""
    pressed, examples = EventValues(event), example_recipes()
    if pressed["action"] not in examples:
        raise pressed.unclear("action")
    recipe = with_source(examples[pressed["action"]][1], read_recipe(values))
    start_analysis(store, recipe, browser.session_hash, measure=False)
    return put_recipe(recipe)


def with_source(example: lrcore.Recipe, current: lrcore.Recipe) -> lrcore.Recipe:
    """Return method, policy and budget of an example, with the model and text of the form."""
    names = lrcore.Recipe.fields_of("source", "windows")
    return example.with_(**{name: getattr(current, name) for name in names})


def example_recipes() -> dict[str, tuple[str, lrcore.Recipe]]:
    """Return a title and recipe for each paper with an implemented method, by method."""
    methods = {row["name"] for row in lrcore.list_methods()}
    return {
        name: (title, lrcore.Recipe(method=name, **fields))
        for name, (title, fields) in words.spectra.EXAMPLE_RECIPES.items()
        if name in methods
    }
