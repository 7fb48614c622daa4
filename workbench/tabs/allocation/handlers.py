"""Handlers of the Allocation tab: the displayed plan, evidence, and all policies."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gradio as gr

import lrcore

from ... import words
from ...figures.allocation import policy_curves
from ...figures.base import captioned
from ...jobs import start_analysis, start_survey
from ...state.keys import UNIFORM, policy_row
from ...state.plan_view import PlanView, plan_view
from ...state.store import Store
from ...state.survey import measurements, survey
from ...views import markup
from ...widgets.components import button_row_html
from ...widgets.events import EventValues
from ...widgets.form import follows_rule, read_recipe, try_recipe, within_ranges, without_rule
from . import measured_cells, plan_figures

MEASURE_MORE = {"measure-more": words.allocation.MEASURE_MORE}


class PlanWidgets(NamedTuple):
    """The components that follow a plan, or their new values; unnamed values do not change.

    temperature: the column of the temperature controls. plan_key: see `Page.plan_key`. rule:
    True if the temperature is automatic.
    """

    bars: Any = gr.skip()
    caption: Any = gr.skip()
    summary: Any = gr.skip()
    temperature: Any = gr.skip()
    about: Any = gr.skip()
    plan_key: Any = gr.skip()
    slider: Any = gr.skip()
    rule: Any = gr.skip()


def draw_plan(store: Store, browser: gr.Request, *values: Any) -> PlanWidgets:
    """Draw the plan of the form after any change."""
    in_range, message = within_ranges(values)
    became_automatic = follows_rule(in_range) != follows_rule(values)
    widgets = plan_widgets(store, browser, in_range, message)
    return widgets._replace(rule=True) if became_automatic else widgets


def draw_plan_by_temperature(store: Store, browser: gr.Request, *values: Any) -> PlanWidgets:
    """Draw the plan after the temperature was set: it is no longer automatic."""
    in_range, message = within_ranges(without_rule(values))
    widgets = plan_widgets(store, browser, in_range, message)
    return widgets._replace(rule=follows_rule(in_range))


def plan_widgets(
    store: Store, browser: gr.Request, values: Sequence[Any], message: str = ""
) -> PlanWidgets:
    """Return the new values of the components that follow a plan.

    An invalid value or an impossible budget is reported in place of the size and cost, because a
    moving slider would raise a toast at each step. Without factors, the previous plots stay,
    dimmed. message: about the values that were typed.
    """
    try:
        recipe = read_recipe(values)
    except lrcore.InputError as error:
        refused = markup.stale(markup.note(str(error), "error"))
        return PlanWidgets(bars="", caption="", summary=refused, plan_key="")
    view = plan_view(store, recipe, browser.session_hash)
    if view.missing_evidence is not None:
        await_evidence(store, browser, view)
    widgets = PlanWidgets(
        temperature=gr.update(visible=policy_row(recipe)["temperature"]),
        about=plan_figures.about_choice(recipe),
    )
    if view.error:
        refused = markup.stale(markup.note(f"{message} {view.error}".strip(), "error"))
        return widgets._replace(summary=refused)
    if view.plan is None:
        note = markup.missing(store.waiting_jobs(recipe), words.spectra.NO_FACTORS)
        return widgets._replace(summary=markup.stale(note), plan_key="")
    widgets = widgets._replace(
        bars=plan_figures.plan_bars(view),
        caption="".join(map(markup.note, view.messages)),
        plan_key=view.live_key,
    )
    if view.missing_evidence is not None:
        return widgets._replace(summary=markup.note(message, "error") + waiting_summary(view))
    store.browsers.set_displayed(browser.session_hash, recipe)
    cells = measured_cells.cells(store, browser, view)
    context = store.browsers.context(browser.session_hash)
    summary = markup.note(message, "error") + markup.summary(view.size, cells, context)
    return widgets._replace(
        summary=summary + button_row_html(MEASURE_MORE, events={"measure-more": "submit"}),
        slider=plan_figures.temperature_slider(view.plan, recipe.temperature is None),
    )


def await_evidence(store: Store, browser: gr.Request, view: PlanView) -> None:
    """Read evidence that is on disk, and drop the live figures until it is available."""
    if view.missing_evidence is not None and view.missing_evidence.seconds == 0:
        start_analysis(store, view.recipe, browser.session_hash)
    measured_cells.forget_requests(store, browser)


def waiting_summary(view: PlanView) -> str:
    """Return the button that starts the measurements, above the size of the displayed plan."""
    missing = view.missing_evidence
    prediction = measured_cells.predicted_cell(view.plan)
    button = markup.measure_first(
        view.recipe, missing.seconds, missing.is_running, view.displayed_recipe.policy
    )
    return f"{button}<div class='before'>{markup.summary(view.size, prediction)}</div>"


def draw_in_context(store: Store, browser: gr.Request, tokens: int, *values: Any) -> PlanWidgets:
    """Draw the plan with the size of the cache for this number of tokens."""
    choose_context(store, browser, tokens)
    return draw_plan(store, browser, *values)


def draw_pinned(store: Store, browser: gr.Request, *values: Any) -> tuple[Any, ...]:
    """Pin the plan, or take the pin away. Returns the button, and the plan."""
    return measured_cells.toggle_pin(store, browser, *values), *draw_plan(store, browser, *values)


def choose_context(store: Store, browser: gr.Request, tokens: int) -> None:
    """Store the number of tokens for the displayed size of the cache."""
    store.browsers.set_context(browser.session_hash, tokens)


def queue_factors(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the factors of a new method, for settings that were analyzed before.

    Work for the previous choice is dropped.
    """
    recipe = read_recipe(values)
    if store.peek_analysis(recipe) is not None:
        start_analysis(store, recipe, browser.session_hash, measure=False)


