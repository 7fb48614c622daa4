"""The sidebar: model, text, Analyze, recipe files and examples."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from .. import words
from ..jobs import start_analysis
from ..state.store import Store
from . import calibration_text
from .components import download
from .events import QUIET, bind, listen
from .form import read_recipe
from .page import Page, put_recipe


@dataclass(frozen=True)
class Sidebar:
    upload: gr.File
    analyze: gr.Button
    save: gr.Button
    load: gr.UploadButton
    examples: list[tuple[gr.Button, lrcore.Recipe]]


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
        with gr.Row():
            form["samples"].render()
            form["seq_len"].render()
        with gr.Row():
            form["sampling"].render()
            form["seed"].render()
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
        gr.Markdown(words.spectra.EXAMPLES)
        examples = [
            (gr.Button(title, size="sm", variant="secondary"), recipe)
            for title, recipe in example_recipes()
        ]
    return Sidebar(upload, analyze, save, load, examples)


def wire(page: Page, store: Store, parts: Sidebar) -> None:
    form, outputs, start = page.form.inputs, page.recipe_outputs, bind(analyze, store)
    stored = bind(calibration_text.store_upload, store)
    parts.upload.upload(stored, parts.upload, [page.form["data"], parts.upload], **QUIET)
    listen([parts.analyze.click], start, form, None, **QUIET)
    listen([parts.save.click], bind(save_recipe), form, page.downloads, **QUIET)
    loaded = [parts.load.upload(bind(load_recipe), parts.load, outputs, **QUIET)]
    for button, recipe in parts.examples:
        put = bind(put_example, recipe)
        loaded.append(listen([button.click], put, form, outputs, **QUIET))
    for put in loaded:
        listen(put, bind(prepare, store), form, None, **QUIET)


def analyze(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the missing results of the form's recipe, in place of those queued before."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def prepare(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the missing results, as `analyze` does, except the measurements of the policy."""
    start_analysis(store, read_recipe(values), browser.session_hash, measure=False)


def save_recipe(*values: Any) -> str:
    return download("recipe.json", read_recipe(values).to_json())


def load_recipe(path: str) -> list[Any]:
    return put_recipe(lrcore.Recipe.read(path))


def put_example(example: lrcore.Recipe, *values: Any) -> list[Any]:
    """Load method, policy and budget of an example; keep the model and text of the form."""
    names = lrcore.Recipe.fields_of("source", "windows")
    sources = {name: getattr(read_recipe(values), name) for name in names}
    return put_recipe(example.with_(**sources))


def example_recipes() -> list[tuple[str, lrcore.Recipe]]:
    """Return a title and recipe for each paper with an implemented method."""
    methods = {row["name"] for row in lrcore.list_methods()}
    return [
        (title, lrcore.Recipe(method=name, **fields))
        for name, (title, fields) in words.spectra.EXAMPLE_RECIPES.items()
        if name in methods
    ]
