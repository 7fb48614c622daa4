"""Cells with perplexities that are measured live: of the displayed plan and the reference plan.

The reference is the pinned plan of a browser; without one, uniform ranks.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

import lrcore
from lrcore.ranks.plan import RankPlan
from lrcore.system.as_json import json_text

from ... import words
from ...base import numbers
from ...state.keys import BYTES, UNIFORM
from ...state.live import MORE_WINDOWS, LiveFigure
from ...state.plan_view import PlanView, plan_name, plan_view
from ...state.store import Store
from ...views import answer_markup, markup
from ...widgets.events import warn
from ...widgets.form import read_recipe, try_recipe

PINNED = "pinned"
MAX_PROMPT = 2000  # characters that each displayed plan continues


def uniform_name(browser: gr.Request) -> tuple[str, str]:
    """Return the name under which a browser requests the figure of uniform ranks."""
    return browser.session_hash, UNIFORM


def pinned_name(browser: gr.Request) -> tuple[str, str]:
    """Return the name under which a browser requests the figure of the pinned plan."""
    return browser.session_hash, PINNED


def forget_requests(store: Store, browser: gr.Request) -> None:
    """Drop all requests of a browser, because the plan waits for measurements."""
    for name in (browser.session_hash, uniform_name(browser), pinned_name(browser)):
        store.live.drop_request(name)


def cells(store: Store, browser: gr.Request, view: PlanView) -> str:
    """Return the cells of a plan and the reference plan, and request figures that are unknown."""
    figure = store.live.peek(view.live_key)
    displayed = predicted_cell(view.plan, figure) + actual_cell(store, browser, view)
    if view.pinned is not None:
        store.live.drop_request(uniform_name(browser))
        predicted = predicted_pinned_cell(view, figure)
        return displayed + predicted + measured_pinned_cell(store, browser, view)
    store.live.drop_request(pinned_name(browser))
    return displayed + uniform_cell(store, browser, view)


def predicted_cell(plan: RankPlan, figure: LiveFigure | None = None) -> str:
    """Return the cell with the predicted change of the perplexity; "" without probes.

    The interval is for as many tokens as are measured live. figure: None if not measured yet.
    """
    tokens = (figure or LiveFigure()).tokens
    return markup.predicted_change_cell(words.allocation.CHANGE_PREDICTED, plan, tokens)


def actual_cell(store: Store, browser: gr.Request, view: PlanView) -> str:
    """Return the cell with the measured perplexity of the displayed plan."""
    request = store.live_request(view.recipe, browser.session_hash)
    figure = store.live.peek(view.live_key)
    if request is None:
        return markup.actual_cell(
            view.live_key, figure or LiveFigure(error=words.allocation.TOO_LARGE)
        )
    store.live.request(request)
    return markup.actual_cell(view.live_key, figure)


def uniform_cell(store: Store, browser: gr.Request, view: PlanView) -> str:
    """Return the cell that compares a plan with uniform ranks; "" for a uniform plan."""
    key, live = view.live_key, store.live
    request = store.live_request_uniform(view.recipe, uniform_name(browser))
    if request is None or request.key == key:
        live.drop_request(uniform_name(browser))
        return ""
    live.request(request)
    equal_bits = request.plan.budget == BYTES
    return markup.uniform_cell(key, live.peek(key), live.peek(request.key), equal_bits)


def predicted_pinned_cell(view: PlanView, figure: LiveFigure | None) -> str:
    """Return the cell with the pinned plan's predicted change; "" if it was not probed.

    The change of the displayed plan from it is left out if a plan has no prediction.
    """
    if view.plan is None or view.pinned is None or view.pinned_recipe is None:
        return ""
    pinned, displayed = view.pinned.predicted, view.plan.predicted
    info = plan_name(view.pinned_recipe)
    if pinned is not None and displayed is not None:
        change = numbers.relative_change(displayed.perplexity / pinned.perplexity - 1, 2)
        info = words.allocation.PREDICTED_CHANGE.format(plan=info, change=change)
    tokens = (figure or LiveFigure()).tokens
    label = words.allocation.PINNED_PREDICTED
    return markup.predicted_change_cell(label, view.pinned, tokens, info)


def measured_pinned_cell(store: Store, browser: gr.Request, view: PlanView) -> str:
    """Return the cell with the pinned plan's measured perplexity; "" for equal ranks."""
    key, live = view.live_key, store.live
    request = store.live_request(view.pinned_recipe, pinned_name(browser))
    if request is None or request.key == key:
        live.drop_request(pinned_name(browser))
        return ""
    live.request(request)
    cell_key = markup.pinned_key(key, request.key)
    return markup.pinned_cell(cell_key, live.peek(key), live.peek(request.key))


