"""The runs of a sweep: which of them are there, and their figures as the tables that the command
line writes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore


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


def rows(
    runs: Sequence[lrcore.Run], evaluations: Sequence[lrcore.EvaluationSettings]
) -> list[lrcore.SweepRow]:
    """One row per run and measurement, as `lrcore.run_sweep` has them; first the dense model of
    the first run, once per text.
    """
    dense: dict[str, lrcore.SweepRow] = {}
    own = []
    for settings in evaluations:
        for run in runs:
            one = evaluation_of(run, settings)
            if one is not None:
                dense.setdefault(settings.data, dense_row(run, one, settings.data))
                own.append(run_row(run, one, settings.data))
    return [*dense.values(), *own]


def run_row(run: lrcore.Run, evaluation: Mapping[str, Any], data: str) -> lrcore.SweepRow:
    """The row of a run under one of its evaluations, on a data set."""
    context = run.recipe.seq_len
    account = run.account.to_dict()
    steps = (lrcore.ChainStep("compress", run.recipe),)
    return lrcore.SweepRow.of(steps, account, evaluation, measured_on=data, context=context)


def dense_row(run: lrcore.Run, evaluation: Mapping[str, Any], data: str) -> lrcore.SweepRow:
    """The row of the dense model that a run was measured against."""
    values = run.account.to_dict()
    account = {name.removeprefix("dense_"): one for name, one in values.items() if "dense" in name}
    protocol = evaluation["protocol"].items()
    figures = {
        "perplexity": evaluation["dense_perplexity"],
        "protocol": {name: one for name, one in protocol if name != "on_calibration_text"},
    }
    return lrcore.SweepRow.of(
        (),
        account | {"achieved": 0.0},
        figures,
        measured_on=data,
        context=run.recipe.seq_len,
    )
