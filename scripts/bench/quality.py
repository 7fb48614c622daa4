"""Perplexity of every method and policy at 10-50 %, and how well it was predicted.

Measured cells are kept in docs/benchmarks.json,
so that a method that is new or has changed is measured alone and every table is made from the same
record.
"""

import json
import math
import os
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lrcore

from .by_policy import write_by_policy
from .choice import write_choice
from .page import (
    DOCUMENT,
    RATIOS,
    Subject,
    note,
    recipe_of,
    subjects,
    table,
    timed,
    with_error,
    write_section,
)
from .standing import write_standing

RECORD = DOCUMENT.with_suffix(".json")
BUDGETS = ("params", "total", "kv")
Recipes = Iterator[lrcore.Recipe]


@dataclass(frozen=True)
class Cells:
    """Which cells to measure: those of some methods and policies, all where none is named; missing:
    only those that the record lacks.
    """

    methods: Sequence[str] = ()
    policies: Sequence[str] = ()
    missing: bool = False
    ratios: Sequence[float] = RATIOS

    def recipes(self, base: lrcore.Recipe, method: str, known: Collection[str]) -> Recipes:
        """The recipes to measure of one method."""
        for policy in (row["name"] for row in lrcore.policies()):
            for ratio in self.ratios:
                there = any(f"{method} {policy} {budget} {ratio}" in known for budget in BUDGETS)
                if (not self.policies or policy in self.policies) and not (self.missing and there):
                    yield recipe_of(base, method, policy=policy, ratio=ratio)


def quality(only: list[str], wanted: Cells) -> None:
    """Measure, record, and write every table that the record serves."""
    record = read_record()
    for subject in subjects(only):
        own = record.setdefault(subject.title, {"cells": {}})
        model = lrcore.load(subject.recipe.model)
        calibration = lrcore.calibrate(model, subject.recipe)
        own["protocol"] = protocol(subject, model, calibration)
        dense = evaluation(model, subject)
        own["dense"] = dense.perplexity
        for method in (row["name"] for row in lrcore.methods()):
            if wanted.methods and method not in wanted.methods:
                continue
            recipes = wanted.recipes(subject.recipe, method, tuple(own["cells"]))
            for name, cell in measure(model, recipes, subject, dense):
                own["cells"][name] = cell
                keep(record)
        write_tables(subject.title, own)
    write_by_policy(record)


def evaluation(model, subject: Subject) -> lrcore.Evaluation:
    return lrcore.evaluate(model, subject.evaluation)


def figure(model, subject: Subject, dense: lrcore.Evaluation) -> str:
    """The perplexity of a compressed model, with its standard error. dense: the dense model's."""
    return with_error(figures_of(evaluation(model, subject), dense))


def figures_of(small: lrcore.Evaluation, dense: lrcore.Evaluation) -> dict[str, float]:
    """A perplexity, and the standard error of its difference to the dense one, paired by window."""
    error = small.perplexity * small.delta_error(dense)
    return {"perplexity": round(small.perplexity, 4), "error": round(error, 4)}


def paired_error(small: lrcore.Evaluation, dense: Sequence[float]) -> float:
    """The error of `figures_of` where of the dense model only the losses of its windows were kept,
    all of which are equally long.
    """
    steps = [one - two for one, two in zip(small.window_nll, dense, strict=True)]
    return small.perplexity * statistics.stdev(steps) / math.sqrt(len(steps))


def measure(
    model, recipes: Recipes, subject: Subject, dense: lrcore.Evaluation
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cells of recipes of one method, which is factorised once. dense: the model's own."""
    factors, options = None, None
    for single in recipes:
        name = f"{subject.title} {single.method} {single.policy} {single.ratio:.0%}"
        try:
            if factors is None or options != lrcore.method_options(single):
                factors, options = lrcore.prepare(model, single), lrcore.method_options(single)
            factors = lrcore.measure_evidence(model, factors, single)
            small = lrcore.compress(model, single, factors)
            increase = lrcore.allocate(factors, single).summed_increase
        except lrcore.InputError as error:
            note(f"{name}: {error}")
            continue
        summary = small.account.to_dict()
        cell = {
            **figures_of(evaluation(small, subject), dense),
            "predicted": summary["predicted_perplexity"],
            "predicted_rise": None if increase is None else round(increase, 6),
            "parameters": small.size.parameters,
            "kv_bytes": small.size.kv_bytes,
        }
        note(f"{name} {cell}")
        yield f"{single.method} {single.policy} {summary['budget']} {single.ratio}", cell


def solve(only: list[str]) -> None:
    """Seconds from moments to a compressed model at 50 %, without calibration and probes: for a
    machine that does nothing else.
    """
    record = read_record()
    for subject in subjects(only):
        own = record.setdefault(subject.title, {"cells": {}})
        model, seconds = lrcore.load(subject.recipe.model), {}
        calibration = lrcore.calibrate(model, subject.recipe)
        for method in lrcore.methods():
            name = method["name"]
            single = recipe_of(subject.recipe, name, ratio=RATIOS[-1])
            run = partial(solved, model, calibration, single)
            seconds[name] = round(timed(run)[1], 2)
            note(f"solve {subject.title} {name} {seconds[name]}")
        own["solve_seconds"] = seconds
        keep(record)
        if own["cells"]:
            write_tables(subject.title, own)


def solved(model, calibration, single: lrcore.Recipe) -> lrcore.LoadedModel:
    """The compressed model, its factors included, and the probes where its policy has some."""
    factors = lrcore.factorise(model, calibration, single.method)
    return lrcore.compress(model, single, factors)


def read_record() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def keep(record: dict[str, Any]) -> None:
    partial = RECORD.with_suffix(".tmp")
    partial.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, RECORD)