async def stream_cells(store: Store, browser: gr.Request) -> AsyncIterator[str]:
    """Yield the cells of this browser as JSON {key: HTML}, each time a figure becomes known.

    Only the figures of the last slider position are sent.
    """
    sent, live = None, store.live
    while (key := live.newest(browser.session_hash)) is not None:
        pinned_key = live.newest(pinned_name(browser))
        reference_name = uniform_name(browser) if pinned_key is None else pinned_name(browser)
        reference_key = live.newest(reference_name)
        figure, reference = live.peek(key), live.peek(reference_key)
        html_by_key: dict[str, str] = {}
        if figure is not None:
            measures_more = live.is_measuring_more(browser.session_hash)
            html_by_key[key] = markup.actual_cell(key, figure, measures_more)
        html_by_key |= continuation(store, browser, key)
        if figure is not None and reference is not None:
            html_by_key |= reference_cell(key, pinned_key, figure, reference)
        if html_by_key and html_by_key != sent:
            yield json_text(html_by_key, nulls=True)
            sent = html_by_key
        is_complete = figure is not None and (reference_key is None or reference is not None)
        unfinished = live.is_pending(browser.session_hash) or live.is_pending(reference_name)
        if is_complete and not unfinished:
            return
        await asyncio.sleep(0.05)


async def stream_more(store: Store, browser: gr.Request, *values: Any) -> AsyncIterator[str]:
    """Measure on more tokens, and yield the cells as `stream_cells` does."""
    await asyncio.to_thread(measure_more, store, browser, *values)
    async for cells_json in stream_cells(store, browser):
        yield cells_json


async def stream_continuation(
    store: Store, browser: gr.Request, is_open: bool, prompt: str, *values: Any
) -> AsyncIterator[str]:
    """Request a continuation, and yield the cells as `stream_cells` does."""
    await asyncio.to_thread(request_continuation, store, browser, is_open, prompt, *values)
    async for cells_json in stream_cells(store, browser):
        yield cells_json


def reference_cell(
    key: str, pinned_key: str | None, figure: LiveFigure, reference: LiveFigure
) -> dict[str, str]:
    """Return the cell of the reference plan, by key."""
    if pinned_key is None:
        return {markup.uniform_key(key): markup.uniform_cell(key, figure, reference)}
    cell_key = markup.pinned_key(key, pinned_key)
    return {cell_key: markup.pinned_cell(cell_key, figure, reference)}


def continuation(store: Store, browser: gr.Request, key: str) -> dict[str, str]:
    """Return the continuation of this browser's prompt by key, if known."""
    texts = store.live.continuation(key, store.browsers.prompt(browser.session_hash))
    if texts is None:
        return {}
    return {answer_markup.CONTINUATION: answer_markup.live_continuation(key, texts)}


def request_continuation(
    store: Store, browser: gr.Request, is_open: bool, prompt: str, *values: Any
) -> None:
    """Request a continuation of the prompt by the displayed plan, or none if it is folded.

    A prompt of more than MAX_PROMPT characters is cut, with a warning.
    """
    if is_open and len(prompt) > MAX_PROMPT:
        lengths = map(numbers.count, (len(prompt), MAX_PROMPT))
        warn(words.allocation.PROMPT_CUT.format(*lengths))
        prompt = prompt[:MAX_PROMPT]
    store.browsers.set_prompt(browser.session_hash, prompt if is_open else "")
    recipe = try_recipe(values)
    if recipe is None or store.missing_evidence(recipe) is not None:
        return
    request = store.live_request(recipe, browser.session_hash)
    if request is not None and store.live.newest(browser.session_hash) == request.key:
        store.live.request(request)


def measure_more(store: Store, browser: gr.Request, *values: Any) -> None:
    """Measure the displayed plan and the reference plan on more tokens."""
    view = plan_view(store, read_recipe(values), browser.session_hash)
    if view.missing_evidence is not None:
        return
    if view.error:
        raise lrcore.InputError(view.error)
    request = store.live_request(view.recipe, browser.session_hash, MORE_WINDOWS)
    if request is None:
        return
    if view.pinned_recipe is None:
        reference = store.live_request_uniform(view.recipe, uniform_name(browser), MORE_WINDOWS)
    else:
        reference = store.live_request(view.pinned_recipe, pinned_name(browser), MORE_WINDOWS)
    store.live.request(request)
    if reference is not None and reference.key != request.key:
        store.live.request(reference)


def toggle_pin(store: Store, browser: gr.Request, *values: Any) -> Any:
    """Pin the displayed plan, or release the pinned plan; return the new label of the button."""
    name = browser.session_hash
    if store.browsers.pinned_recipe(name) is not None:
        store.browsers.pin(name, None)
        return gr.Button(words.allocation.PIN)
    recipe = read_recipe(values)
    if store.plan(recipe) is None:
        return gr.skip()
    store.browsers.pin(name, recipe)
    return gr.Button(words.allocation.UNPIN)
