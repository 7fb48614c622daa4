"""The budget and how it is shared: sliders that redraw while they move, ranks set by hand."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from .. import hand, markup, options, plots, selection, slot, survey_view, text
from ..keys import UNIFORM
from ..parts import LIVE, QUIET, download, listen, panel, plot, spoken
from ..session import Session

TITLE = "Allocation"
COLUMNS = (
    "layer",
    "component",
    "rank",
    "full",
    "keep",
    "parameters",
    "kv_bytes",
    "energy",
    "by hand",
)
EDITABLE = "rank"


def build(session: Session) -> None:
    form = session.form
    with gr.Row():
        for name in ("method", "policy", "budget"):
            form[name].render()
    of_choice = gr.Accordion(text.OPTIONS.format("the method"), open=False)
    about = panel("method-about")
    with gr.Row():
        form["ratio"].render()
        with gr.Column(visible=False) as heat:
            form["temperature"].render()
            form["rule"].render()
    readout = panel("readout")
    chart = plot("bars", 430)
    told = panel("bars-caption")
    choices = [
        form[name].input for name in ("budget", "rule", "rounding", "multiple", "calibration")
    ]
    moved = [*choices, form["ratio"].release, form["temperature"].release]
    settings = [form[name].change for name in ("options", "policy_options", "overrides")]
    changed = [
        session.chosen.change,
        session.factored.change,
        form["component_ratios"].submit,
        form["component_ratios"].blur,
        *settings,
    ]
    slot.build(session, chart, [*moved, *changed])
    with gr.Accordion(text.SURVEY, open=True):
        curves = plot("policy-curves", 220)
        with gr.Row():
            caption = panel("policy-caption")
            every = gr.Button(
                text.SURVEY_EVERY, size="sm", elem_id="survey", scale=0, min_width=200
            )
        ranked = panel("ranking")
    with gr.Accordion("Ranks by layer, and ranks set by hand", open=False):
        with gr.Row():
            form["calibration"].render()
            form["refit"].render()
            form["rounding"].render()
            form["multiple"].render()
            form["component_ratios"].render()
        gr.Markdown(text.OVERRIDE_HELP)
        frame = gr.Dataframe(
            headers=list(COLUMNS),
            interactive=True,
            elem_id="ranks-table",
            max_height=420,
            show_search="filter",
            static_columns=[i for i, name in enumerate(COLUMNS) if name != EDITABLE],
        )
        csv = gr.Button("Download ranks CSV", size="sm", elem_id="ranks-csv")
    in_table = gr.State({})  # the ranks the table shows: what differs after an edit was set by hand

    @spoken
    def draw(browser: gr.Request, *said: Any) -> tuple[Any, ...]:
        return (*drawn(session, browser, form.recipe(said), said[-1]), gr.skip())

    @spoken
    def draw_by_temperature(browser: gr.Request, *said: Any) -> tuple[Any, ...]:
        """Touching the temperature means not to follow the rule of thumb any longer."""
        return (*drawn(session, browser, form.recipe([*said[:-1], False]), False), False)

    async def measured(browser: gr.Request) -> AsyncIterator[str]:
        """The live figures of what this browser shows, as they become known: of the last
        position of a slider, not of those before.
        """
        sent = None
        while (key := session.live.newest(browser.session_hash)) is not None:
            even = session.live.newest(with_even_ranks(browser))
            figure, other = session.live.peek(key), session.live.peek(even)
            cells = {} if figure is None else {key: markup.actual(key, figure)}
            if figure is not None and other is not None:
                cells |= {markup.even_key(key): markup.against_even(key, figure, other)}
            if cells and cells != sent:
                yield json.dumps(cells)
                sent = cells
            if figure is not None and (even is None or other is not None):
                return
            await asyncio.sleep(0.05)

    @spoken
    def draw_survey(*said: Any) -> tuple[str, str]:
        return survey_view.surveyed(session, form.try_recipe(said))

    @spoken
    def rank(*said: Any) -> str:
        return survey_view.ranking(session, form.try_recipe(said))

    @spoken
    def start_survey(*said: Any) -> None:
        session.start_survey(form.recipe(said))

    @spoken
    def need(*said: Any) -> None:
        """Another method needs its own factors, and some policies need probes: queue them, for
        settings that were analysed before.
        """
        recipe = form.recipe(said)
        if session.peek_analysis(recipe) is not None:
            session.start_analysis(recipe)

    @spoken
    def table(*said: Any) -> tuple[Any, dict[str, int]]:
        recipe = form.try_recipe(said)
        plan = session.plan(recipe)
        if plan is None:
            return gr.skip(), gr.skip()
        return rank_rows(plan, recipe.overrides), {
            f"{layer}.{name}": rank for (layer, name), rank in plan.ranks.items()
        }

    @spoken
    def edited(
        rows: pd.DataFrame, before: hand.Ranks, steps: hand.History, now: hand.Ranks
    ) -> tuple[hand.Ranks, hand.History]:
        return hand.step(
            steps,
            now,
            now
            | {
                slot: rank
                for slot, rank in ranks_typed(rows).items()
                if before.get(slot, rank) != rank
            },
        )

    @spoken
    def give(*said: Any) -> str:
        plan = session.plan(form.recipe(said))
        if plan is None:
            raise lrcore.InputError(text.NO_FACTORS)
        return download("ranks.csv", plan.table().to_csv(index=False))

    shown = [chart, told, readout, heat, about, session.planned, form["temperature"], form["rule"]]
    listen([*choices, form["ratio"].input, *changed], draw, form.all, shown, **LIVE)
    form["temperature"].input(draw_by_temperature, form.all, shown, **LIVE)
    session.planned.change(measured, None, session.measured, **LIVE)
    listen([*moved, *changed], table, form.all, [frame, in_table], **LIVE)
    listen(
        [*moved, *changed, session.surveyed.change],
        draw_survey,
        form.all,
        [curves, caption],
        **LIVE,
    )
    listen([*moved, *changed, session.figures.change], rank, form.all, ranked, **LIVE)
    every.click(start_survey, form.all, None, **QUIET)
    listen([session.chosen.change, form["options"].change], need, form.all, None, **LIVE)
    with of_choice:
        options.build(session, of_choice)
    by_hand = [form["overrides"], session.history]
    frame.input(edited, [frame, in_table, session.history, form["overrides"]], by_hand, **QUIET)
    selection.follow(session, chart.select, curves.select)
    selection.follow_rows(session, frame, "component")
    csv.click(give, form.all, session.downloads, **QUIET)


def drawn(
    session: Session, browser: gr.Request, recipe: lrcore.Recipe, rule: bool
) -> tuple[Any, ...]:
    """Bars and what they say, readout, whether a temperature counts, the method's words, a mark
    of the ranks, the temperature slider.
    """
    about, keep = method_words(recipe), gr.skip()
    warm = gr.Column(
        visible=any(row["temperature"] for row in lrcore.policies() if row["name"] == recipe.policy)
    )
    try:
        plan, even = session.plan(recipe), session.uniform_plan(recipe)
    # a slider that has gone too far says so in its place instead of raising a toast at every step
    except lrcore.InputError as error:
        return keep, keep, markup.note(str(error), "error"), warm, about, keep, keep
    if plan is None or even is None:
        return (
            "",
            "",
            markup.note(text.WORKING if session.jobs.waiting() else text.NO_FACTORS, "hint"),
            warm,
            about,
            "",
            keep,
        )
    key = session.live_key(recipe)
    live = actual(session, recipe, browser) + against_even(session, key, recipe, browser)
    readout = markup.readout(plan.summary(), live)
    return (
        bars(plan, even, recipe.overrides),
        markup.note(conclusion(plan, even)),
        readout,
        warm,
        about,
        key,
        temperature_slider(plan, rule),
    )


def actual(session: Session, recipe: lrcore.Recipe, browser: gr.Request) -> str:
    """The cell of the measured perplexity; asks for the figure where it is not known yet."""
    request = session.live_request(recipe, browser.session_hash)
    if request is None:
        return markup.cell("actual perplexity", text.NOT_MEASURED, text.TOO_LARGE)
    session.live.ask(request)
    return markup.actual(request.key, session.live.peek(request.key))


def with_even_ranks(browser: gr.Request) -> tuple[str, str]:
    """The name of a browser's request for the figure that the one on show is compared with."""
    return browser.session_hash, UNIFORM