def keep_cell(title: str, part: str, name: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Add a cell to a part of what the record has of a model, which is returned as it then is. The
    record is read again, for another process may have added to it.
    """
    record = read_record()
    own = record.setdefault(title, {"cells": {}})
    own.setdefault(part, {})[name] = cell
    keep(record)
    return own


def protocol(subject: Subject, model, calibration) -> str:
    size, recipe = model.size, subject.recipe
    windows = f"{recipe.samples} windows of {recipe.seq_len}, {recipe.sampling}, seed {recipe.seed}"
    return (
        f"{size.parameters:,} parameters, {size.decoder_linear:,} of them decoder-linear, "
        f"{size.kv_bytes} KV bytes per token. "
        f"Calibrated on {calibration.protocol['tokens']:,} tokens of `{Path(recipe.data).name}` "
        f"({windows}); measured on the first {subject.windows} windows of {subject.length} of "
        f"`{Path(subject.data).name}` (test split where there is one)."
    )


# ---- tables


def write_tables(title: str, own: dict[str, Any]) -> None:
    """Quality, its short form, and predicted against actual into the document, the lowest figures
    into the page of advice.
    """
    ratios = [f"{ratio:.0%}" for ratio in RATIOS]
    header = ["method", "policy", *ratios, "parameters at 50 %", "KV bytes at 50 %", "solve, s"]
    parts = [f"**{title}**: dense perplexity {own['dense']:.3f}; {own['protocol']}"]
    params, kv = rows_of(own, "params"), rows_of(own, "kv")
    if params:
        parts.append(table(header, params))
    if kv:
        parts += ["Share of the **KV cache** removed instead:", table(header, kv)]
    write_section(f"quality {title}", "\n\n".join(parts))
    chosen = [
        row[: 2 + len(RATIOS)]
        for row in params
        if row[1] == "uniform" or (row[0], row[1]) == ("fused", "probed")
    ]
    words = (
        f"**{title}**, perplexity with this share of the decoder-linear parameters removed (dense "
        f"{own['dense']:.3f}):"
    )
    write_section(
        f"measured {title}",
        f"{words}\n\n{table(['method', 'policy', *ratios], chosen)}",
    )
    write_choice(title, own)
    write_standing(title, own, RATIOS)
    write_section(f"predicted {title}", predicted_table(title, own))


def rows_of(own: dict[str, Any], budget: str, ratios: Sequence[float] = RATIOS) -> list[list]:
    """One row per method and policy, in the order of the tables of the package."""
    rows = []
    for method in lrcore.methods():
        for policy in lrcore.policies():
            cells = [
                own["cells"].get(f"{method['name']} {policy['name']} {budget} {ratio}")
                for ratio in ratios
            ]
            if any(cells):
                last = next(cell for cell in reversed(cells) if cell)
                shown = [with_error(cell) if cell else "–" for cell in cells]
                sizes = [
                    f"{last['parameters']:,}",
                    last["kv_bytes"],
                    own.get("solve_seconds", {}).get(method["name"], "–"),
                ]
                rows.append([method["name"], policy["name"], *shown, *sizes])
    return rows


def predicted_table(title: str, own: dict[str, Any]) -> str:
    """Predicted and actual perplexity under `probed`, the rank correlation over (method, ratio),
    and how far the predicted rises of the loss are off.
    """
    rows, pairs, dense = [], [], own["dense"]
    for method in lrcore.methods():
        cells = [own["cells"].get(f"{method['name']} probed params {ratio}") for ratio in RATIOS]
        if all(cell and cell.get("predicted_rise") is not None for cell in cells):
            predicted = [dense * math.exp(cell["predicted_rise"]) for cell in cells]
            both = list(zip(predicted, cells, strict=True))
            rows.append(
                [method["name"], *(f"{one:.3f} / {with_error(cell)}" for one, cell in both)]
            )
            pairs += [(one, cell["perplexity"]) for one, cell in both]
    words = (
        f"**{title}**, predicted / actual; Spearman rank correlation over the {len(pairs)} pairs: "
        f"{spearman(pairs):.3f}; median error of the predicted rise of the loss: "
        f"{median_error(pairs, dense):.0%}. The prediction is the dense loss of the test text plus "
        "the sum of the predicted increases, which are measured on windows of the calibration text."
    )
    return f"{words}\n\n{table(['method', *(f'{ratio:.0%}' for ratio in RATIOS)], rows)}"


def median_error(pairs: list[tuple[float, float]], dense: float) -> float:
    """Median of abs(predicted - actual) / actual over pairs of perplexities, of the rises of the
    loss above that of the dense perplexity; pairs without a rise are left out, NaN of none.
    """
    rises = [(math.log(one / dense), math.log(two / dense)) for one, two in pairs]
    errors = [abs(one - two) / two for one, two in rises if two > 0]
    return statistics.median(errors) if errors else math.nan


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Pearson correlation of the ranks; ties share their mean rank."""
    import pandas as pd

    frame = pd.DataFrame(pairs, columns=["predicted", "actual"]).rank()
    return float(frame["predicted"].corr(frame["actual"]))
