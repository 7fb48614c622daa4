"""Runs of a sweep, and their rows in the tables of the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore
from lrcore.compression.steps.chain import ChainStep
from lrcore.recipes.history import Compressed
from lrcore.runs.runs import Run
from lrcore.runs.sweep_rows import SweepRow


def find_run(runs: Sequence[Run], recipe: lrcore.Recipe) -> Run | None:
    """Return a run of exactly this recipe, without further steps."""
    return next((run for run in runs if run.recipe == recipe and ends_with_recipe(run)), None)


def ends_with_recipe(run: Run) -> bool:
    """Return True if compression by the recipe was the last step of the run."""
    return bool(run.history) and isinstance(run.history[-1], Compressed)


def find_evaluation(run: Run, settings: lrcore.EvaluationSettings) -> dict[str, Any] | None:
    """Return the stored evaluation of a run with these settings."""
    for evaluation in run.evaluations:
        stored = evaluation.get("settings")
        if stored is not None and lrcore.EvaluationSettings(**stored) == settings:
            return evaluation
    return None


def sweep_rows(
    runs: Sequence[Run], evaluations: Sequence[lrcore.EvaluationSettings]
) -> list[SweepRow]:
    """Return one row per run and evaluation, as in `lrcore.run_sweep`.

    The first rows are for the dense model of the first run, one per text.
    """
    dense_rows: dict[str, SweepRow] = {}
    rows = []
    for settings in evaluations:
        for run in runs:
            evaluation = find_evaluation(run, settings)
            if evaluation is not None:
                dense_rows.setdefault(settings.data, dense_row(run, evaluation, settings.data))
                rows.append(run_row(run, evaluation, settings.data))
    return [*dense_rows.values(), *rows]


def run_row(run: Run, evaluation: Mapping[str, Any], data: str) -> SweepRow:
    """Return the row of a run for its evaluation on a data set."""
    context = run.recipe.seq_len
    account = run.account.to_dict()
    steps = (ChainStep("compress", run.recipe),)
    return SweepRow.of(steps, account, evaluation, measured_on=data, context=context)


def dense_row(run: Run, evaluation: Mapping[str, Any], data: str) -> SweepRow:
    """Return the row of the dense model that the run was compared with."""
    account = {
        name.removeprefix("dense_"): value
        for name, value in run.account.to_dict().items()
        if "dense" in name
    }
    protocol = evaluation["protocol"].items()
    figures = {
        "perplexity": evaluation["dense_perplexity"],
        "protocol": {name: value for name, value in protocol if name != "on_calibration_text"},
    }
    return SweepRow.of(
        (),
        account | {"achieved": 0.0},
        figures,
        measured_on=data,
        context=run.recipe.seq_len,
    )