def against_even(session: Session, key: str, recipe: lrcore.Recipe, browser: gr.Request) -> str:
    """The cell that says whether the ranks on show help or hurt against uniform ones; none where
    they are uniform.
    """
    request = session.live_request_uniform(recipe, with_even_ranks(browser))
    if request is None or request.key == key:
        session.live.forget(with_even_ranks(browser))
        return ""
    session.live.ask(request)
    return markup.against_even(key, session.live.peek(key), session.live.peek(request.key))


def bars(plan: Any, even: Any, by_hand: Any) -> str:
    rows: dict[str, list] = {}
    ghost: dict[str, list] = {}
    for row in plan.table().sort_values("layer", kind="stable").itertuples():
        rows.setdefault(row.component, []).append((row.rank, row.full))
        ghost.setdefault(row.component, []).append(even.ranks[row.layer, row.component])
    steps = {component: spectrum.cost.step for (_, component), spectrum in plan.spectra.items()}
    return plots.bars(rows, ghost, f"bars{len(rows)}", by_hand, steps)


def conclusion(plan: Any, even: Any) -> str:
    """Where most and least is kept."""
    if plan.ranks == even.ranks:
        return text.EVEN_BARS
    kept = {slot: rank / plan.spectra[slot].cost.full for slot, rank in plan.ranks.items()}
    most, least = max(kept, key=kept.get), min(kept, key=kept.get)
    return text.BARS.format(*most, kept[most], *least, kept[least])


