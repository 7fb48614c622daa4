"""Bases that neighboring layers share (Basis Sharing): the remaining size, and the job."""

from typing import Any

import lrcore
from lrcore.compression.steps.share import shared_size

from ... import words
from ...jobs import ShareJob
from ...state.store import Store
from ...views import preview
from ...widgets.components import panel, whole_number
from ...widgets.fields import Field
from ..compress.job_inputs import (
    describe_model,
    job_fields,
    read_and_check,
    run_name,
)
from .reduction import Reduction

RATIO, GROUP = 0.2, 2


def layout() -> Reduction:
    """Place the controls."""
    text = words.compress
    ratio = Field(
        "share-ratio", text.REDUCTION, RATIO, text.SHARE_RATIO, low=0.02, high=0.9, step=0.01
    )
    group = Field("share-group", text.GROUP, GROUP, text.GROUP_INFO, low=1)
    controls = job_fields("share", [ratio, group], text.START_SHARE, text.SHARE)
    return Reduction(controls, (panel("share-caption"),), describe, start)


def describe(store: Store, controls: list[Any], *values: Any) -> tuple[str]:
    """Describe the result of the job."""

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        ratio, group = read_controls(recipe, controls)
        remaining = shared_size(model, ratio, group)
        return preview.sharing(remaining, model.size.decoder_linear, group)

    return (describe_model(store, values, sentence),)


def read_controls(recipe: lrcore.Recipe, controls: list[Any]) -> tuple[float, int]:
    """Return the ratio and the layers per basis. Raises InputError for a value out of range."""
    ratio, group = controls[0], whole_number(controls[1], words.compress.GROUP)
    if group < 1:
        raise lrcore.InputError(words.compress.GROUP_RANGE.format(group))
    return recipe.with_(ratio=ratio).ratio, group


def start(store: Store, controls: list[Any], *values: Any) -> None:
    """Queue the run."""
    recipe, settings = read_and_check(store, values)
    ratio, group = read_controls(recipe, controls)
    name = run_name(controls[-1])
    store.jobs.submit(ShareJob(recipe.with_(ratio=ratio), group, name, settings))
