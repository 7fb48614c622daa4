"""How far predicted perplexities can be trusted: the rise of the loss, with its interval, against
that of the model that was made, for plans of `probed` and uniform ones at 10-50 %.
"""

import math
import statistics
from typing import Any

import lrcore

from .page import RATIOS, Subject, note, subjects, table, write_section
from .quality import keep, read_record, spearman

POLICIES = ("probed", "uniform")
WINDOWS = 128  # of 256: on 32 the actual rise alone is 7 to 30 % off on the demo models
LARGE = 0.01  # nats/token: a percent of the perplexity, of which the standard error is a tenth
Cell = dict[str, float]


def prediction(only: list[str]) -> None:
    """Measure what the record lacks, and write the section of each model after each method."""
    record = read_record()
    for subject in subjects(only):
        own = record.setdefault(subject.title, {"cells": {}}).setdefault("predictions", {})
        model = lrcore.load(subject.recipe.model)
        dense = nll(model, subject)
        for method in (row["name"] for row in lrcore.methods()):
            if any(name.startswith(f"{method} ") for name in own):
                continue
            own |= measure(model, subject, method, dense)
            keep(record)
            write_section(f"interaction {subject.title}", section(subject.title, own))


def nll(model: lrcore.LoadedModel, subject: Subject) -> float:
    return lrcore.evaluate(model, subject.data, samples=WINDOWS, seq_len=256).nll


def measure(
    model: lrcore.LoadedModel, subject: Subject, method: str, dense: float
) -> dict[str, Cell]:
    """The cells of one method by "method policy ratio": rises of the loss, nats/token."""
    base, cells = subject.recipe.with_(method=method, policy="probed"), dict[str, Cell]()
    factors = lrcore.prepare(model, base)
    text = factors.evidence.get("probes").interaction.target.dense_loss
    for policy in POLICIES:
        for ratio in RATIOS:
            recipe = base.with_(policy=policy, ratio=ratio)
            try:
                plan = lrcore.allocate(factors, recipe)
            except lrcore.InputError as error:
                note(f"{subject.title} {method} {policy} {ratio}: {error}")
                continue
            small = lrcore.compress(model, recipe, factors, plan)
            found = plan.predicted
            cells[f"{method} {policy} {ratio}"] = {
                "sum": plan.summed_increase,
                "predicted": math.log(found.perplexity) - text,
                "low": math.log(found.low) - text,
                "high": math.log(found.high) - text,
                "actual": nll(small, subject) - dense,
            }
            note(f"{subject.title} {method} {policy} {ratio} {cells[f'{method} {policy} {ratio}']}")
    return cells


def section(title: str, cells: dict[str, Cell]) -> str:
    """One row per method and policy, and one sentence over all."""
    rows = []
    for method in (row["name"] for row in lrcore.methods()):
        for policy in POLICIES:
            own = [cell for name, cell in cells.items() if name.startswith(f"{method} {policy} ")]
            if own:
                rows.append([method, policy, *shown(own)])
    pairs = [(cell["predicted"], cell["actual"]) for cell in cells.values()]
    median, within, alone = shown(list(cells.values()))
    words = (
        f"**{title}**, {len(pairs)} plans at 10-50 %: median error of the predicted rise of the "
        f"loss {median} (of the plain sum of the probes {alone}){of_large(cells)}, {within} of the "
        f"actual values within the interval of 90 %, Spearman rank correlation "
        f"{spearman(pairs):.3f}."
    )
    header = ["method", "policy", "median error", "within", "of the sum"]
    return f"{words}\n\n{table(header, rows)}"


def of_large(cells: dict[str, Cell]) -> str:
    """The same of the plans that lose enough to be told from chance."""
    large = [cell for cell in cells.values() if cell["actual"] >= LARGE]
    if not large:
        return ""
    median, _, alone = shown(large)
    return f", of the {len(large)} that rise by {LARGE} nats/token at least {median} ({alone})"


def shown(cells: list[dict[str, Any]]) -> list[str]:
    """Median error of the predictions, share within the interval, median error of the sums."""
    within = statistics.mean(cell["low"] <= cell["actual"] <= cell["high"] for cell in cells)
    return [f"{error(cells, 'predicted'):.0%}", f"{within:.0%}", f"{error(cells, 'sum'):.0%}"]


def error(cells: list[Cell], name: str) -> float:
    """Median of abs(predicted - actual) / abs(actual) rise."""
    return statistics.median(
        abs(cell[name] - cell["actual"]) / abs(cell["actual"]) for cell in cells
    )
