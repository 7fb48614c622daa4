"""The selected slot under the bars: its rank in a box, undo and redo, and what was changed
against the policy.
"""

from typing import Any

import gradio as gr

import lrcore

from . import hand, markup, text
from .parts import LIVE, QUIET, clicked, listen, panel, spoken
from .session import Session


def build(session: Session, chart: gr.HTML, redrawn: list[Any]) -> None:
    """chart: the bars, whose handle reports edits.

    redrawn: the events after which the ranks may be others.
    """
    form, overrides, history = session.form, session.form["overrides"], session.history
    with gr.Row(elem_classes="bottom", elem_id="slot-row"):
        box = gr.Number(
            label=text.SLOT.format(*session.selected.value),
            precision=0,
            elem_id="slot-rank",
            min_width=240,
        )
        back = gr.Button(
            text.UNDO, size="sm", elem_id="undo", interactive=False, scale=0, min_width=90
        )
        forth = gr.Button(
            text.REDO, size="sm", elem_id="redo", interactive=False, scale=0, min_width=90
        )
        release = gr.Button(
            text.RELEASE, size="sm", elem_id="release", interactive=False, scale=0, min_width=170
        )
        clear = gr.Button(
            text.CLEAR,
            size="sm",
            elem_id="clear-overrides",
            interactive=False,
            scale=0,
            min_width=120,
        )
    differs = panel("hand-changes")
    in_box = gr.State(None)  # the rank that the box shows: another one in it was typed

    @spoken
    def show(slot: list, steps: hand.History, *said: Any) -> tuple[Any, ...]:
        recipe, name = form.try_recipe(said), hand.slot_name(slot)
        undoable, redoable, fixed = (
            bool(steps["past"]),
            bool(steps["future"]),
            recipe.overrides if recipe else {},
        )
        buttons = [
            gr.Button(interactive=on) for on in (undoable, redoable, name in fixed, bool(fixed))
        ]
        try:
            plan = session.plan(recipe)
        except lrcore.InputError:  # the readout says so
            return gr.skip(), *buttons, gr.skip(), gr.skip()
        if plan is None or tuple(slot) not in plan.ranks:
            words = text.NO_CUT.format(name=slot[1]) if plan is not None else ""
            return (
                gr.Number(label=text.SLOT.format(*slot), value=None, info=words, interactive=False),
                *buttons,
                "",
                None,
            )
        alone = session.policy_plan(recipe) if fixed else plan
        info = text.SLOT_INFO.format(plan.spectra[tuple(slot)].cost.full, alone.ranks[tuple(slot)])
        number = gr.Number(
            label=text.SLOT.format(*slot),
            value=plan.ranks[tuple(slot)],
            info=info,
            interactive=True,
        )
        return (
            number,
            *buttons,
            markup.changes(hand.changes(plan, alone, fixed), plan, alone),
            plan.ranks[tuple(slot)],
        )

    @spoken
    def drag(
        event: gr.EventData, steps: hand.History, now: hand.Ranks
    ) -> tuple[hand.Ranks, hand.History]:
        said = clicked(event)
        name = hand.slot_name((said["layer"], said["component"]))
        others = {slot: rank for slot, rank in now.items() if slot != name}
        then = others if said["rank"] is None else now | {name: int(said["rank"])}
        return hand.step(steps, now, then, said["gesture"])

    @spoken
    def type_in(
        rank: float | None,
        shown: int | None,
        slot: list,
        steps: hand.History,
        now: hand.Ranks,
        *said: Any,
    ) -> tuple[Any, Any]:
        if rank is None or shown is None or int(rank) == shown:
            return gr.skip(), gr.skip()
        then = now | {hand.slot_name(slot): int(rank)}
        session.plan(form.recipe(said).with_(overrides=then))  # refused before it is kept
        return hand.step(steps, now, then)

    def let_go(slot: list, steps: hand.History, now: hand.Ranks) -> tuple[hand.Ranks, hand.History]:
        return hand.step(
            steps, now, {name: rank for name, rank in now.items() if name != hand.slot_name(slot)}
        )

    kept = [overrides, history]
    listen(
        [*redrawn, session.selected.change, history.change],
        show,
        [session.selected, history, *form.all],
        [box, back, forth, release, clear, differs, in_box],
        **LIVE,
    )
    chart.edit(drag, [history, overrides], kept, **QUIET, trigger_mode="multiple")
    gr.on(
        [box.submit, box.blur],
        type_in,
        [box, in_box, session.selected, history, overrides, *form.all],
        kept,
        **QUIET,
    )
    back.click(hand.undo, [history, overrides], kept, **QUIET)
    forth.click(hand.redo, [history, overrides], kept, **QUIET)
    release.click(let_go, [session.selected, history, overrides], kept, **QUIET)
    clear.click(lambda steps, now: hand.step(steps, now, {}), [history, overrides], kept, **QUIET)
