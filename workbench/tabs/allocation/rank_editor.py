"""Editor of the selected slot: rank, undo and redo, and the changes from the policy."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state import manual_ranks
from ...state.store import Store
from ...views import markup
from ...widgets.components import panel, small_button
from ...widgets.events import DRAWN, PRESSED, QUIET, EventValues, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.form import try_recipe
from ...widgets.page import Page
from .ranks_table import set_ranks


@dataclass(frozen=True)
class RankEditor:
    """displayed_rank: the rank that the server put into the box; a different rank was typed."""

    box: gr.Number
    undo: gr.Button
    redo: gr.Button
    release: gr.Button
    clear: gr.Button
    changes: gr.HTML
    displayed_rank: gr.State


def layout(page: Page) -> RankEditor:
    """Place the editor below the bars."""
    text = words.allocation
    with gr.Row(elem_classes=["bottom", EXPERT], elem_id="slot-row"):
        box = gr.Number(
            label=text.SLOT.format(*page.selected.value),
            precision=0,
            elem_id="slot-rank",
            min_width=240,
        )
        undo = small_button(text.UNDO, "undo", 90, interactive=False)
        redo = small_button(text.REDO, "redo", 90, interactive=False)
        release = small_button(text.RELEASE, "release", 170, interactive=False)
        clear = small_button(text.CLEAR, "clear-overrides", 120, interactive=False)
    return RankEditor(box, undo, redo, release, clear, panel("hand-changes"), gr.State(None))


def wire(page: Page, store: Store, parts: RankEditor, bars: gr.HTML) -> None:
    """Attach the handlers. bars: the figure with the handle that reports edits."""
    form, history, selected = page.form.inputs, page.rank_history, page.selected
    overrides = page.form["rank_overrides"]
    edited = [overrides, history]
    listen(
        [page.plan_at_rest.tick, selected.change, history.change],
        bind(show, store),
        [selected, history, *form],
        [
            parts.box,
            parts.undo,
            parts.redo,
            parts.release,
            parts.clear,
            parts.changes,
            parts.displayed_rank,
        ],
        **DRAWN,
    )
    bars.edit(bind(drag), [history, overrides], edited, **PRESSED)
    listen(
        [parts.box.submit, parts.box.blur],
        bind(type_rank, store),
        [parts.box, parts.displayed_rank, selected, history, *form],
        [*edited, parts.box],
        **QUIET,
    )
    parts.undo.click(bind(manual_ranks.undo), [history, overrides], edited, **QUIET)
    parts.redo.click(bind(manual_ranks.redo), [history, overrides], edited, **QUIET)
    parts.release.click(bind(release), [selected, history, overrides], edited, **QUIET)
    parts.clear.click(bind(clear), [history, overrides], edited, **QUIET)


def show(store: Store, slot: list, history: manual_ranks.History, *values: Any) -> tuple[Any, ...]:
    """Return the box, the four buttons, the changes from the policy, and the rank in the box."""
    recipe, name = try_recipe(values), manual_ranks.slot_name(slot)
    overrides = recipe.rank_overrides if recipe else {}
    enabled = (bool(history["past"]), bool(history["future"]), name in overrides, bool(overrides))
    buttons = [gr.update(interactive=is_enabled) for is_enabled in enabled]
    label = words.allocation.SLOT.format(*slot)
    try:
        plan = store.plan(recipe)
        policy_plan = store.policy_plan(recipe) if recipe else None
    except lrcore.InputError:  # the message is in place of the size and cost
        return gr.skip(), *buttons, gr.skip(), gr.skip()
    if plan is None or tuple(slot) not in plan.ranks:
        info = "" if plan is None else missing_slot_info(store, recipe, tuple(slot))
        box = gr.Number(label=label, value=None, info=info, interactive=False)
        return box, *buttons, "", None
    rank, full_rank = plan.ranks[tuple(slot)], plan.spectra[tuple(slot)].cost.full
    policy_rank = policy_plan.ranks.get(tuple(slot), words.allocation.ANOTHER_FORM)
    info = words.allocation.SLOT_INFO.format(full_rank, policy_rank)
    box = gr.Number(label=label, value=rank, info=info, interactive=True)
    changes = manual_ranks.changes(plan, policy_plan, overrides)
    return box, *buttons, markup.changes(changes, plan, policy_plan), rank


def missing_slot_info(store: Store, recipe: lrcore.Recipe | None, slot: tuple) -> str:
    """Return why a slot has no rank: another form of its part is used, or no such slot exists."""
    factors = None if recipe is None else store.peek_factors(recipe)
    if factors is None or slot not in factors.spectra:
        return words.spectra.NO_RANK.format(name=slot[1])
    form = factors.spectra[slot].form
    return words.allocation.OTHER_FORM.format(
        layer=slot[0], part=form.part, form=form.name, name=slot[1]
    )


def drag(
    event: gr.EventData, history: manual_ranks.History, overrides: manual_ranks.Ranks
) -> tuple[manual_ranks.Ranks, manual_ranks.History]:
    """Set the rank of a bar after the handle was dragged; rank None resets it to the policy."""
    edit = EventValues(event)
    name = manual_ranks.slot_name((edit.number("layer"), str(edit["component"])))
    edited = {slot: rank for slot, rank in overrides.items() if slot != name}
    if edit["rank"] is not None:
        edited = overrides | {name: edit.number("rank")}
    return manual_ranks.step(history, overrides, edited, edit["gesture"])


def type_rank(
    store: Store,
    rank: float | None,
    displayed_rank: int | None,
    slot: list,
    history: manual_ranks.History,
    *values: Any,
) -> tuple[Any, Any, Any]:
    """Set a rank that was typed into the box.

    The box shows the rank of the plan again if the typed rank is refused.
    """
    unchanged = gr.skip()
    if displayed_rank is None or rank == displayed_rank:
        return unchanged, unchanged, unchanged
    if rank is None:
        return unchanged, unchanged, displayed_rank

    def typed() -> manual_ranks.Ranks:
        return {manual_ranks.slot_name(slot): manual_ranks.read_rank(rank)}

    edited = set_ranks(store, typed, history, *values)
    return (unchanged, unchanged, displayed_rank) if edited is None else (*edited, unchanged)


def release(
    slot: list, history: manual_ranks.History, overrides: manual_ranks.Ranks
) -> tuple[manual_ranks.Ranks, manual_ranks.History]:
    """Reset the selected slot to the policy."""
    name = manual_ranks.slot_name(slot)
    edited = {slot_name: rank for slot_name, rank in overrides.items() if slot_name != name}
    return manual_ranks.step(history, overrides, edited)


def clear(
    history: manual_ranks.History, overrides: manual_ranks.Ranks
) -> tuple[manual_ranks.Ranks, manual_ranks.History]:
    """Reset all slots to the policy."""
    return manual_ranks.step(history, overrides, {})
