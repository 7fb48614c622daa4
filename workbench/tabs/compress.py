"""What Start will do, the same as a command line, the jobs, and sweeps."""

from typing import Any

import gradio as gr

import lrcore

from .. import memory, text, whole
from ..jobs import SweepJob
from ..measure import Measure
from ..parts import LIVE, QUIET, listen, spoken
from ..session import Session

TITLE = "Compress"


def build(session: Session) -> None:
    form, measure = session.form, session.measure
    words = gr.Markdown(elem_id="what-happens")
    command = gr.Code(
        language="shell",
        label="The same on the command line",
        interactive=False,
        lines=1,
        elem_id="command",
        wrap_lines=True,
    )
    with gr.Row(elem_classes="bottom"):
        name = gr.Textbox(
            label="Name of the run", placeholder="made from the recipe", elem_id="run-name"
        )
        start = gr.Button("Start", variant="primary", elem_id="start", scale=0, min_width=160)
    with gr.Accordion(text.EVALUATION, open=False):
        measure.render()
    with gr.Accordion(
        "Sweep: methods × policies × ratios × calibration texts as one job", open=False
    ):
        with gr.Row(elem_classes="bottom"):
            methods = gr.Dropdown(
                [row["name"] for row in lrcore.methods()],
                multiselect=True,
                label="Methods",
                elem_id="sweep-methods",
            )
            policies = gr.Dropdown(
                [row["name"] for row in lrcore.policies()],
                multiselect=True,
                label="Policies",
                info=text.SWEEP_EMPTY,
                elem_id="sweep-policies",
            )
        with gr.Row(elem_classes="bottom"):
            ratios = gr.Textbox(
                "0.1, 0.2, 0.3, 0.4",
                label="Remove",
                info="shares, separated by commas",
                elem_id="sweep-ratios",
            )
            sets = gr.Textbox(
                label="Calibration texts", info=text.SWEEP_EMPTY, elem_id="sweep-sets"
            )
            cross = gr.Checkbox(
                False,
                label="Measure on every calibration text",
                info=text.CROSS,
                elem_id="sweep-cross",
            )
            sweep = gr.Button("Start the sweep", elem_id="start-sweep", scale=0, min_width=160)
    whole.build(session)
    gr.Markdown("### Jobs")
    session.job_panel.render()

    def split(said: Any) -> tuple[lrcore.Recipe, dict[str, Any] | None]:
        count = len(form.all)
        return form.recipe(said[:count]), Measure.settings(*said[count:])

    def describe(*said: Any) -> tuple[str, str]:
        try:
            recipe, settings = split(said)
            plan = session.plan(recipe)
        except lrcore.InputError as error:
            return str(error), ""
        model = session.peek_dense(recipe)
        if plan is None or model is None:
            return text.paragraph(recipe, {}, settings), recipe.command()
        summary = plan.summary()
        evaluation = lrcore.EvaluationSettings(**settings) if settings else None
        try:
            need = memory.needed(model, recipe, summary["megabytes"], evaluation)
        except lrcore.InputError as error:
            return str(error), ""
        room = memory.sentence(need, memory.free(str(model.device)))
        fit = text.stock(lrcore.stock_fit(model, plan).to_dict())
        return f"{text.paragraph(recipe, summary, settings)}\n\n{room}\n\n{fit}", recipe.command()

    @spoken
    def submit(name: str, *said: Any) -> str:
        recipe, settings = split(said)
        spec = {"recipe": recipe.to_dict(), "name": name.strip()[:80], "evaluation": settings}
        session.jobs.submit(
            "compress", f"{recipe.method} {recipe.ratio:.0%} on {recipe.model}", spec
        )
        return ""

    @spoken
    def submit_sweep(
        methods: list[str], policies: list[str], ratios: str, sets: str, cross: bool, *said: Any
    ) -> None:
        recipe, settings = split(said)
        shares = parse_ratios(ratios, recipe)
        if not methods:
            raise lrcore.InputError("The sweep has no methods: choose at least one.")
        texts = [name.strip() for name in sets.split(",") if name.strip()]
        job = SweepJob(
            recipe,
            tuple(methods),
            tuple(shares),
            tuple(policies or ()),
            tuple(texts),
            lrcore.EvaluationSettings(**settings) if settings else None,
            cross,
        )
        job.check()
        session.jobs.submit(job)

    everything = [*form.all, *measure.all]
    # what the form says elsewhere is told when this tab opens: at every move of a slider it would
    # only be in the slider's way
    told = [
        session.opened,
        session.tab.select,
        session.factored.change,
        session.chosen.change,
        *(part.change for part in measure.all),
    ]
    listen(told, describe, everything, [words, command], **LIVE)
    start.click(submit, [name, *everything], name, **QUIET)
    sweep.click(submit_sweep, [methods, policies, ratios, sets, cross, *everything], None, **QUIET)


def parse_ratios(words: str, recipe: lrcore.Recipe) -> list[float]:
    """The shares of a sweep. Raises InputError now for what would fail later."""
    try:
        shares = [float(word) for word in words.replace(";", ",").split(",") if word.strip()]
    except ValueError:
        raise lrcore.InputError(
            f"'{words}' is no list of shares. Write numbers between 0 and 1 with commas, such as "
            "0.1, 0.2."
        ) from None
    if not shares:
        raise lrcore.InputError(
            "The sweep has no shares to remove. Write numbers between 0 and 1 with commas, such "
            "as 0.1, 0.2."
        )
    return [recipe.with_(ratio=share).ratio for share in shares]
