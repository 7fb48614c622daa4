"""The table of ranks: what it shows, and what typing into it changes."""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import hand, text
from ...components import download
from ...events import warn
from ...form import read_recipe, try_recipe
from ...store import Store

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


def fill_table(store: Store, *values: Any) -> tuple[Any, Any]:
    """The rows, and the ranks in them by slot."""
    recipe = try_recipe(values)
    plan = store.plan(recipe)
    if plan is None:
        return gr.skip(), gr.skip()
    return rank_rows(plan, recipe.overrides), {
        hand.slot_name(slot): rank for slot, rank in plan.ranks.items()
    }


def edit_table(
    store: Store, rows: pd.DataFrame, shown: hand.Ranks, history: hand.History, *values: Any
) -> tuple[Any, Any, Any]:
    """The ranks set by hand and their history, after an edit of a table that showed `shown`, and
    the table: what is no rank, or one with which there is no plan, is refused, and the table shows
    those of the plan again.
    """

    def edited() -> hand.Ranks:
        typed = ranks_typed(rows)
        return {slot: rank for slot, rank in typed.items() if shown.get(slot, rank) != rank}

    kept = set_by_hand(store, edited, history, *values)
    if kept is None:
        return gr.skip(), gr.skip(), fill_table(store, *values)[0]
    return *kept, gr.skip()


def set_by_hand(
    store: Store, typed: Callable[[], hand.Ranks], history: hand.History, *values: Any
) -> tuple[hand.Ranks, hand.History] | None:
    """The ranks set by hand and their history, with those that were typed, too; None after a
    warning where something typed is no rank, or where there is no plan with them.

    typed: reads them; may raise InputError. values: of the form.
    """
    recipe = read_recipe(values)
    try:
        then = recipe.overrides | typed()
        store.plan(recipe.with_(overrides=then))
    except lrcore.InputError as error:
        warn(str(error))
        return None
    return hand.step(history, recipe.overrides, then)


def download_ranks(store: Store, *values: Any) -> str:
    plan = store.plan(read_recipe(values))
    if plan is None:
        raise lrcore.InputError(text.NO_FACTORS)
    return download("ranks.csv", plan.table().to_csv(index=False))


def rank_rows(plan: Any, by_hand: Mapping[str, int]) -> pd.DataFrame:
    """The rows of the table, in COLUMNS."""
    table = plan.table()
    table["by hand"] = [
        "yes" if f"{row.layer}.{row.component}" in by_hand else "" for row in table.itertuples()
    ]
    table[["keep", "energy"]] = table[["keep", "energy"]].round(4)
    return table[list(COLUMNS)]


def ranks_typed(rows: pd.DataFrame) -> hand.Ranks:
    """The ranks in the table. Raises InputError for one that is no whole number."""
    return {
        f"{int(row.layer)}.{row.component}": hand.read_rank(row.rank) for row in rows.itertuples()
    }
