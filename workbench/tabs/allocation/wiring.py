"""Listeners of the Allocation tab."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ...state.store import Store
from ...widgets import plan_address
from ...widgets.events import DRAWN, LIVE, MOVING, PRESSED, QUIET, SLOW, announce, bind, listen
from ...widgets.page import Page
from ...widgets.selection_events import select_on_click, select_on_row
from . import budget_curve, handlers, measured_cells, plan_figures, ranks_table, what_if
from .handlers import PlanWidgets
from .layout import AllocationTab


@dataclass(frozen=True)
class PlanEvents:
    """Events after which the ranks may have changed.

    settled: a moving slider counts when it is released. moving: each move counts.
    """

    settled: list[Any]
    moving: list[Any]


def plan_events(page: Page) -> PlanEvents:
    """Return the events of the form that change the plan."""
    form = page.form
    choices = [
        form[name].input
        for name in (
            "budget",
            "target",
            "rule",
            "rounding",
            "rank_multiple",
            "calibration_mode",
            "refit",
        )
    ]
    # without factors for a new model or text, the plots are dimmed
    source = [form[name].input for name in lrcore.Recipe.fields_of("source", "windows")]
    released = [form["ratio"].release, form["temperature"].release]
    typed = [form["component_ratios"].submit, form["component_ratios"].blur]
    stored = [form[name].change for name in ("options", "policy_options", "rank_overrides")]
    choice = [page.choice.change, page.factors_key.change]
    immediate = [*choices, *source, *choice, *typed, *stored]
    return PlanEvents(settled=[*immediate, *released], moving=[*immediate, form["ratio"].input])


def wire(page: Page, store: Store, parts: AllocationTab) -> None:
    """Attach all handlers of the tab except for the options and the rank editor."""
    announce_changes(page)
    wire_plan(page, store, parts)
    wire_buttons(page, store, parts)
    wire_policies(page, store, parts)
    wire_table(page, store, parts)
    wire_curve(page, store, parts)
    wire_continuation(page, store, parts)
    wire_what_if(page, store, parts)
    plan_address.wire(page, store)
    wire_network(page, store, parts)
    clickable = (parts.bars, parts.network.figure, parts.policies.curves)
    select_on_click(page, *(figure.select for figure in clickable))


def announce_changes(page: Page) -> None:
    """Announce changes to the figures that do not follow each move of a slider, and to tabs that
    are not open.
    """
    announce("plan", [*plan_events(page).settled, page.plan_key.change])
    announce("results", [page.methods_ready.change, page.runs_stamp.change])
    announce("runs", [page.runs_stamp.change])
    announce("figures", [page.figure_count.change])


def plan_widgets(page: Page, parts: AllocationTab) -> PlanWidgets:
    """Return the components that follow a plan."""
    return PlanWidgets(
        bars=parts.bars,
        caption=parts.caption,
        summary=parts.controls.summary,
        temperature=parts.controls.temperature,
        about=parts.controls.about,
        plan_key=page.plan_key,
        slider=page.form["temperature"],
        rule=page.form["rule"],
    )


def wire_plan(page: Page, store: Store, parts: AllocationTab) -> None:
    """Redraw bars, size and cost after each move, then stream the measured perplexities."""
    form, controls = page.form, parts.controls
    draw, outputs = bind(handlers.draw_plan, store), list(plan_widgets(page, parts))
    listen(plan_events(page).moving, draw, form.inputs, outputs, **MOVING)
    by_temperature = bind(handlers.draw_plan_by_temperature, store)
    listen([form["temperature"].input], by_temperature, form.inputs, outputs, **MOVING)
    stream_more = bind(measured_cells.stream_more, store)
    streamed = listen(
        [controls.summary.submit], stream_more, form.inputs, page.pending_cells, **LIVE
    )
    stream = bind(measured_cells.stream_cells, store)
    listen(streamed, draw, form.inputs, outputs, **LIVE)  # the interval for more tokens
    # Each figure that becomes known starts another stream: an answer may have been lost.
    figure_events = [page.plan_key.change, page.figure_count.change]
    listen(figure_events, stream, None, page.pending_cells, **LIVE)
    listen(
        [page.choice.change, form["options"].change, form["budget"].input],
        bind(handlers.queue_factors, store),
        form.inputs,
        None,
        **LIVE,
    )


def wire_buttons(page: Page, store: Store, parts: AllocationTab) -> None:
    """Attach the handlers of the buttons and the list under the size; each redraws the plan."""
    form, widgets = page.form, list(plan_widgets(page, parts))
    uniform = [form[name] for name in ("policy", "policy_options", "rank_overrides")]
    listen(
        [parts.controls.summary.select],
        bind(handlers.press_summary, store),
        [page.choice, *form.inputs],
        [*uniform, page.choice, *widgets],
        **PRESSED,
    )
    context = parts.controls.context
    in_context = bind(handlers.draw_in_context, store)
    listen([context.input], in_context, [context, *form.inputs], widgets, **PRESSED)
    pin = bind(handlers.draw_pinned, store)
    listen([parts.pin.click], pin, form.inputs, [parts.pin, *widgets], **PRESSED)


def wire_curve(page: Page, store: Store, parts: AllocationTab) -> None:
    """Redraw the curve once a slider rests; a click on a point sets the budget."""
    form, curve = page.form, parts.curve
    draw, curve_outputs = bind(budget_curve.draw, store), [curve.figure, curve.help]
    listen([curve.figure.tick], draw, form.inputs, curve_outputs, **SLOW)
    measure = bind(budget_curve.measure_and_draw, store)
    listen([curve.help.select], measure, form.inputs, curve_outputs, **SLOW)
    set_budget = bind(budget_curve.set_budget)
    curve.figure.select(set_budget, page.choice, [form["ratio"], page.choice], **PRESSED)


def wire_continuation(page: Page, store: Store, parts: AllocationTab) -> None:
    """Continue the prompt with the displayed plan while the part is unfolded."""
    part = parts.continuation
    folded = [part.accordion.expand, part.accordion.collapse]
    gr.on(folded, lambda is_open: not is_open, part.is_open, part.is_open, **PRESSED)
    listen(
        [page.opened, part.prompt.submit, part.prompt.blur, part.is_open.change],
        bind(measured_cells.stream_continuation, store),
        [part.is_open, part.prompt, *page.form.inputs],
        page.pending_cells,
        **LIVE,
    )


def wire_what_if(page: Page, store: Store, parts: AllocationTab) -> None:
    """Redraw the sizes of the other model while the part is unfolded."""
    part = parts.what_if
    inputs, fields = [part.inputs, *page.form.inputs], part.inputs.value
    changed = [part.sizes.tick, fields.input, fields.blur]
    listen(changed, bind(what_if.draw, store), inputs, part.sizes, **DRAWN)


def wire_policies(page: Page, store: Store, parts: AllocationTab) -> None:
    """Redraw the curves and the ranking while they are on the screen."""
    form, part = page.form.inputs, parts.policies
    draw = bind(handlers.draw_policies, store)
    listen([part.curves.tick], draw, form, [part.curves, part.caption], **SLOW)
    rank = bind(handlers.draw_ranking, store)
    listen([part.ranking.tick], rank, form, part.ranking, **DRAWN)
    listen([part.caption.select], bind(handlers.queue_survey, store), form, None, **QUIET)


def wire_network(page: Page, store: Store, parts: AllocationTab) -> None:
    """Redraw the network while it is on the screen."""
    draw = bind(plan_figures.draw_network, store)
    listen([parts.network.figure.tick], draw, page.form.inputs, parts.network.figure, **DRAWN)


def wire_table(page: Page, store: Store, parts: AllocationTab) -> None:
    """Fill the table of ranks, take edits, and offer the download."""
    form, part = page.form, parts.ranks
    fill = bind(ranks_table.fill_table, store)
    listen([part.help_line.tick], fill, form.inputs, [part.table, part.ranks], **DRAWN)
    inputs = [part.table, part.ranks, *form.inputs]
    outputs = [form["rank_overrides"], part.table]
    listen([part.table.input], bind(ranks_table.edit_table, store), inputs, outputs, **QUIET)
    select_on_row(page, part.table, "component")
    download = bind(ranks_table.download_ranks, store)
    listen([part.help_line.select], download, form.inputs, page.downloads, **QUIET)
