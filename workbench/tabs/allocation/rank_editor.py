"""Editor of the selected slot: rank, undo and redo, and the changes from the policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state import manual_ranks
from ...state.store import Store
from ...views import markup
from ...widgets.components import panel
from ...widgets.events import DRAWN, PRESSED, QUIET, EventValues, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.form import try_recipe
from ...widgets.page import Page
from ...widgets.plan_address import address_of
from .ranks_table import set_ranks

BUTTONS = {  # labels by id
    "undo": words.allocation.UNDO,
    "redo": words.allocation.REDO,
    "release": words.allocation.RELEASE,
    "clear-overrides": words.allocation.CLEAR,
}


@dataclass(frozen=True)
class RankEditor:
    """displayed_rank: the rank that the server put into the box; a different rank was typed."""

    box: gr.Number
    buttons: gr.HTML
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
        buttons = panel("slot-buttons", value=editor_buttons((False,) * len(BUTTONS)))
    return RankEditor(box, buttons, panel("hand-changes"), gr.State(None))


def editor_buttons(enabled: Sequence[bool]) -> str:
    """Return the buttons of the editor. enabled: in the order of `BUTTONS`."""
    buttons = "".join(
        f"<button type='button' class='act' id='{name}' data-action='{name}'"
        f"{'' if is_enabled else ' disabled'}>{label}</button>"
        for (name, label), is_enabled in zip(BUTTONS.items(), enabled, strict=True)
    )
    return f"<div class='button-row'>{buttons}</div>"


def wire(page: Page, store: Store, parts: RankEditor, bars: gr.HTML, link: gr.HTML) -> None:
    """Attach the handlers. bars: the figure with the handle that reports edits.

    link: the address of the plan, which follows the plan as the editor does.
    """
    form, history, selected = page.form.inputs, page.rank_history, page.selected
    overrides = page.form["rank_overrides"]
    edited = [overrides, history]
    listen(
        [page.plan_at_rest.tick, selected.change, history.change],
        bind(show_with_address, store),
        [selected, history, *form],
        [
            link,
            parts.box,
            parts.buttons,
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
    parts.buttons.select(bind(press), [selected, history, overrides], edited, **QUIET)


def show_with_address(store: Store, slot: list, history: manual_ranks.History, *values: Any) -> Any:
    """Return the address of the plan, and the values of `show`."""
    return address_of(*values), *show(store, slot, history, *values)


def show(store: Store, slot: list, history: manual_ranks.History, *values: Any) -> tuple[Any, ...]:
    """Return the box, the buttons, the changes from the policy, and the rank in the box."""
    recipe, name = try_recipe(values), manual_ranks.slot_name(slot)
    overrides = recipe.rank_overrides if recipe else {}
    enabled = (bool(history["past"]), bool(history["future"]), name in overrides, bool(overrides))
    buttons = editor_buttons(enabled)
    label = words.allocation.SLOT.format(*slot)
    try:
        plan = store.plan(recipe)
        policy_plan = store.policy_plan(recipe) if recipe else None
    except lrcore.InputError:  # the message is in place of the size and cost
        return gr.skip(), buttons, gr.skip(), gr.skip()
    if plan is None or tuple(slot) not in plan.ranks:
        info = "" if plan is None else missing_slot_info(store, recipe, tuple(slot))
        box = gr.Number(label=label, value=None, info=info, interactive=False)
        return box, buttons, "", None
    rank, full_rank = plan.ranks[tuple(slot)], plan.spectra[tuple(slot)].cost.full
    policy_rank = policy_plan.ranks.get(tuple(slot), words.allocation.ANOTHER_FORM)
    info = words.allocation.SLOT_INFO.format(full_rank, policy_rank)
    box = gr.Number(label=label, value=rank, info=info, interactive=True)
    changes = manual_ranks.changes(plan, policy_plan, overrides)
    return box, buttons, markup.changes(changes, plan, policy_plan), rank


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


def press(
    event: gr.EventData,
    slot: list,
    history: manual_ranks.History,
    overrides: manual_ranks.Ranks,
) -> tuple[manual_ranks.Ranks, manual_ranks.History]:
    """Handle a button of the editor."""
    pressed = EventValues(event)
    if pressed["action"] == "release":
        return release(slot, history, overrides)
    steps = {"undo": manual_ranks.undo, "redo": manual_ranks.redo, "clear-overrides": clear}
    if pressed["action"] not in steps:
        raise pressed.unclear("action")
    return steps[pressed["action"]](history, overrides)


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