def measure(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the measurements that the policy needs."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def press_summary(
    store: Store,
    browser: gr.Request,
    event: gr.EventData,
    choice: list[Any],
    *values: Any,
) -> tuple[Any, ...]:
    """Queue the measurements that the policy needs, or choose uniform ranks.

    Returns the values of `use_uniform`, and the plan, which otherwise follows from the new choice.
    """
    if EventValues(event).get("action") == markup.USE_UNIFORM:
        return *use_uniform(choice), *PlanWidgets()
    measure(store, browser, *values)
    return *[gr.skip()] * 4, *draw_plan(store, browser, *values)


def use_uniform(choice: list[Any]) -> tuple[Any, ...]:
    """Return the policy of uniform ranks, its options, no manual ranks, and the choice."""
    return UNIFORM, {}, {}, [choice[0], UNIFORM, time.time()]


def draw_policies(store: Store, *values: Any) -> tuple[Any, str]:
    """Draw the fraction that each policy retains in each layer; list the missing policies.

    Without factors, the previous curves stay, dimmed.
    """
    recipe = try_recipe(values)
    curves = survey(store, recipe)
    notes = [words.allocation.POLICIES_HELP] if curves.shares else []
    if curves.missing:
        notes.append(words.allocation.NOT_FACTORIZED.format(", ".join(curves.missing)))
    if curves.refused:
        notes.append(words.allocation.BUDGET_REFUSED.format(", ".join(curves.refused)))
    is_waiting = recipe is not None and recipe.method in curves.missing
    figure = gr.skip() if is_waiting else ""
    if recipe and curves.shares:
        caption = words.spectra.recipe_caption(recipe, words.allocation.EVERY_POLICY)
        figure = captioned(policy_curves(curves.shares, recipe.policy), caption)
    every_method = button_row_html({"survey": words.allocation.MEASURE_ALL})
    return figure, markup.note(" ".join(notes)) + every_method


def draw_ranking(store: Store, *values: Any) -> str:
    """List the perplexities measured at this budget, lowest first."""
    rows = measurements(store, try_recipe(values))
    return markup.ranking([row[:5] for row in rows], all(row.is_held_out for row in rows))


def queue_survey(store: Store, *values: Any) -> None:
    """Queue the factors and live figures of all methods."""
    start_survey(store, read_recipe(values))
