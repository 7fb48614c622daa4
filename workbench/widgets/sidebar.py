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
from .components import FLOW, download, panel
from .events import QUIET, EventValues, bind, listen
from .form import read_recipe
from .page import Page, put_recipe

SAVE = "save-recipe"  # id of a button


@dataclass(frozen=True)
class Sidebar:
    upload: gr.File
    analyze: gr.Button
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
    with gr.Accordion(words.spectra.WINDOW_SETTINGS, open=False, elem_classes=FLOW):
        for name in ("samples", "seq_len", "sampling", "seed", "bos"):
            form[name].render()
    page.hint.render()
    analyze = gr.Button(words.spectra.ANALYZE, variant="primary", elem_id="analyse")
    with gr.Accordion(words.spectra.RECIPE_AND_EXAMPLES, open=False):
        load = gr.UploadButton(
            words.spectra.LOAD_RECIPE,
            size="sm",
            file_types=[".json", ".yaml", ".yml"],
            elem_id="load-recipe",
        )
        examples = panel("examples", value=example_buttons())
    return Sidebar(upload, analyze, load, examples)


def wire(page: Page, store: Store, parts: Sidebar) -> None:
    form, outputs, start = page.form.inputs, page.recipe_outputs, bind(analyze, store)
    stored = bind(calibration_text.store_upload, store)
    parts.upload.upload(stored, parts.upload, [page.form["data"], parts.upload], **QUIET)
    listen([parts.analyze.click], start, form, None, **QUIET)
    parts.load.upload(bind(open_file, store), parts.load, outputs, **QUIET)
    saved_or_opened, chosen = [*outputs, page.downloads], bind(press, page, store)
    listen([parts.examples.select], chosen, form, saved_or_opened, **QUIET)


def analyze(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the missing results of the form's recipe, in place of those queued before."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def save_recipe(*values: Any) -> str:
    return download("recipe.json", read_recipe(values).to_json())


def press(
    page: Page, store: Store, browser: gr.Request, event: gr.EventData, *values: Any
) -> dict[Any, Any]:
    """Save the recipe of the form, or open an example. Returns values by component."""
    name = EventValues(event)["action"]
    if name == SAVE:
        return {page.downloads: save_recipe(*values)}
    opened = open_example(store, browser, name, *values)
    return dict(zip(page.recipe_outputs, opened, strict=True))


def open_file(store: Store, browser: gr.Request, path: str) -> list[Any]:
    """Load the recipe of a file, and queue its missing results except measurements."""
    start_analysis(store, lrcore.Recipe.read(path), browser.session_hash, measure=False)
    return load_recipe(path)


def load_recipe(path: str) -> list[Any]:
    return put_recipe(lrcore.Recipe.read(path))


def example_buttons() -> str:
    """Return the button that saves the recipe, and a button for each example."""
    save = f"<button type='button' class='act' id='{SAVE}' data-action='{SAVE}'>"
    buttons = "".join(
        f"<button type='button' class='act' data-action='{name}'>{escape(title)}</button>"
        for name, (title, _) in example_recipes().items()
    )
    return f"{save}{words.spectra.SAVE_RECIPE}</button><p>{words.spectra.EXAMPLES}</p>{buttons}"


def open_example(store: Store, browser: gr.Request, name: str, *values: Any) -> list[Any]:
    """Load the example of this name, and queue its results except measurements."""
    examples = example_recipes()
    if name not in examples:
        raise EventValues.unclear("action")
    recipe = with_source(examples[name][1], read_recipe(values))
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
