"""What changes a model as a whole: layers dropped, or the hidden size sliced; what is left,
before it starts, and the jobs that do it.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr

import lrcore

from . import markup, plots, text
from .form import MovingRange
from .measure import Measure
from .parts import LIVE, QUIET, listen, panel, plot, spoken
from .session import Session


def build(session: Session) -> None:
    with gr.Accordion(text.WHOLE, open=False):
        gr.Markdown(text.WHOLE_HELP)
        with gr.Row():
            with gr.Column(min_width=320):
                build_drop(session)
            with gr.Column(min_width=320):
                build_slice(session)


def build_drop(session: Session) -> None:
    form = session.form
    gr.Markdown(text.DROP)
    layers = MovingRange(1, 2, 1, step=1, label="Layers to drop", elem_id="drop-layers")
    by = gr.Radio(
        [(words, name) for name, words in text.ORDERS.items()],
        value="influence",
        label="Chosen by",
        elem_id="drop-by",
    )
    chart = plot("influence", 180)
    caption = panel("drop-caption")
    name, start = run_row("drop", "Drop them")

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
            return "", markup.note(
                text.WORKING if session.jobs.waiting() else text.NOT_ANALYSED, "hint"
            )
        gone = least(analysis.block_influence, int(layers))
        chart = plots.influence(analysis.block_influence, gone if by == "influence" else [])
        return chart, told(
            lambda: text.dropped(
                analysis.block_influence,
                gone,
                by,
                lrcore.drop_layers(model, gone, by).account.to_dict(),
            )
        )

    @spoken
    def submit(name: str, layers: float, by: str, *said: Any) -> str:
        recipe, spec = asked(session, name, said)
        title = f"Drop {int(layers)} layer(s) of {recipe.model}"
        session.jobs.submit(
            "shorten", title, {"recipe": recipe.to_dict(), **spec, "layers": int(layers), "by": by}
        )
        return ""

    shown = [session.opened, session.tab.select, session.shown.change]
    listen(shown, fit, [layers, *form.all], layers, **LIVE)
    listen(
        [*shown, layers.change, by.change], draw, [layers, by, *form.all], [chart, caption], **LIVE
    )
    start.click(submit, [name, layers, by, *form.all, *session.measure.all], name, **QUIET)


def build_slice(session: Session) -> None:
    form = session.form
    gr.Markdown(text.SLICE)
    ratio = gr.Slider(
        0.02, 0.7, 0.2, step=0.01, label="Remove", info=text.SLICE_RATIO, elem_id="slice-ratio"
    )
    choices = [(words, name) for name, words in text.ROTATIONS.items()]
    rotations = gr.Radio(choices, value="block", label="Bases", elem_id="slice-rotations")
    caption = panel("slice-caption")
    name, start = run_row("slice", "Slice it")

    @spoken
    def draw(ratio: float, rotations: str, *said: Any) -> str:
        recipe = form.try_recipe(said)
        model = session.peek_dense(recipe) if recipe else None
        if model is None:
            return markup.note(
                text.WORKING if session.jobs.waiting() else text.NOT_ANALYSED, "hint"
            )
        return told(
            lambda: text.to_be_sliced(
                lrcore.sliced_size(model, ratio, rotations, recipe.multiple), model.size
            )
        )

    @spoken
    def submit(name: str, ratio: float, rotations: str, *said: Any) -> str:
        recipe, spec = asked(session, name, said)
        title = f"Slice {recipe.model}, remove {ratio:.0%}"
        session.jobs.submit(
            "slice",
            title,
            {"recipe": recipe.with_(ratio=ratio).to_dict(), **spec, "rotations": rotations},
        )
        return ""

    shown = [session.opened, session.tab.select, session.shown.change, form["multiple"].change]
    listen(
        [*shown, ratio.change, rotations.change],
        draw,
        [ratio, rotations, *form.all],
        caption,
        **LIVE,
    )
    start.click(submit, [name, ratio, rotations, *form.all, *session.measure.all], name, **QUIET)


def run_row(elem_id: str, label: str) -> tuple[gr.Textbox, gr.Button]:
    """The name of the run and the button that starts it."""
    with gr.Row(elem_classes="bottom"):
        name = gr.Textbox(
            label="Name of the run", placeholder="made from the choice", elem_id=f"{elem_id}-name"
        )
        start = gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=120)
    return name, start


def asked(session: Session, name: str, said: Any) -> tuple[lrcore.Recipe, dict[str, Any]]:
    """The form's recipe, and what else every such job is told: its name and how it is measured."""
    count = len(session.form.all)
    return session.form.recipe(said[:count]), {
        "name": name.strip()[:80],
        "evaluation": Measure.settings(*said[count:]),
    }


def told(words: Callable[[], str]) -> str:
    """The words; or why it cannot be done with this model, in their place."""
    try:
        return markup.note(words())
    except lrcore.InputError as error:
        return markup.note(str(error), "error")


def peek(session: Session, recipe: lrcore.Recipe | None) -> Any | None:
    return session.peek_analysis(recipe) if recipe else None


def least(influence: list[float], layers: int) -> list[int]:
    """The layers of least Block Influence, least first; at least one stays."""
    return sorted(range(len(influence)), key=influence.__getitem__)[
        : min(layers, len(influence) - 1)
    ]
