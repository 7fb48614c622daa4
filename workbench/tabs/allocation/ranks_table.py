"""Table of the ranks, and edits of it."""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import words
from ...state import manual_ranks
from ...state.store import Store
from ...widgets.components import download
from ...widgets.events import warn
from ...widgets.form import read_recipe, try_recipe

MANUAL = "manual"
COLUMNS = (
    "layer",
    "component",
    "rank",
    "full",
    "keep",
    "parameters",
    "kv_bytes",
    "energy",
    "bits",
    MANUAL,
)
EDITABLE = "rank"


def fill_table(store: Store, *values: Any) -> tuple[Any, Any]:
    """Return the rows, and their ranks by slot."""
    recipe = try_recipe(values)
    plan = store.plan(recipe)
    if plan is None:
        return gr.skip(), gr.skip()
    ranks = {manual_ranks.slot_name(slot): rank for slot, rank in plan.ranks.items()}
    return rank_rows(plan, recipe.rank_overrides), ranks


def edit_table(
    store: Store,
    rows: pd.DataFrame,
    displayed_ranks: manual_ranks.Ranks,
    *values: Any,
) -> tuple[Any, Any]:
    """Return the manual ranks and the table after an edit.

    The table shows the ranks of the plan again if the edit is refused. displayed_ranks: before
    the edit.
    """

    def edited() -> manual_ranks.Ranks:
        return {
            slot: rank
            for slot, rank in read_ranks(rows).items()
            if displayed_ranks.get(slot, rank) != rank
        }

    result = set_ranks(store, edited, *values)
    return (gr.skip(), fill_table(store, *values)[0]) if result is None else (result, gr.skip())


def set_ranks(
    store: Store,
    typed: Callable[[], manual_ranks.Ranks],
    *values: Any,
) -> manual_ranks.Ranks | None:
    """Return the manual ranks with new ones.

    Returns None, after a warning, if a rank is invalid or no plan is possible with the ranks.
    typed: reads the new ranks; may raise InputError. values: of the form.
    """
    recipe = read_recipe(values)
    try:
        overrides = recipe.rank_overrides | typed()
        store.plan(recipe.with_(rank_overrides=overrides))
    except lrcore.InputError as error:
        warn(str(error))
        return None
    return overrides


def download_ranks(store: Store, *values: Any) -> str:
    """Return the table as a CSV file to download."""
    plan = store.plan(read_recipe(values))
    if plan is None:
        raise lrcore.InputError(words.spectra.NO_FACTORS)
    return download("ranks.csv", plan.table().to_csv(index=False))


def rank_rows(plan: Any, overrides: Mapping[str, int]) -> pd.DataFrame:
    """Return the rows of the table, in COLUMNS."""
    table = plan.table()
    table[MANUAL] = [
        "yes" if f"{row.layer}.{row.component}" in overrides else "" for row in table.itertuples()
    ]
    table["bits"] = table["bits"].replace(0, "")  # not quantized
    table[["keep", "energy"]] = table[["keep", "energy"]].round(4)
    return table[list(COLUMNS)]


def read_ranks(rows: pd.DataFrame) -> manual_ranks.Ranks:
    """Return the ranks in the table. Raises InputError for invalid ranks."""
    return {
        f"{int(row.layer)}.{row.component}": manual_ranks.read_rank(row.rank)
        for row in rows.itertuples()
    }
