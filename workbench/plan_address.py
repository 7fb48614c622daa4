"""The plan in the address bar: who opens the link has the same method, policy and budget in the
form.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore

from .components import unseen
from .events import LIVE, QUIET, bind, listen
from .form import START, try_recipe
from .jobs import start_analysis
from .page import Page, put_recipe
from .store import Store

SINGLE = (
    "model",
    "data",
    "method",
    "policy",
    "ratio",
    "budget",
    "temperature",
    "rounding",
    "multiple",
    "refit",
    "calibration",
)
MAPPINGS = ("component_ratios", "options", "policy_options", "overrides")  # a=1,b=2


def wire(page: Page, store: Store, settled: list[Any]) -> None:
    """Fill the form with the plan that the address names, and let the address follow the form.

    settled: events after which the plan may be another.
    """
    written = unseen("plan-address", "address.js", "plan-address.js")
    opened = page.opened(bind(open_plan), None, page.recipe_outputs, **QUIET)
    listen(opened, bind(prepare_linked, store), page.form.inputs, None, **QUIET)
    listen(settled, bind(address_of), page.form.inputs, written, **LIVE)


def open_plan(request: gr.Request) -> list[Any] | Any:
    """What to put into the form for the address that the page was opened with.

    Raises InputError where it names a value that no recipe has.
    """
    recipe = linked_recipe(request.query_params)
    return gr.skip() if recipe is None else put_recipe(recipe)


def prepare_linked(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue what a linked plan needs. Only of a built-in model and text: a link must not make the
    server ask another host.
    """
    recipe = try_recipe(values)
    if recipe is None or linked_recipe(browser.query_params) is None:
        return
    if recipe.model in lrcore.built_in_models() and recipe.data in lrcore.DATASETS:
        start_analysis(store, recipe, browser.session_hash, measure=False)


def address_of(*values: Any) -> Any:
    """The query parameters of the form's plan, as JSON; "" removes one."""
    recipe = try_recipe(values)
    return gr.skip() if recipe is None else json.dumps(parameters(recipe))


def parameters(recipe: lrcore.Recipe) -> dict[str, str]:
    """What of a recipe differs from the form as a page opens with it, as text; "" for the rest."""
    own, start = recipe.to_dict(), START.to_dict()
    single = {name: "" if own[name] == start[name] else str(own[name]) for name in SINGLE}
    listed = {name: ",".join(f"{k}={v}" for k, v in own[name].items()) for name in MAPPINGS}
    return single | listed


def linked_recipe(query: Mapping[str, str]) -> lrcore.Recipe | None:
    """The recipe that query parameters name; None where they name none.

    Raises InputError for a value that no recipe has.
    """
    single: dict[str, Any] = {name: _value(query[name]) for name in SINGLE if query.get(name)}
    listed = {name: _mapping(name, query[name]) for name in MAPPINGS if query.get(name)}
    if not single and not listed:
        return None
    recipe = lrcore.Recipe.from_dict(START.to_dict() | single | listed)
    lrcore.check_recipe(recipe)
    return recipe


def _value(text: str) -> Any:
    """A number, or the text itself."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def _mapping(name: str, text: str) -> dict[str, Any]:
    pairs: Sequence[list[str]] = [part.split("=", 1) for part in text.split(",")]
    if any(len(pair) < 2 for pair in pairs):
        raise lrcore.InputError(f"'{name}' of this link reads 'name=value,name=value': '{text}'.")
    return {key.strip(): _value(value) for key, value in pairs}
