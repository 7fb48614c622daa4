"""Editor of the selected slot, undo and redo of the plan, and the changes from the policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state import manual_ranks
from ...state.keys import BYTES
from ...state.plan_history import PlanHistory
from ...state.store import Store
from ...views import markup
from ...widgets.components import button_row_html, panel
from ...widgets.events import DRAWN, PRESSED, QUIET, EventValues, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.form import NAMES, read_recipe, try_recipe, within_ranges
from ...widgets.page import Page, recipe_values
from ...widgets.plan_address import address_of
from .ranks_table import set_ranks

BUTTONS = {  # labels by id
    "undo": words.allocation.UNDO,
    "redo": words.allocation.REDO,
    "release": words.allocation.RELEASE,
    "clear-overrides": words.allocation.CLEAR,
}
STEPS = {"undo": PlanHistory.undo, "redo": PlanHistory.redo}


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
    pairs = zip(BUTTONS, enabled, strict=True)
    return button_row_html(BUTTONS, {name for name, is_enabled in pairs if not is_enabled})


def wire(page: Page, store: Store, parts: RankEditor, bars: gr.HTML, link: gr.HTML) -> None:
    """Attach the handlers. bars: the figure with the handle that reports edits.

    link: the address of the plan, which follows the plan as the editor does.
    """
    form, gesture, selected = page.form.inputs, page.gesture, page.selected
    overrides = page.form["rank_overrides"]
    listen(
        [page.plan_at_rest.tick, selected.change],
        bind(settle, store),
        [gesture, selected, *form],
        [
            link,
            parts.box,
            parts.buttons,
            parts.changes,
            parts.displayed_rank,
        ],
        **DRAWN,
    )
    bars.edit(bind(drag), overrides, overrides, **PRESSED)
    listen(
        [parts.box.submit, parts.box.blur],
        bind(type_rank, store),
        [parts.box, parts.displayed_rank, selected, *form],
        [overrides, parts.box],
        **QUIET,
    )
    inputs = [gesture, selected, *form]
    listen([parts.buttons.select], bind(press, store), inputs, page.recipe_outputs, **PRESSED)


def settle(
    store: Store, browser: gr.Request, gesture: int, slot: list, *values: Any
) -> tuple[Any, ...]:
    """Record the plan for undo. Returns its address, and the values of `show`."""
    history = store.browsers.change_history(browser.session_hash, recorded(gesture, values))
    return address_of(*values), *show(store, slot, history, *values)


def recorded(gesture: int, values: Sequence[Any]) -> Callable[[PlanHistory], PlanHistory]:
    """Return a function that records the form's plan in a history, if the form is valid."""
    if not isinstance(gesture, int):
        raise EventValues.unclear("gesture")
    recipe = try_recipe(within_ranges(values)[0])
    return lambda history: history if recipe is None else history.record(recipe, gesture)


def show(store: Store, slot: list, history: PlanHistory, *values: Any) -> tuple[Any, ...]:
    """Return the box, the buttons, the changes from the policy, and the rank in the box."""
    recipe, name = try_recipe(values), manual_ranks.slot_name(slot)
    overrides = recipe.rank_overrides if recipe else {}
    enabled = (bool(history.past), bool(history.future), name in overrides, bool(overrides))
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
    is_editable = plan.budget != BYTES
    if not is_editable:
        bits = words.allocation.bits(plan.bits.get(tuple(slot), 0))
        info = words.allocation.SLOT_INFO_BITS.format(full_rank, bits)
    box = gr.Number(label=label, value=rank, info=info, interactive=is_editable)
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


def drag(event: gr.EventData, overrides: manual_ranks.Ranks) -> manual_ranks.Ranks:
    """Set the rank of a bar after the handle was dragged; rank None resets it to the policy."""
    edit = EventValues(event)
    slot = (edit.number("layer"), str(edit["component"]))
    if edit["rank"] is None:
        return release(slot, overrides)
    return overrides | {manual_ranks.slot_name(slot): edit.number("rank")}


def type_rank(
    store: Store,
    rank: float | None,
    displayed_rank: int | None,
    slot: list,
    *values: Any,
) -> tuple[Any, Any]:
    """Set a rank that was typed into the box.

    The box shows the rank of the plan again if the typed rank is refused.
    """
    unchanged = gr.skip()
    if displayed_rank is None or rank == displayed_rank:
        return unchanged, unchanged
    if rank is None:
        return unchanged, displayed_rank

    def typed() -> manual_ranks.Ranks:
        return {manual_ranks.slot_name(slot): manual_ranks.read_rank(rank)}

    edited = set_ranks(store, typed, *values)
    return (unchanged, displayed_rank) if edited is None else (edited, unchanged)


def press(
    store: Store,
    browser: gr.Request,
    event: gr.EventData,
    gesture: int,
    slot: list,
    *values: Any,
) -> list[Any]:
    """Handle a button of the editor. Returns the values of `Page.recipe_outputs`."""
    pressed = EventValues(event)
    action = pressed["action"]
    if action in STEPS:
        # the last change may not be recorded yet
        record = recorded(gesture, values)
        history = store.browsers.change_history(
            browser.session_hash, lambda history: STEPS[action](record(history), gesture)
        )
        return recipe_values(history.present)
    if action not in BUTTONS:
        raise pressed.unclear("action")
    overrides = read_recipe(values).rank_overrides
    overrides = release(slot, overrides) if action == "release" else {}
    return [overrides if name == "rank_overrides" else gr.skip() for name in (*NAMES, "choice")]


def release(slot: Sequence[Any], overrides: Mapping[str, int]) -> manual_ranks.Ranks:
    """Return the manual ranks without that of a slot, whose rank the policy then sets."""
    name = manual_ranks.slot_name(slot)
    return {slot_name: rank for slot_name, rank in overrides.items() if slot_name != name}
