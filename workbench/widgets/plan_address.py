"""The plan in the address bar: a link opens the page with the same method, policy and budget."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.pipeline.compress import check_recipe
from lrcore.data import DATASETS
from lrcore.models.load import built_in_models
from lrcore.recipes.former_names import RECIPE_FIELDS
from lrcore.system.as_json import json_text
from lrcore.system.path_access import strip_paths

from .. import words
from ..base import numbers
from ..base.assets import SharedScript, script
from ..jobs import start_analysis
from ..state.store import Store
from .events import MESSAGE_SECONDS, QUIET, bind, listen
from .form import START, try_recipe
from .page import Page, put_recipe

SINGLE = (  # fields of a recipe with a single value
    "model",
    "data",
    "method",
    "policy",
    "ratio",
    "budget",
    "target",
    "temperature",
    "rounding",
    "rank_multiple",
    "refit",
    "calibration_mode",
)
MAX_PARAMETER = 4000  # characters; manual ranks are the longest
MAPPINGS = ("component_ratios", "options", "policy_options", "rank_overrides")  # as a=1,b=2
MAIN_FIELDS = ("model", "data", "ratio", "budget")  # outside the fold of expert settings
EXPERT_FIELDS = tuple(name for name in (*SINGLE, *MAPPINGS) if name not in MAIN_FIELDS)


@dataclass(frozen=True)
class LinkedPlan:
    """The recipe of an address, and messages about its invalid parameters."""

    recipe: lrcore.Recipe
    messages: tuple[str, ...]


def link_button() -> gr.HTML:
    """Return a button that copies the address. Its value is the JSON of the query parameters."""
    labels = {"COPIED": words.allocation.LINK_COPIED, "FAILED": words.allocation.LINK_NOT_COPIED}
    template = (
        f"<button type='button' class='act' title='{words.allocation.LINK_HELP}'>"
        f"{words.allocation.LINK}</button><span role='status'></span>"
    )
    return gr.HTML(
        "",
        html_template=template,
        js_on_load=SharedScript(script("copy.js", "plan-address.js", **labels)).call,
        elem_id="plan-address",
    )


def wire(page: Page, store: Store) -> None:
    """Load the plan of the address into the form."""
    opened = listen([page.opened], bind(open_plan), page.address, page.recipe_outputs, **QUIET)
    inputs = [page.address, *page.form.inputs]
    listen(opened, bind(prepare_linked, store), inputs, None, **QUIET)


def open_plan(query: Mapping[str, str]) -> list[Any] | Any:
    """Return the form values of the address. Invalid parameters are left out, with a warning."""
    plan = linked(query)
    if plan is None:
        return gr.skip()
    for sentence in plan.messages:
        gr.Warning(escape(strip_paths(sentence), quote=False), duration=MESSAGE_SECONDS)
    return put_recipe(plan.recipe)


def prepare_linked(
    store: Store, browser: gr.Request, query: Mapping[str, str], *values: Any
) -> None:
    """Queue the jobs of a linked plan, for built-in models and texts only, or of a new page.

    A link must not make the server send a request to another host.
    """
    if linked(query) is None:
        start_analysis(store, START, measure=False)
        return
    recipe = try_recipe(values)
    if recipe is None:
        return
    if recipe.model in built_in_models() and recipe.data in DATASETS:
        start_analysis(store, recipe, browser.session_hash, measure=False)


def address_of(*values: Any) -> Any:
    """Return the query parameters of the form's plan as JSON; "" removes a parameter."""
    recipe = try_recipe(values)
    return gr.skip() if recipe is None else json_text(parameters(recipe))


def parameters(recipe: lrcore.Recipe) -> dict[str, str]:
    """Return the fields that differ from a new page as text; "" for all other fields."""
    fields, start = recipe.to_dict(), START.to_dict()
    single = {name: "" if fields[name] == start[name] else str(fields[name]) for name in SINGLE}
    mappings = {name: ",".join(f"{k}={v}" for k, v in fields[name].items()) for name in MAPPINGS}
    return single | mappings


def linked(query: Mapping[str, str]) -> LinkedPlan | None:
    """Return the plan of query parameters; None if they name no plan."""
    query = {RECIPE_FIELDS.get(name, name): value for name, value in (query or {}).items()}
    parameters = {name: str(query[name]) for name in (*SINGLE, *MAPPINGS) if query.get(name)}
    if not parameters:
        return None
    recipe, messages = START, []
    for name, text in parameters.items():
        try:
            recipe = changed(recipe, name, text)
        except lrcore.InputError as error:
            messages.append(str(error))
    return LinkedPlan(recipe, tuple(messages))


def changed(recipe: lrcore.Recipe, name: str, text: str) -> lrcore.Recipe:
    """Return the recipe with one field from an address.

    Raises InputError for an invalid value.
    """
    if len(text) > MAX_PARAMETER:
        raise lrcore.InputError(
            f"'{name}' in this link has {numbers.count(len(text))} characters. Copy the link again."
        )
    value = _mapping(name, text) if name in MAPPINGS else _value(text)
    made = lrcore.Recipe.from_dict(recipe.to_dict() | {name: value})
    check_recipe(made)
    return made


def _value(text: str) -> Any:
    """Return the number that a text contains, or the text."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except (ValueError, RecursionError):
        return text


def _mapping(name: str, text: str) -> dict[str, Any]:
    pairs: Sequence[list[str]] = [part.split("=", 1) for part in text.split(",")]
    if any(len(pair) < 2 for pair in pairs):
        raise lrcore.InputError(
            f"'{text}' is not a valid {name}; it must be 'name=value,name=value'."
        )
    return {key.strip(): _value(value) for key, value in pairs}
