"""Slicing of the hidden size (SliceGPT): the remaining size, and the job."""

from typing import Any

import lrcore
from lrcore.compression.steps.slicing.slicing import sliced_size

from ... import words
from ...jobs import SliceJob
from ...state.store import Store
from ...views import preview
from ...widgets.components import panel
from ...widgets.fields import Field
from ..compress.job_inputs import (
    describe_model,
    job_fields,
    read_and_check,
    run_name,
)
from .reduction import Reduction

RATIO, ROTATIONS = 0.2, "block"


def layout() -> Reduction:
    """Place the controls."""
    text = words.compress
    ratio = Field(
        "slice-ratio", text.REDUCTION, RATIO, text.SLICE_RATIO, low=0.02, high=0.7, step=0.01
    )
    choices = tuple((label, name) for name, label in text.ROTATIONS.items())
    rotations = Field(
        "slice-rotations", text.SLICE_BASES, ROTATIONS, text.SLICE_BASES_INFO, choices=choices
    )
    controls = job_fields("slice", [ratio, rotations], text.START_SLICE, text.SLICE)
    return Reduction(controls, (panel("slice-caption"),), describe, start)


def describe(store: Store, controls: list[Any], *values: Any) -> tuple[str]:
    """Describe the result of the job."""
    ratio, rotations, _ = controls

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        recipe.with_(ratio=ratio)  # raises InputError for a ratio out of range
        size = sliced_size(model, ratio, rotations, recipe.rank_multiple)
        return preview.slicing(size, model.size)

    return (describe_model(store, values, sentence),)


def start(store: Store, controls: list[Any], *values: Any) -> None:
    """Queue the run."""
    ratio, rotations, name = controls
    recipe, settings = read_and_check(store, values)
    job = SliceJob(recipe.with_(ratio=ratio), rotations, run_name(name), settings)
    store.jobs.submit(job)
