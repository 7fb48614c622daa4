"""The sidebar: which model, which text, Analyse; recipes in and out; examples."""

from typing import Any

import gradio as gr

import lrcore

from . import text
from .parts import QUIET, download, spoken
from .session import Session


def build(session: Session) -> None:
    form = session.form
    gr.Markdown(f"## {text.NAME}\n{text.INTRO}", elem_id="brand")
    form["model"].render()
    with gr.Accordion(text.SOURCE, open=False):
        for name in ("revision", "dtype", "device", "offload"):
            form[name].render()
    with gr.Accordion(text.CALIBRATION, open=False):
        form["data"].render()
        with gr.Row():
            form["samples"].render()
            form["seq_len"].render()
        with gr.Row():
            form["sampling"].render()
            form["seed"].render()
    session.hint.render()
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

    @spoken
    def start(*values: Any) -> None:
        session.start_analysis(form.recipe(values))

    @spoken
    def give(*values: Any) -> str:
        return download("recipe.json", form.recipe(values).to_json())

    @spoken
    def take(path: str) -> list[Any]:
        return session.fill(lrcore.Recipe.read(path))

    analyse.click(start, form.all, None, **QUIET)
    save.click(give, form.all, session.downloads, **QUIET)
    load.upload(take, load, session.filled, **QUIET).then(start, form.all, None, **QUIET)
    for pressed, recipe in examples:
        pressed.click(
            lambda recipe=recipe: session.fill(recipe), None, session.filled, **QUIET
        ).then(start, form.all, None, **QUIET)


def example_recipes() -> list[tuple[str, lrcore.Recipe]]:
    """A complete recipe for each paper whose method is here."""
    known = {row["name"] for row in lrcore.methods()}
    return [
        (title, lrcore.Recipe(method=name, **more))
        for name, (title, more) in text.EXAMPLE_RECIPES.items()
        if name in known
    ]