def temperature_slider(plan: Any, rule: bool) -> Any:
    """The slider with the rule of thumb written under its name; it follows the rule while that
    is on.
    """
    if plan.suggested_temperature is None:
        return gr.skip()
    suggested = plan.suggested_temperature
    # The rule depends on how much the model's layers differ, from thousandths to tens: the slider's
    # range goes with it.
    digits = 1 - math.floor(math.log10(suggested))
    step, most = (
        round(0.1**digits, digits),
        round(max(10 * suggested, plan.temperature) + 0.1**digits, digits),
    )
    words = {
        "info": text.SUGGESTED.format(suggested),
        "minimum": step,
        "maximum": most,
        "step": step,
    }
    return (
        gr.Slider(value=max(step, round(plan.temperature, digits)), **words)
        if rule
        else gr.Slider(**words)
    )


def method_words(recipe: lrcore.Recipe) -> str:
    method = next(row for row in lrcore.methods() if row["name"] == recipe.method)
    policy = next(row for row in lrcore.policies() if row["name"] == recipe.policy)
    return markup.about(method["name"], method["paper"], method["notes"]) + markup.about(
        policy["name"], policy["summary"]
    )


def rank_rows(plan: Any, fixed: Any) -> pd.DataFrame:
    table = plan.table()
    table["by hand"] = [
        "yes" if f"{row.layer}.{row.component}" in fixed else "" for row in table.itertuples()
    ]
    table[["keep", "energy"]] = table[["keep", "energy"]].round(4)
    return table[list(COLUMNS)]


def ranks_typed(rows: pd.DataFrame) -> dict[str, int]:
    """The ranks in the table by slot. Raises InputError for one that is no whole number."""
    found = {}
    for row in rows.itertuples():
        try:
            found[f"{int(row.layer)}.{row.component}"] = int(float(row.rank))
        except (TypeError, ValueError):
            raise lrcore.InputError(
                f"'{row.rank}' is no rank for {row.component} of layer {row.layer}: type a whole "
                "number."
            ) from None
    return found
