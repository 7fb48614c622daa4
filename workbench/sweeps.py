"""A sweep of the page: what its spec asks for, what of it is there, and its runs as the tables
that the command line writes.
"""

from collections.abc import Sequence
from typing import Any

import lrcore

from .jobs import Job
from .runs import Run, Runs

SUMMED = (
    "achieved",
    "parameters",
    "kv_bytes_per_token",
    "flops_per_token",
)  # of a plan's account, under the same names
OTHERWISE = {
    "quantised",
    "healing",
    "shortened",
    "sliced",
}  # what a report says of a model that its recipe alone did not make
MEASURED = ("perplexity", "nll", "bits_per_byte", "nonfinite", "kl", "top1", "protocol")


def sweep_of(spec: dict[str, Any]) -> lrcore.Sweep:
    """The sweep of a job's spec; what it does not name is the recipe's own."""
    asked = tuple(lrcore.EvaluationSettings(**settings) for settings in measurements(spec))
    return lrcore.Sweep(
        lrcore.Recipe.from_dict(spec["recipe"]),
        spec["methods"],
        spec.get("policies", ()),
        spec["ratios"],
        spec.get("calibration_sets", ()),
        *([asked] if asked else ()),
    )


def measurements(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """What every run is measured on: the settings of the spec, for a cross-calibration study on
    each of its texts, or nothing.
    """
    settings = spec.get("evaluation")
    if settings is None:
        return []
    return (
        [settings | {"data": data} for data in spec["calibration_sets"]]
        if spec.get("cross")
        else [settings]
    )


def check_cross(spec: dict[str, Any]) -> None:
    """Raise InputError where a study of all pairs lacks texts or a measurement."""
    lrcore.cross_calibration(lrcore.Recipe.from_dict(spec["recipe"]), spec["calibration_sets"])
    if spec["evaluation"] is None:
        raise lrcore.InputError(
            "A cross-calibration study measures every run: tick Measure dense and compressed above."
        )


def made(runs: Sequence[Run], recipe: lrcore.Recipe) -> Run | None:
    """A run by exactly this recipe, and by nothing on top of it or in its place."""
    return next(
        (run for run in runs if run.recipe == recipe and not OTHERWISE & run.report.keys()), None
    )


def lacking(run: Run, asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings under which a run was not measured yet."""
    return [
        settings
        for settings in asked
        if not any(one.get("settings") == settings for one in run.evaluations)
    ]


def rows(runs: Sequence[Run], asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per run and measurement, as `lrcore.run_sweep` has them; first the dense model of
    the first run, once per text.
    """
    dense, found = {}, []
    for settings in asked:
        for run in runs:
            one = next((one for one in run.evaluations if one.get("settings") == settings), None)
            if one is not None:
                on = {"measured_on": settings["data"], "error": None}
                dense.setdefault(settings["data"], dense_row(run, one) | on)
                found.append(run_row(run, one) | on)
    return [*dense.values(), *found]


def run_row(run: Run, one: dict[str, Any]) -> dict[str, Any]:
    recipe, summary = run.recipe, run.report["summary"]
    said = {
        "calibrated_on": recipe.data,
        "method": recipe.method,
        "policy": recipe.policy,
        "ratio": recipe.ratio,
    }
    costs = {name: summary[name] for name in SUMMED} | {"context": recipe.seq_len}
    return said | costs | {name: one.get(name) for name in MEASURED}


def dense_row(run: Run, one: dict[str, Any]) -> dict[str, Any]:
    said = {"calibrated_on": None, "method": "dense", "policy": None, "ratio": 0.0, "achieved": 0.0}
    costs = {name: run.report["summary"][f"dense_{name}"] for name in SUMMED[1:]}
    return (
        said
        | costs
        | {
            "context": run.recipe.seq_len,
            "perplexity": one["dense_perplexity"],
            "protocol": one["protocol"],
        }
    )


def tables(job: Job, runs: Runs) -> dict[str, str]:
    """{file name: text} of table.csv, table.json and report.html, of the runs that the job has
    made so far and that are still there.
    """
    known = set(runs.ids())
    found = rows(
        [runs.get(run_id) for run_id in job.result if run_id in known], measurements(job.spec)
    )
    if not found:
        raise lrcore.InputError(
            "There is no table: none of this sweep's runs is there and measured."
        )
    return lrcore.sweep_tables(found, sweep_of(job.spec).to_dict())
