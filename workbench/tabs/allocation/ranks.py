"""The table of ranks: what it shows, and what typing into it changes."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import hand, text
from ...components import download
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
    rows: pd.DataFrame, shown: hand.Ranks, history: hand.History, now: hand.Ranks
) -> tuple[hand.Ranks, hand.History]:
    """The ranks set by hand and their history, after an edit of a table that showed `shown`."""
    typed = ranks_typed(rows)
    edited = {slot: rank for slot, rank in typed.items() if shown.get(slot, rank) != rank}
    return hand.step(history, now, now | edited)


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


def ranks_typed(rows: pd.DataFrame) -> dict[str, int]:
    """The ranks in the table by slot. Raises InputError for one that is no whole number."""
    ranks = {}
    for row in rows.itertuples():
        try:
            ranks[f"{int(row.layer)}.{row.component}"] = int(float(row.rank))
        except (TypeError, ValueError):
            raise lrcore.InputError(
                f"'{row.rank}' is no rank for {row.component} of layer {row.layer}: type a whole "
                "number."
            ) from None
    return ranks
