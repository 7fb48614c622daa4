"""Predicted loss increases, with their intervals, against the actual increases of `probed` and
uniform plans at 10-50 %.
"""

import math
import statistics
from typing import Any

import lrcore

from .perplexity import spearman
from .record import read_record, stamped, write_record
from .report import log, table, write_section
from .subjects import RATIOS, Subject, recipe_of, subjects

POLICIES = ("probed", "uniform")
WINDOWS = 128  # of 256 tokens: with 32 windows the actual increase has an error of 7 to 30 %
LARGE = 0.01  # nats/token: one percent of the perplexity, ten standard errors
Cell = dict[str, float]


def prediction(models: list[str]) -> None:
    """Measure the missing cells and write the section of a model after each method."""
    record = read_record()
    for subject in subjects(models):
        cells = record.setdefault(subject.title, {"cells": {}}).setdefault("predictions", {})
        model = lrcore.load(subject.recipe.model)
        dense = nll(model, subject)
        for method in (row["name"] for row in lrcore.list_methods()):
            if any(name.startswith(f"{method} ") for name in cells):
                continue
            cells |= measure(model, subject, method, dense)
            write_record(record)
            write_section(f"interaction {subject.title}", section(subject.title, cells))


def nll(model: lrcore.LoadedModel, subject: Subject) -> float:
    """Return the mean loss on the evaluation text in nats/token."""
    return lrcore.evaluate(model, subject.data, samples=WINDOWS, seq_len=256).nll


def measure(
    model: lrcore.LoadedModel, subject: Subject, method: str, dense: float
) -> dict[str, Cell]:
    """Return the cells of a method by "method policy ratio": loss increases in nats/token."""
    base, cells = recipe_of(subject.recipe, method, policy="probed"), dict[str, Cell]()
    factors = lrcore.prepare(model, base)
    text = factors.evidence.get("probes").interaction.target.dense_loss
    for policy in POLICIES:
        for ratio in RATIOS:
            recipe = base.with_(policy=policy, ratio=ratio)
            try:
                plan = lrcore.allocate(factors, recipe)
            except lrcore.InputError as error:
                log(f"{subject.title} {method} {policy} {ratio}: {error}")
                continue
            compressed = lrcore.compress(model, recipe, factors, plan)
            prediction = plan.predicted
            if prediction is None:
                log(f"{subject.title} {method} {policy} {ratio}: no prediction")
                continue
            key = f"{method} {policy} {ratio}"
            cell = {
                "sum": plan.summed_increase,
                "predicted": math.log(prediction.perplexity) - text,
                "low": math.log(prediction.low) - text,
                "high": math.log(prediction.high) - text,
                "actual": nll(compressed, subject) - dense,
            }
            log(f"{subject.title} {key} {cell}")
            cells[key] = stamped("predictions", key, cell)
    return cells


def section(title: str, cells: dict[str, Cell]) -> str:
    """Return a row per method and policy, and a summary of all plans."""
    rows = []
    for method in (row["name"] for row in lrcore.list_methods()):
        for policy in POLICIES:
            plans = [cell for name, cell in cells.items() if name.startswith(f"{method} {policy} ")]
            if plans:
                rows.append([method, policy, *summary(plans)])
    pairs = [(cell["predicted"], cell["actual"]) for cell in cells.values()]
    median, coverage, median_of_sum = summary(list(cells.values()))
    caption = (
        f"**{title}**, {len(pairs)} plans at 10-50 %: median error of the predicted loss increase "
        f"{median} (plain sum of the probes: {median_of_sum}){summary_of_large(cells)}; {coverage} "
        f"of the actual values inside the 90 % interval; Spearman rank correlation "
        f"{spearman(pairs):.3f}."
    )
    header = ["method", "policy", "median error", "inside interval", "median error of the sum"]
    return f"{caption}\n\n{table(header, rows)}"


def summary_of_large(cells: dict[str, Cell]) -> str:
    """Return the summary of the plans whose loss increase is at least LARGE."""
    large = [cell for cell in cells.values() if cell["actual"] >= LARGE]
    if not large:
        return ""
    median, _, median_of_sum = summary(large)
    return (
        f"; for the {len(large)} plans with an increase of at least {LARGE} nats/token {median} "
        f"({median_of_sum})"
    )


def summary(cells: list[dict[str, Any]]) -> list[str]:
    """Return the median error of the predictions, the fraction of actual values inside the
    interval, and the median error of the sums.
    """
    coverage = statistics.mean(cell["low"] <= cell["actual"] <= cell["high"] for cell in cells)
    return [
        f"{median_error(cells, 'predicted'):.0%}",
        f"{coverage:.0%}",
        f"{median_error(cells, 'sum'):.0%}",
    ]


def median_error(cells: list[Cell], name: str) -> float:
    """Return the median of abs(predicted - actual) / abs(actual) loss increase."""
    return statistics.median(
        abs(cell[name] - cell["actual"]) / abs(cell["actual"]) for cell in cells
    )
