"""Runs made from the opened run: quantized or healed."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.step_rules import step_conflict
from lrcore.recipes.history import Healed, Quantized
from lrcore.runs.runs import Run

from ... import words
from ...jobs import HealJob, QuantizeJob
from ...state.store import Store
from ...widgets.events import QUIET, bind, listen
from ...widgets.fields import Field, FieldGroup, field_group


@dataclass(frozen=True)
class Derive:
    """healing: the fields in the order of the arguments of `heal`."""

    bits: FieldGroup
    healing: FieldGroup


def layout() -> Derive:
    """Place the controls of both steps."""
    text = words.compare_and_runs
    with gr.Accordion(text.QUANTIZE, open=False):
        choices = tuple((str(count), count) for count in (8, 4, 3, 2))
        bits = Field("quantise-bits", text.BITS, 8, choices=choices)
        begin = ("quantise", text.QUANTIZE)
        quantizing = field_group("quantise-fields", [bits], begin, text.QUANTIZE_HELP)
    with gr.Accordion(text.HEAL, open=False):
        begin = ("heal", text.HEAL)
        healing = field_group("heal-fields", healing_fields(), begin, text.HEAL_HELP)
    return Derive(quantizing, healing)


def healing_fields() -> list[Field]:
    """Return the settings of healing, with their defaults."""
    text, defaults = words.compare_and_runs, lrcore.Healing()
    steps_info = text.HEAL_STEPS_INFO.format(defaults.batch, defaults.seq_len)
    return [
        Field("heal-steps", text.HEAL_STEPS, defaults.steps, steps_info),
        Field("heal-rate", text.LEARNING_RATE, defaults.lr, text.LEARNING_RATE_INFO),
        Field("heal-beta", text.DISTILLATION_WEIGHT, defaults.beta),
        Field("heal-channel", text.ROTARY_CHANNEL, 0, text.ROTARY_CHANNEL_INFO),
    ]


def wire(store: Store, parts: Derive, opened: gr.State) -> None:
    """Attach the handler. opened: the id of the opened run."""
    pressed = [parts.bits.value.submit, parts.healing.value.submit]
    start, inputs = bind(start_step, store, parts), [opened, parts.bits, parts.healing]
    listen(pressed, start, inputs, None, **QUIET)


def start_step(
    store: Store,
    parts: Derive,
    event: gr.EventData,
    run_id: str,
    quantizing: list[Any],
    healing: list[Any],
) -> None:
    """Queue the step whose button was pressed. quantizing, healing: values of the fields."""
    if event.target is parts.healing.value:
        heal(store, run_id, *healing)
    else:
        quantize(store, run_id, *quantizing)


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
