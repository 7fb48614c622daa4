"""Dropping whole layers: which would go by their Block Influence, what is left, and the job that does it."""

from typing import Any

import gradio as gr

import lrcore

from . import markup, plots, text
from .form import MovingRange
from .measure import Measure
from .parts import LIVE, QUIET, listen, panel, plot, spoken
from .session import Session


def build(session: Session) -> None:
    form, measure = session.form, session.measure
    with gr.Accordion(text.DROP, open=False):
        gr.Markdown(text.DROP_HELP)
        with gr.Row(elem_classes="bottom"):
            layers = MovingRange(1, 2, 1, step=1, label="Layers to drop", elem_id="drop-layers")
            by = gr.Radio([(words, name) for name, words in text.ORDERS.items()], value="influence", label="Chosen by", elem_id="drop-by")
            name = gr.Textbox(label="Name of the run", placeholder="made from the choice", elem_id="drop-name")
            start = gr.Button("Drop them", size="sm", elem_id="drop", scale=0, min_width=140)
        chart = plot("influence", 180)
        caption = panel("drop-caption")

    @spoken
    def fit(layers: float, *said: Any) -> Any:
        """The slider's range is that of the model on show."""
        analysis = peek(session, form.try_recipe(said))
        if analysis is None or analysis.layers < 2:
            return gr.skip()
        most = analysis.layers - 1
        return gr.Slider(maximum=most, **({"value": most} if layers > most else {}))

    @spoken
    def draw(layers: float, by: str, *said: Any) -> tuple[str, str]:
        recipe = form.try_recipe(said)
        analysis, model = peek(session, recipe), session.peek_dense(recipe) if recipe else None
        if analysis is None or model is None:
            return "", markup.note(text.WORKING if session.jobs.waiting() else text.NOT_ANALYSED, "hint")
        gone = least(analysis.block_influence, int(layers))
        chart = plots.influence(analysis.block_influence, gone if by == "influence" else [])
        try:
            summary = lrcore.drop_layers(model, gone, by, recipe.seq_len).report["summary"]
        except lrcore.InputError as error:
            return chart, markup.note(str(error), "error")
        return chart, markup.note(text.dropped(analysis.block_influence, gone, by, summary))

    @spoken
    def submit(name: str, layers: float, by: str, *said: Any) -> str:
        count = len(form.all)
        recipe, settings = form.recipe(said[:count]), Measure.settings(*said[count:])
        spec = {"recipe": recipe.to_dict(), "layers": int(layers), "by": by, "name": name.strip()[:80], "evaluation": settings}
        session.jobs.submit("shorten", f"Drop {int(layers)} layer(s) of {recipe.model}", spec)
        return ""

    opening = [session.opened, session.tab.select, session.shown.change]
    listen(opening, fit, [layers, *form.all], layers, **LIVE)
    listen([*opening, layers.change, by.change], draw, [layers, by, *form.all], [chart, caption], **LIVE)
    start.click(submit, [name, layers, by, *form.all, *measure.all], name, **QUIET)


def peek(session: Session, recipe: lrcore.Recipe | None) -> Any | None:
    return session.peek_analysis(recipe) if recipe else None


def least(influence: list[float], layers: int) -> list[int]:
    """The layers of least Block Influence, least first; at least one stays."""
    return sorted(range(len(influence)), key=influence.__getitem__)[: min(layers, len(influence) - 1)]
