"""The runs of a sweep: which of them are there, and their figures as the tables that the command
line writes.
"""

from collections.abc import Sequence
from typing import Any

import lrcore

SUMMED = (
    "achieved",
    "parameters",
    "kv_bytes_per_token",
    "flops_per_token",
)  # of a plan's account, under the same names
MEASURED = ("perplexity", "nll", "bits_per_byte", "nonfinite", "kl", "top1", "protocol")


def made(runs: Sequence[lrcore.Run], recipe: lrcore.Recipe) -> lrcore.Run | None:
    """A run by exactly this recipe, and by nothing on top of it or in its place."""
    return next((run for run in runs if run.recipe == recipe and by_recipe(run)), None)


def by_recipe(run: lrcore.Run) -> bool:
    """Whether putting ranks in was the last that happened to the model."""
    return bool(run.history) and isinstance(run.history[-1], lrcore.Compressed)


def evaluation_of(run: lrcore.Run, settings: lrcore.EvaluationSettings) -> dict[str, Any] | None:
    """The stored evaluation of a run under these settings; None where there is none."""
    return next(
        (
            one
            for one in run.evaluations
            if "settings" in one and lrcore.EvaluationSettings(**one["settings"]) == settings
        ),
        None,
    )


def lacking(
    run: lrcore.Run, wanted: Sequence[lrcore.EvaluationSettings]
) -> list[lrcore.EvaluationSettings]:
    """The settings under which a run was not measured yet."""
    return [settings for settings in wanted if evaluation_of(run, settings) is None]


def rows(
    runs: Sequence[lrcore.Run], evaluations: Sequence[lrcore.EvaluationSettings]
) -> list[dict[str, Any]]:
    """One row per run and measurement, as `lrcore.run_sweep` has them; first the dense model of
    the first run, once per text.
    """
    dense, own = {}, []
    for settings in evaluations:
        for run in runs:
            one = evaluation_of(run, settings)
            if one is not None:
                on = {"measured_on": settings.data, "error": None}
                dense.setdefault(settings.data, dense_row(run, one) | on)
                own.append(run_row(run, one) | on)
    return [*dense.values(), *own]


def run_row(run: lrcore.Run, one: dict[str, Any]) -> dict[str, Any]:
    recipe, summary = run.recipe, run.account.to_dict()
    made_by = {
        "calibrated_on": recipe.data,
        "method": recipe.method,
        "policy": recipe.policy,
        "ratio": recipe.ratio,
    }
    costs = {name: summary[name] for name in SUMMED} | {"context": recipe.seq_len}
    return made_by | costs | {name: one.get(name) for name in MEASURED}


def dense_row(run: lrcore.Run, one: dict[str, Any]) -> dict[str, Any]:
    made_by = {
        "calibrated_on": None,
        "method": "dense",
        "policy": None,
        "ratio": 0.0,
        "achieved": 0.0,
    }
    costs = {name: run.account.to_dict()[f"dense_{name}"] for name in SUMMED[1:]}
    figures = {"perplexity": one["dense_perplexity"], "protocol": one["protocol"]}
    return made_by | costs | {"context": run.recipe.seq_len} | figures
