"""Runs made from the run on show: quantised, healed."""

from dataclasses import dataclass

import gradio as gr

import lrcore

from ... import text
from ...components import Number, small_button
from ...events import QUIET, bind
from ...jobs import HealJob, QuantiseJob
from ...store import Store


@dataclass(frozen=True)
class Derive:
    """healing: the controls in the order of the arguments of `heal`."""

    bits: gr.Radio
    quantise: gr.Button
    healing: list[gr.components.Component]
    heal: gr.Button


def layout() -> Derive:
    with gr.Accordion("Quantise", open=False):
        gr.Markdown(text.QUANTISE_HELP)
        with gr.Row(elem_classes="bottom"):
            bits = gr.Radio([8, 4, 3, 2], value=8, label="Bits", elem_id="quantise-bits")
            quantise_button = small_button("Quantise", "quantise")
    with gr.Accordion("Heal", open=False):
        gr.Markdown(text.HEAL_HELP)
        with gr.Row(elem_classes="bottom"):
            healing = healing_controls()
            heal_button = small_button("Heal", "heal")
    return Derive(bits, quantise_button, healing, heal_button)


def healing_controls() -> list[gr.components.Component]:
    usual = lrcore.Healing()
    each = f"of {usual.batch} windows of {usual.seq_len} tokens"
    rate, rate_info = usual.lr, "latents tolerate ten times as much"
    return [
        Number(usual.steps, label="Steps", info=each, precision=0, elem_id="heal-steps"),
        Number(rate, label="Learning rate", info=rate_info, elem_id="heal-rate"),
        Number(usual.beta, label=text.HEAL_BETA, elem_id="heal-beta"),
        Number(
            0,
            label="Rotary channel",
            info="care alone; 0: none",
            precision=0,
            elem_id="heal-channel",
        ),
    ]


def wire(store: Store, parts: Derive, opened: gr.State) -> None:
    parts.quantise.click(bind(quantise, store), [opened, parts.bits], None, **QUIET)
    parts.heal.click(bind(heal, store), [opened, *parts.healing], None, **QUIET)


def quantise(store: Store, run_id: str, bits: int) -> None:
    """Queue a quantised copy of a run. Raises InputError at once where the run takes none."""
    run = run_that_may(store, run_id, lrcore.Quantised)
    store.jobs.submit(QuantiseJob(run_id, bits, run.name))


def heal(store: Store, run_id: str, steps: float, rate: float, beta: float, channel: float) -> None:
    """Queue a healed copy of a run. Raises InputError at once for wrong settings, and where the
    run cannot be healed.
    """
    healing = lrcore.Healing(
        steps=int(steps or 0), lr=rate or 0.0, beta=beta or 0.0, rotary_channel=int(channel or 0)
    )
    run = run_that_may(store, run_id, lrcore.Healed)
    store.jobs.submit(HealJob(run_id, healing, run.name))


def run_that_may(store: Store, run_id: str, step: type) -> lrcore.Run:
    """The run, where this step may follow its history. Raises InputError with the reason if not."""
    run = store.runs.get(run_id)
    reason = lrcore.refusal(step, run.history, run.name)
    if reason is not None:
        raise lrcore.InputError(reason)
    return run
