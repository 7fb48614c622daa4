"""The sidebar: which model, which text, Analyse; recipes in and out; examples."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from . import calibration_text, text
from .components import download
from .events import QUIET, bind, listen
from .form import read_recipe
from .jobs import start_analysis
from .page import Page, put_recipe
from .store import Store


@dataclass(frozen=True)
class Sidebar:
    dropped: gr.File
    analyse: gr.Button
    save: gr.Button
    load: gr.UploadButton
    examples: list[tuple[gr.Button, lrcore.Recipe]]


def build(page: Page, store: Store) -> None:
    wire(page, store, layout(page))


def layout(page: Page) -> Sidebar:
    form = page.form
    gr.Markdown(f"## {text.NAME}\n{text.INTRO}", elem_id="brand")
    form["model"].render()
    page.model_note.render()
    form["data"].render()
    page.text_note.render()
    dropped = gr.File(
        label=calibration_text.DROP,
        file_types=calibration_text.ENDINGS,
        height=44,
        elem_id="drop-text",
    )
    with gr.Accordion(text.SOURCE, open=False):
        for name in ("revision", "dtype", "device", "offload"):
            form[name].render()
    with gr.Accordion(text.WINDOWS, open=False):
        with gr.Row():
            form["samples"].render()
            form["seq_len"].render()
        with gr.Row():
            form["sampling"].render()
            form["seed"].render()
    page.hint.render()
    analyse = gr.Button(text.ANALYSE, variant="primary", elem_id="analyse")
    with gr.Accordion(text.RECIPE, open=False):
        with gr.Row():
            save = gr.Button(text.SAVE_RECIPE, size="sm", elem_id="save-recipe")
            load = gr.UploadButton(
                text.LOAD_RECIPE,
                size="sm",
                file_types=[".json", ".yaml", ".yml"],
                elem_id="load-recipe",
            )
        gr.Markdown(text.EXAMPLES)
        examples = [
            (gr.Button(title, size="sm", variant="secondary"), recipe)
            for title, recipe in example_recipes()
        ]
    return Sidebar(dropped, analyse, save, load, examples)


def wire(page: Page, store: Store, parts: Sidebar) -> None:
    form, outputs, start = page.form.inputs, page.recipe_outputs, bind(analyse, store)
    taken = bind(calibration_text.take, store)
    parts.dropped.upload(taken, parts.dropped, [page.form["data"], parts.dropped], **QUIET)
    listen([parts.analyse.click], start, form, None, **QUIET)
    listen([parts.save.click], bind(save_recipe), form, page.downloads, **QUIET)
    loaded = [parts.load.upload(bind(load_recipe), parts.load, outputs, **QUIET)]
    for button, recipe in parts.examples:
        put = bind(put_example, recipe)
        loaded.append(listen([button.click], put, form, outputs, **QUIET))
    for put in loaded:
        listen(put, bind(prepare, store), form, None, **QUIET)


def analyse(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue what the form's recipe needs and lacks, in the place of what it needed before."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def prepare(store: Store, browser: gr.Request, *values: Any) -> None:
    """The same without what its policy measures on the model: that waits until it is asked for."""
    start_analysis(store, read_recipe(values), browser.session_hash, measure=False)


def save_recipe(*values: Any) -> str:
    return download("recipe.json", read_recipe(values).to_json())


def load_recipe(path: str) -> list[Any]:
    return put_recipe(lrcore.Recipe.read(path))


def put_example(example: lrcore.Recipe, *values: Any) -> list[Any]:
    """What an example says of method, policy and budget, for the model and the text of the form."""
    names = lrcore.Recipe.fields_of("source", "windows")
    kept = {name: getattr(read_recipe(values), name) for name in names}
    return put_recipe(example.with_(**kept))


def example_recipes() -> list[tuple[str, lrcore.Recipe]]:
    """A complete recipe for each paper whose method is here."""
    known = {row["name"] for row in lrcore.methods()}
    return [
        (title, lrcore.Recipe(method=name, **more))
        for name, (title, more) in text.EXAMPLE_RECIPES.items()
        if name in known
    ]
