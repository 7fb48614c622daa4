"""The selected slot under the bars: its rank in a box, undo and redo, and what was changed
against the policy.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import hand, hand_text, markup, text
from ...components import panel, small_button
from ...events import DRAWN, PRESSED, QUIET, bind, event_data, listen
from ...form import try_recipe
from ...page import Page
from ...store import Store
from .ranks import set_by_hand


@dataclass(frozen=True)
class RankEditor:
    """in_box: the rank that the box shows; another one in it was typed."""

    box: gr.Number
    undo: gr.Button
    redo: gr.Button
    release: gr.Button
    clear: gr.Button
    changes: gr.HTML
    in_box: gr.State


def layout(page: Page) -> RankEditor:
    with gr.Row(elem_classes="bottom", elem_id="slot-row"):
        box = gr.Number(
            label=hand_text.SLOT.format(*page.selected.value),
            precision=0,
            elem_id="slot-rank",
            min_width=240,
        )
        undo = small_button(hand_text.UNDO, "undo", 90, interactive=False)
        redo = small_button(hand_text.REDO, "redo", 90, interactive=False)
        release = small_button(hand_text.RELEASE, "release", 170, interactive=False)
        clear = small_button(hand_text.CLEAR, "clear-overrides", 120, interactive=False)
    return RankEditor(box, undo, redo, release, clear, panel("hand-changes"), gr.State(None))


def wire(page: Page, store: Store, parts: RankEditor, bars: gr.HTML) -> None:
    """bars: the figure whose handle reports edits."""
    form, history, selected = page.form.inputs, page.rank_history, page.selected
    overrides = page.form["overrides"]
    by_hand, kept = [history, overrides], [overrides, history]
    listen(
        [page.rest.tick, selected.change, history.change],
        bind(show, store),
        [selected, history, *form],
        [
            parts.box,
            parts.undo,
            parts.redo,
            parts.release,
            parts.clear,
            parts.changes,
            parts.in_box,
        ],
        **DRAWN,
    )
    bars.edit(bind(drag), by_hand, kept, **PRESSED)
    listen(
        [parts.box.submit, parts.box.blur],
        bind(type_rank, store),
        [parts.box, parts.in_box, selected, history, *form],
        [*kept, parts.box],
        **QUIET,
    )
    parts.undo.click(bind(hand.undo), by_hand, kept, **QUIET)
    parts.redo.click(bind(hand.redo), by_hand, kept, **QUIET)
    parts.release.click(bind(release), [selected, *by_hand], kept, **QUIET)
    parts.clear.click(bind(clear), by_hand, kept, **QUIET)


def show(store: Store, slot: list, history: hand.History, *values: Any) -> tuple[Any, ...]:
    """The box, the four buttons, what was changed against the policy, and the rank in the box."""
    recipe, name = try_recipe(values), hand.slot_name(slot)
    by_hand = recipe.overrides if recipe else {}
    enabled = (bool(history["past"]), bool(history["future"]), name in by_hand, bool(by_hand))
    buttons = [gr.update(interactive=on) for on in enabled]
    label = hand_text.SLOT.format(*slot)
    try:
        plan, alone = store.plan(recipe), store.policy_plan(recipe) if recipe else None
    except lrcore.InputError:  # the summary says so
        return gr.skip(), *buttons, gr.skip(), gr.skip()
    if plan is None or tuple(slot) not in plan.ranks:
        info = "" if plan is None else not_in_plan(store, recipe, tuple(slot))
        box = gr.Number(label=label, value=None, info=info, interactive=False)
        return box, *buttons, "", None
    rank, full = plan.ranks[tuple(slot)], plan.spectra[tuple(slot)].cost.full
    own = alone.ranks.get(tuple(slot), hand_text.ANOTHER_FORM)
    info = hand_text.SLOT_INFO.format(full, own)
    box = gr.Number(label=label, value=rank, info=info, interactive=True)
    changed = markup.changes(hand.changes(plan, alone, by_hand), plan, alone)
    return box, *buttons, changed, rank


def not_in_plan(store: Store, recipe: lrcore.Recipe | None, slot: tuple) -> str:
    """Why a slot has no rank: its part is taken in another form, or the method has no such slot."""
    factors = None if recipe is None else store.peek_factors(recipe)
    if factors is None or slot not in factors.spectra:
        return text.NO_CUT.format(name=slot[1])
    form = factors.spectra[slot].form
    return hand_text.OTHER_FORM.format(layer=slot[0], part=form.part, form=form.name, name=slot[1])


def drag(
    event: gr.EventData, history: hand.History, now: hand.Ranks
) -> tuple[hand.Ranks, hand.History]:
    """The ranks set by hand after the mark on a bar was dragged; rank None: left to the policy."""
    edit = event_data(event)
    name = hand.slot_name((edit.number("layer"), str(edit["component"])))
    others = {slot: rank for slot, rank in now.items() if slot != name}
    then = others if edit["rank"] is None else now | {name: edit.number("rank")}
    return hand.step(history, now, then, edit["gesture"])


def type_rank(
    store: Store,
    rank: float | None,
    shown: int | None,
    slot: list,
    history: hand.History,
    *values: Any,
) -> tuple[Any, Any, Any]:
    """The ranks set by hand after one was typed into the box, which showed another, and the box. A
    rank with which the budget cannot be met is refused: the box shows that of the plan again.
    """
    keep = gr.skip()
    if shown is None or rank == shown:
        return keep, keep, keep
    if rank is None:
        return keep, keep, shown

    def typed() -> hand.Ranks:
        return {hand.slot_name(slot): hand.read_rank(rank)}

    kept = set_by_hand(store, typed, history, *values)
    return (*kept, keep) if kept is not None else (keep, keep, shown)


def release(slot: list, history: hand.History, now: hand.Ranks) -> tuple[hand.Ranks, hand.History]:
    """The selected slot is left to the policy again."""
    others = {name: rank for name, rank in now.items() if name != hand.slot_name(slot)}
    return hand.step(history, now, others)


def clear(history: hand.History, now: hand.Ranks) -> tuple[hand.Ranks, hand.History]:
    """Every slot is left to the policy again."""
    return hand.step(history, now, {})
