"""Which change of the page draws what of the Allocation tab anew."""

from dataclasses import dataclass
from typing import Any

from ... import plan_address
from ...events import DRAWN, LIVE, PRESSED, QUIET, SLOW, bind, listen, when_seen
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
    released = [form["ratio"].release, form["temperature"].release]
    typed = [form["component_ratios"].submit, form["component_ratios"].blur]
    kept = [form[name].change for name in ("options", "policy_options", "overrides")]
    others = [page.choice.change, page.factors_key.change, *typed, *kept]
    return Changes(
        settled=[*choices, *released, *others], moving=[*choices, form["ratio"].input, *others]
    )


def wire(page: Page, store: Store, parts: AllocationTab) -> None:
    wire_plan(page, store, parts)
    settled = [*changes_of(page).settled, page.plan_key.change]
    wire_survey(page, store, parts, settled)
    wire_table(page, store, parts, settled)
    wire_curve(page, store, parts, settled)
    wire_continuation(page, store, parts)
    wire_what_if(page, store, parts, settled)
    plan_address.wire(page, store, parts.link, settled)
    wire_network(page, store, parts, settled)
    clicked = (parts.bars, parts.network.drawn, parts.survey.curves)
    select_on_click(page, *(drawn.select for drawn in clicked))


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
    listen(moving, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    asked = listen(
        [parts.summary.select], bind(handlers.measure, store), form.inputs, None, **QUIET
    )
    listen(asked, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    pinned = listen([parts.pin.click], bind(pin.press, store), form.inputs, parts.pin, **PRESSED)
    listen(pinned, bind(handlers.draw_plan, store), form.inputs, drawn, **LIVE)
    by_temperature = bind(handlers.draw_plan_by_temperature, store)
    listen([form["temperature"].input], by_temperature, form.inputs, drawn, **LIVE)
    more = listen(
        [parts.more.click], bind(handlers.measure_more, store), form.inputs, None, **PRESSED
    )
    more.then(bind(handlers.stream_figures, store), None, page.pending_cells, **LIVE)
    # Each figure that becomes known asks again: an answer that got lost would leave a cell waiting.
    for change in (page.plan_key.change, page.figure_count.change):
        change(bind(handlers.stream_figures, store), None, page.pending_cells, **LIVE)
    listen(
        [page.choice.change, form["options"].change, form["budget"].input],
        bind(handlers.queue_factors, store),
        form.inputs,
        None,
        **LIVE,
    )


def wire_curve(page: Page, store: Store, parts: AllocationTab, settled: list[Any]) -> None:
    """The curve follows once a slider is released; a click in it sets the budget."""
    form, curve = page.form, parts.curve
    drawn = bind(budget_curve.draw, store)
    changes = [*settled, page.runs_stamp.change]  # a run that was measured is a point in it
    listen(changes, drawn, form.inputs, [curve.drawn, curve.help], **SLOW)
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


def wire_what_if(page: Page, store: Store, parts: AllocationTab, settled: list[Any]) -> None:
    """The sizes of the other model follow while it is open."""
    own = parts.what_if
    seen = when_seen(own.sight, [*(one.change for one in own.chosen), *settled])
    given = [*own.chosen, *page.form.inputs]
    listen([seen], bind(what_if.draw, store), given, own.sizes, **DRAWN)


def wire_survey(page: Page, store: Store, parts: AllocationTab, settled: list[Any]) -> None:
    """Drawn while somebody looks at it."""
    form, survey = page.form.inputs, parts.survey
    of_policies, of_ranking = survey.sights
    seen = when_seen(of_policies, [*settled, page.methods_ready.change])
    drawn = bind(handlers.draw_survey, store)
    listen([seen], drawn, form, [survey.curves, survey.caption], **SLOW)
    seen = when_seen(of_ranking, [*settled, page.figure_count.change])
    listen([seen], bind(handlers.draw_ranking, store), form, survey.ranking, **DRAWN)
    listen([survey.every_method.click], bind(handlers.queue_survey, store), form, None, **QUIET)


def wire_network(page: Page, store: Store, parts: AllocationTab, settled: list[Any]) -> None:
    seen = when_seen(parts.network.sight, settled)
    drawn = bind(network.draw_network, store)
    listen([seen], drawn, page.form.inputs, parts.network.drawn, **DRAWN)


def wire_table(page: Page, store: Store, parts: AllocationTab, settled: list[Any]) -> None:
    form, own = page.form, parts.ranks
    filled = [own.table, own.shown]
    seen = when_seen(own.sight, settled)
    listen([seen], bind(ranks.fill_table, store), form.inputs, filled, **DRAWN)
    own.table.input(
        bind(ranks.edit_table),
        [own.table, own.shown, page.rank_history, form["overrides"]],
        [form["overrides"], page.rank_history],
        **QUIET,
    )
    select_on_row(page, own.table, "component")
    download = bind(ranks.download_ranks, store)
    listen([own.csv.click], download, form.inputs, page.downloads, **QUIET)
