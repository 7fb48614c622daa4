"""The plan in the address bar: who opens the link has the same method, policy and budget in the
form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore

from . import numbers, saving_text
from .assets import script
from .events import DRAWN, QUIET, SECONDS, bind, listen
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
    "target",
    "temperature",
    "rounding",
    "multiple",
    "refit",
    "calibration",
)
LONGEST = 4000  # characters of one parameter; ranks by hand are the longest
MAPPINGS = ("component_ratios", "options", "policy_options", "overrides")  # a=1,b=2


@dataclass(frozen=True)
class LinkedPlan:
    """What an address names: as much of it as a recipe has, and what is wrong with the rest."""

    recipe: lrcore.Recipe
    refused: tuple[str, ...]


def link_button() -> gr.HTML:
    """A button that copies the address; its value, the JSON of query parameters, goes into that."""
    words = {"COPIED": saving_text.LINK_COPIED, "FAILED": saving_text.LINK_NOT_COPIED}
    template = (
        f"<button type='button' class='act' title='{saving_text.LINK_HELP}'>"
        f"{saving_text.COPY_LINK}</button><span role='status'></span>"
    )
    return gr.HTML(
        "",
        html_template=template,
        js_on_load=script("plan-address.js", **words),
        elem_id="plan-address",
    )


def wire(page: Page, store: Store, written: gr.HTML) -> None:
    """Fill the form with the plan that the address names, and let the address follow the form.

    written: what `link_button` made.
    """
    read = page.address_first(page.opened)
    opened = read.then(bind(open_plan), page.address, page.recipe_outputs, **QUIET)
    inputs = [page.address, *page.form.inputs]
    listen(opened, bind(prepare_linked, store), inputs, None, **QUIET)
    listen([page.rest.tick], bind(address_of), page.form.inputs, written, **DRAWN)


def open_plan(query: Mapping[str, str]) -> list[Any] | Any:
    """What to put into the form for the address that the page was opened with; what of it no recipe
    has is said, and left out.
    """
    plan = linked(query)
    if plan is None:
        return gr.skip()
    for sentence in plan.refused:
        gr.Warning(escape(lrcore.without_paths(sentence), quote=False), duration=SECONDS)
    return put_recipe(plan.recipe)


def prepare_linked(
    store: Store, browser: gr.Request, query: Mapping[str, str], *values: Any
) -> None:
    """Queue what a linked plan needs. Only of a built-in model and text: a link must not make the
    server ask another host.
    """
    recipe = try_recipe(values)
    if recipe is None or linked(query) is None:
        return
    if recipe.model in lrcore.built_in_models() and recipe.data in lrcore.DATASETS:
        start_analysis(store, recipe, browser.session_hash, measure=False)


def address_of(*values: Any) -> Any:
    """The query parameters of the form's plan, as JSON; "" removes one."""
    recipe = try_recipe(values)
    return gr.skip() if recipe is None else lrcore.json_text(parameters(recipe))


def parameters(recipe: lrcore.Recipe) -> dict[str, str]:
    """What of a recipe differs from the form as a page opens with it, as text; "" for the rest."""
    own, start = recipe.to_dict(), START.to_dict()
    single = {name: "" if own[name] == start[name] else str(own[name]) for name in SINGLE}
    listed = {name: ",".join(f"{k}={v}" for k, v in own[name].items()) for name in MAPPINGS}
    return single | listed


def linked(query: Mapping[str, str]) -> LinkedPlan | None:
    """The plan that query parameters name; None where they name none."""
    given = {name: str(query[name]) for name in (*SINGLE, *MAPPINGS) if (query or {}).get(name)}
    if not given:
        return None
    recipe, refused = START, []
    for name, text in given.items():
        try:
            recipe = changed(recipe, name, text)
        except lrcore.InputError as error:
            refused.append(str(error))
    return LinkedPlan(recipe, tuple(refused))


def changed(recipe: lrcore.Recipe, name: str, text: str) -> lrcore.Recipe:
    """The recipe with one field as it stands in an address.

    Raises InputError for what no recipe has.
    """
    if len(text) > LONGEST:
        raise lrcore.InputError(
            f"'{name}' of this link has {numbers.count(len(text))} characters. Copy it again."
        )
    value = _mapping(name, text) if name in MAPPINGS else _value(text)
    made = lrcore.Recipe.from_dict(recipe.to_dict() | {name: value})
    lrcore.check_recipe(made)
    return made


def _value(text: str) -> Any:
    """A number, or the text itself."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except (ValueError, RecursionError):
        return text


def _mapping(name: str, text: str) -> dict[str, Any]:
    pairs: Sequence[list[str]] = [part.split("=", 1) for part in text.split(",")]
    if any(len(pair) < 2 for pair in pairs):
        raise lrcore.InputError(f"'{name}' of this link reads 'name=value,name=value': '{text}'.")
    return {key.strip(): _value(value) for key, value in pairs}
