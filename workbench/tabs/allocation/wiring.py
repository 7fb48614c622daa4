"""Which change of the page draws what of the Allocation tab anew."""

from dataclasses import dataclass
from typing import Any

import lrcore

from ... import plan_address
from ...events import DRAWN, LIVE, MOVING, PRESSED, QUIET, SLOW, announce, bind, listen
from ...page import Page
from ...selection_events import select_on_click, select_on_row
from ...store import Store
from . import budget_curve, handlers, network, pin, ranks, what_if
from .layout import AllocationTab


@dataclass(frozen=True)
class Changes:
    """Events after which the ranks may be others.

    settled: once a slider is released; moving: while the ratio moves, too.
    """

    settled: list[Any]
    moving: list[Any]


def changes_of(page: Page) -> Changes:
    form = page.form
    choices = [
        form[name].input
        for name in ("budget", "target", "rule", "rounding", "multiple", "calibration")
    ]
    # of another model or text there may be no factors yet: the plots are dimmed then
    source = [form[name].input for name in lrcore.Recipe.fields_of("source", "windows")]
    released = [form["ratio"].release, form["temperature"].release]
    typed = [form["component_ratios"].submit, form["component_ratios"].blur]
    kept = [form[name].change for name in ("options", "policy_options", "overrides")]
    others = [page.choice.change, page.factors_key.change, *typed, *kept]
    at_once = [*choices, *source, *others]
    return Changes(settled=[*at_once, *released], moving=[*at_once, form["ratio"].input])


def wire(page: Page, store: Store, parts: AllocationTab) -> None:
    wire_plan(page, store, parts)
    announce_changes(page)
    wire_survey(page, store, parts)
    wire_table(page, store, parts)
    wire_curve(page, store, parts)
    wire_continuation(page, store, parts)
    wire_what_if(page, store, parts)
    plan_address.wire(page, store, parts.link)
    wire_network(page, store, parts)
    clicked = (parts.bars, parts.network.drawn, parts.survey.curves)
    select_on_click(page, *(drawn.select for drawn in clicked))


def announce_changes(page: Page) -> None:
    """What the figures that need not follow every move are told of."""
    announce("plan", [*changes_of(page).settled, page.plan_key.change])
    announce("methods", [page.methods_ready.change])
    announce("figures", [page.figure_count.change])
    announce("runs", [page.runs_stamp.change])


def wire_plan(page: Page, store: Store, parts: AllocationTab) -> None:
    """Bars, summary and captions follow every move; the live figures come after them."""
    form, moving = page.form, changes_of(page).moving
    drawn = [
        parts.bars,
        parts.caption,
        parts.summary,
        parts.temperature,
        parts.about,
        page.plan_key,
        form["temperature"],
        form["rule"],
    ]
    listen(moving, bind(handlers.draw_plan, store), form.inputs, drawn, **MOVING)
    asked = listen(
        [parts.summary.select], bind(handlers.measure, store), form.inputs, None, **QUIET
    )
    listen(asked, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    chosen = listen(
        [parts.context.input], bind(handlers.choose_context, store), parts.context, None, **PRESSED
    )
    listen(chosen, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    pinned = listen([parts.pin.click], bind(pin.press, store), form.inputs, parts.pin, **PRESSED)
    listen(pinned, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    by_temperature = bind(handlers.draw_plan_by_temperature, store)
    listen([form["temperature"].input], by_temperature, form.inputs, drawn, **MOVING)
    more = listen(
        [parts.more.click], bind(handlers.measure_more, store), form.inputs, None, **PRESSED
    )
    more.then(bind(handlers.stream_figures, store), None, page.pending_cells, **LIVE)
    # Each figure that becomes known asks again: an answer that got lost would leave a cell waiting.
    known = [page.plan_key.change, page.figure_count.change]
    listen(known, bind(handlers.stream_figures, store), None, page.pending_cells, **LIVE)
    listen(
        [page.choice.change, form["options"].change, form["budget"].input],
        bind(handlers.queue_factors, store),
        form.inputs,
        None,
        **LIVE,
    )


def wire_curve(page: Page, store: Store, parts: AllocationTab) -> None:
    """The curve follows once a slider rests; a click in it sets the budget."""
    form, curve = page.form, parts.curve
    drawn = bind(budget_curve.draw, store)
    listen([curve.sight.tick], drawn, form.inputs, [curve.drawn, curve.help], **SLOW)
    put = [form["ratio"], page.choice]
    curve.drawn.select(bind(budget_curve.set_budget), page.choice, put, **PRESSED)


def wire_continuation(page: Page, store: Store, parts: AllocationTab) -> None:
    """The prompt is continued by what is shown; folded away, by nothing."""
    own = parts.continued
    own.accordion.expand(lambda: True, None, own.opened, **QUIET)
    own.accordion.collapse(lambda: False, None, own.opened, **QUIET)
    asked = listen(
        [page.opened, own.prompt.submit, own.prompt.blur, own.opened.change],
        bind(handlers.ask, store),
        [own.opened, own.prompt, *page.form.inputs],
        None,
        **LIVE,
    )
    listen(asked, bind(handlers.stream_figures, store), None, page.pending_cells, **LIVE)


def wire_what_if(page: Page, store: Store, parts: AllocationTab) -> None:
    """The sizes of the other model follow while it is open."""
    own = parts.what_if
    announce("other model", [one.change for one in own.chosen])
    given = [*own.chosen, *page.form.inputs]
    listen([own.sight.tick], bind(what_if.draw, store), given, own.sizes, **DRAWN)


def wire_survey(page: Page, store: Store, parts: AllocationTab) -> None:
    """Drawn while somebody looks at it."""
    form, survey = page.form.inputs, parts.survey
    of_policies, of_ranking = survey.sights
    drawn = bind(handlers.draw_survey, store)
    listen([of_policies.tick], drawn, form, [survey.curves, survey.caption], **SLOW)
    listen([of_ranking.tick], bind(handlers.draw_ranking, store), form, survey.ranking, **DRAWN)
    listen([survey.every_method.click], bind(handlers.queue_survey, store), form, None, **QUIET)


def wire_network(page: Page, store: Store, parts: AllocationTab) -> None:
    own, drawn = parts.network, bind(network.draw_network, store)
    listen([own.sight.tick], drawn, page.form.inputs, own.drawn, **DRAWN)


def wire_table(page: Page, store: Store, parts: AllocationTab) -> None:
    form, own = page.form, parts.ranks
    filled = [own.table, own.shown]
    listen([own.sight.tick], bind(ranks.fill_table, store), form.inputs, filled, **DRAWN)
    typed = [own.table, own.shown, page.rank_history, *form.inputs]
    by_hand = [form["overrides"], page.rank_history, own.table]
    listen([own.table.input], bind(ranks.edit_table, store), typed, by_hand, **QUIET)
    select_on_row(page, own.table, "component")
    download = bind(ranks.download_ranks, store)
    listen([own.csv.click], download, form.inputs, page.downloads, **QUIET)
