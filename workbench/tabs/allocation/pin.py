"""The plan that a browser has pinned: what bars, words and cells are beside those of another."""

from typing import Any

import gradio as gr

import lrcore

from ... import markup, numbers, pin_text
from ...form import read_recipe
from ...store import Store

PINNED = "pinned"  # of the name under which a browser asks for the live figure of the pinned plan


def press(store: Store, browser: gr.Request, *values: Any) -> Any:
    """Pin the plan on show, or let the pinned one go; the button says what it does next."""
    name = browser.session_hash
    if store.shown.pinned(name) is not None:
        store.shown.pin(name, None)
        return gr.Button(pin_text.PIN)
    recipe = read_recipe(values)
    if store.plan(recipe) is None:
        return gr.skip()
    store.shown.pin(name, recipe)
    return gr.Button(pin_text.UNPIN)


def name_for(browser: gr.Request) -> tuple[str, str]:
    """The name under which a browser asks for the live figure of the pinned plan."""
    return browser.session_hash, PINNED


def pinned_plan(
    store: Store, browser: gr.Request, recipe: lrcore.Recipe
) -> tuple[lrcore.Recipe, lrcore.RankPlan] | None:
    """The pinned plan of the same model and text, with its recipe; None without one."""
    pinned = store.shown.pinned_beside(browser.session_hash, recipe)
    plan = None if pinned is None else store.plan(pinned)
    return None if pinned is None or plan is None else (pinned, plan)


def alike(plan: lrcore.RankPlan, other: lrcore.RankPlan) -> bool:
    """Whether both have ranks for the same slots."""
    return plan.ranks.keys() == other.ranks.keys()


def words(plan: lrcore.RankPlan, recipe: lrcore.Recipe, pinned: lrcore.RankPlan) -> str:
    """What the bars say beside those of the pinned plan. recipe: of the pinned one."""
    called = plan_name(recipe)
    if not alike(plan, pinned):
        return pin_text.OTHER_SLOTS.format(plan=called)
    change = {slot: rank - pinned.ranks[slot] for slot, rank in plan.ranks.items()}
    if not any(change.values()):
        return pin_text.SAME
    more, less = max(change, key=change.__getitem__), min(change, key=change.__getitem__)
    ends = []
    if change[more] > 0:
        ends.append(pin_text.GAINED.format(*more, numbers.signed(change[more])))
    if change[less] < 0:
        ends.append(pin_text.LOST.format(*less, numbers.signed(change[less])))
    return pin_text.BARS.format(plan=called, ends=", ".join(ends))


def plan_name(recipe: lrcore.Recipe) -> str:
    return pin_text.PLAN.format(
        method=recipe.method, policy=recipe.policy, ratio=numbers.percent(recipe.ratio)
    )


def cells(
    store: Store, browser: gr.Request, recipe: lrcore.Recipe, plan: lrcore.RankPlan
) -> str | None:
    """The cells of the pinned plan's predicted and actual perplexity; None without a pinned one."""
    found = pinned_plan(store, browser, recipe)
    if found is None:
        store.live.forget(name_for(browser))
        return None
    pinned, other = found
    return predicted(plan, plan_name(pinned), other) + actual(store, browser, recipe, pinned)


def predicted(plan: lrcore.RankPlan, called: str, other: lrcore.RankPlan) -> str:
    """The cell of the pinned plan's predicted perplexity; "" where either has none."""
    if plan.predicted is None or other.predicted is None:
        return ""
    change = plan.predicted.perplexity / other.predicted.perplexity - 1
    below = pin_text.PREDICTED_CHANGE.format(plan=called, change=numbers.share(change, 2))
    return markup.cell(pin_text.PREDICTED, numbers.perplexity(other.predicted.perplexity), below)


def actual(store: Store, browser: gr.Request, recipe: lrcore.Recipe, pinned: lrcore.Recipe) -> str:
    """The cell of the pinned plan's measured perplexity; "" where its ranks are those on show."""
    key, request = store.live_key(recipe), store.live_request(pinned, name_for(browser))
    if request is None or request.key == key:
        store.live.forget(name_for(browser))
        return ""
    store.live.request(request)
    place = markup.pinned_key(key, request.key)
    return markup.against_pinned(place, store.live.peek(key), store.live.peek(request.key))
