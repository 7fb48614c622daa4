"""Runs made from the opened run: quantized or healed."""

from dataclasses import dataclass

import gradio as gr

import lrcore
from lrcore.compression.step_rules import step_conflict
from lrcore.recipes.history import Healed, Quantized
from lrcore.runs.runs import Run

from ... import words
from ...jobs import HealJob, QuantizeJob
from ...state.store import Store
from ...widgets.components import small_button
from ...widgets.events import QUIET, bind


@dataclass(frozen=True)
class Derive:
    """healing: the controls in the order of the arguments of `heal`."""

    bits: gr.Radio
    quantize: gr.Button
    healing: list[gr.components.Component]
    heal: gr.Button


def layout() -> Derive:
    """Place the controls of both steps."""
    text = words.compare_and_runs
    with gr.Accordion(text.QUANTIZE, open=False):
        gr.Markdown(text.QUANTIZE_HELP)
        with gr.Row(elem_classes="bottom"):
            bits = gr.Radio([8, 4, 3, 2], value=8, label=text.BITS, elem_id="quantise-bits")
            quantize_button = small_button(text.QUANTIZE, "quantise")
    with gr.Accordion(text.HEAL, open=False):
        gr.Markdown(text.HEAL_HELP)
        with gr.Row(elem_classes="bottom"):
            healing = healing_controls()
            heal_button = small_button(text.HEAL, "heal")
    return Derive(bits, quantize_button, healing, heal_button)


def healing_controls() -> list[gr.components.Component]:
    """Place the settings of healing, with their defaults."""
    text, defaults = words.compare_and_runs, lrcore.Healing()
    return [
        gr.Number(
            defaults.steps,
            label=text.HEAL_STEPS,
            info=text.HEAL_STEPS_INFO.format(defaults.batch, defaults.seq_len),
            precision=0,
            elem_id="heal-steps",
        ),
        gr.Number(
            defaults.lr,
            label=text.LEARNING_RATE,
            info=text.LEARNING_RATE_INFO,
            elem_id="heal-rate",
        ),
        gr.Number(defaults.beta, label=text.DISTILLATION_WEIGHT, elem_id="heal-beta"),
        gr.Number(
            0,
            label=text.ROTARY_CHANNEL,
            info=text.ROTARY_CHANNEL_INFO,
            precision=0,
            elem_id="heal-channel",
        ),
    ]


def wire(store: Store, parts: Derive, opened: gr.State) -> None:
    """Attach the handlers. opened: the id of the opened run."""
    parts.quantize.click(bind(quantize, store), [opened, parts.bits], None, **QUIET)
    parts.heal.click(bind(heal, store), [opened, *parts.healing], None, **QUIET)


def quantize(store: Store, run_id: str, bits: int) -> None:
    """Queue a quantized copy of a run. Raises InputError if the run cannot be quantized."""
    run = run_for_step(store, run_id, Quantized)
    store.jobs.submit(QuantizeJob(run_id, bits, run.name))


def heal(store: Store, run_id: str, steps: float, rate: float, beta: float, channel: float) -> None:
    """Queue a healed copy of a run.

    Raises InputError for invalid settings, and if the run cannot be healed.
    """
    healing = lrcore.Healing(
        steps=int(steps or 0), lr=rate or 0.0, beta=beta or 0.0, rotary_channel=int(channel or 0)
    )
    run = run_for_step(store, run_id, Healed)
    store.jobs.submit(HealJob(run_id, healing, run.name))


def run_for_step(store: Store, run_id: str, step: type) -> Run:
    """Return the run. Raises InputError if the step may not follow the history."""
    run = store.runs.get(run_id)
    reason = step_conflict(step, run.history, run.name)
    if reason is not None:
        raise lrcore.InputError(reason)
    return run
