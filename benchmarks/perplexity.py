"""Perplexity of all methods and policies at 10-50 %, measured and predicted.

Measured cells are stored in benchmarks/record.json, so that a new or changed method can be measured
separately and all tables come from the same record.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lrcore
from lrcore.compression.solve.factorize import method_options
from lrcore.evaluation.evaluate import Evaluation

from .rankings import write_choice, write_margins, write_policies
from .record import BUDGETS, read_record, stamped, write_record
from .report import log, table, with_error, write_section
from .subjects import RATIOS, Subject, recipe_of, subjects
from .timing import timed

Recipes = Iterator[lrcore.Recipe]


@dataclass(frozen=True)
class Selection:
    """The cells to measure: named methods and policies, or all.

    missing: only the cells that the record lacks.
    """

    methods: Sequence[str] = ()
    policies: Sequence[str] = ()
    missing: bool = False
    ratios: Sequence[float] = RATIOS

    def recipes(self, base: lrcore.Recipe, method: str, cells: Collection[str]) -> Recipes:
        """Yield the recipes of a method to measure. cells: names of the recorded cells."""
        for policy in (row["name"] for row in lrcore.list_policies()):
            for ratio in self.ratios:
                recorded = any(f"{method} {policy} {budget} {ratio}" in cells for budget in BUDGETS)
                if (not self.policies or policy in self.policies) and not (
                    self.missing and recorded
                ):
                    yield recipe_of(base, method, policy=policy, ratio=ratio)


def quality(models: list[str], selection: Selection) -> None:
    """Measure and record the selected cells, and write all tables of the record."""
    record = read_record()
    for subject in subjects(models):
        entry = record.setdefault(subject.title, {"cells": {}})
        model = lrcore.load(subject.recipe.model)
        calibration = lrcore.calibrate(model, subject.recipe)
        entry["protocol"] = protocol(subject, model, calibration)
        dense = evaluation(model, subject)
        entry["dense"] = dense.perplexity
        for method in (row["name"] for row in lrcore.list_methods()):
            if selection.methods and method not in selection.methods:
                continue
            recipes = selection.recipes(subject.recipe, method, tuple(entry["cells"]))
            for name, cell in measure(model, recipes, subject, dense):
                entry["cells"][name] = cell
                write_record(record)
        write_tables(subject.title, entry)
    write_policies(record)


def evaluation(model, subject: Subject) -> Evaluation:
    """Evaluate a model on the text of a subject."""
    return lrcore.evaluate(model, subject.evaluation)


def figure(model, subject: Subject, dense: Evaluation) -> str:
    """Return the perplexity of a compressed model ± standard error. dense: the evaluation
    of the dense model.
    """
    return with_error(figures_of(evaluation(model, subject), dense))


def figures_of(compressed: Evaluation, dense: Evaluation) -> dict[str, float]:
    """Return a perplexity and the standard error of the difference from the dense model, paired by
    window.
    """
    error = compressed.perplexity * compressed.delta_error(dense)
    return {"perplexity": round(compressed.perplexity, 4), "error": round(error, 4)}


def paired_error(compressed: Evaluation, dense: Sequence[float]) -> float:
    """Return the error of `figures_of` from the window losses of the dense model; all windows have
    the same length.
    """
    pairs = zip(compressed.window_nll, dense, strict=True)
    differences = [compressed_loss - dense_loss for compressed_loss, dense_loss in pairs]
    return compressed.perplexity * statistics.stdev(differences) / math.sqrt(len(differences))


def measure(
    model, recipes: Recipes, subject: Subject, dense: Evaluation
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the cell of each recipe. All recipes have the same method, which is
    factorized once.
    """
    factors, options = None, None
    for recipe in recipes:
        name = f"{subject.title} {recipe.method} {recipe.policy} {recipe.ratio:.0%}"
        try:
            if factors is None or options != method_options(recipe):
                factors, options = lrcore.prepare(model, recipe), method_options(recipe)
            factors = lrcore.measure_evidence(model, factors, recipe)
            compressed = lrcore.compress(model, recipe, factors)
            increase = lrcore.allocate(factors, recipe).summed_increase
        except lrcore.InputError as error:
            log(f"{name}: {error}")
            continue
        summary = compressed.account.to_dict()
        cell = {
            **figures_of(evaluation(compressed, subject), dense),
            "predicted": summary["predicted_perplexity"],
            "predicted_rise": None if increase is None else round(increase, 6),
            "parameters": compressed.size.parameters,
            "kv_bytes": compressed.size.kv_bytes,
        }
        log(f"{name} {cell}")
        key = f"{recipe.method} {recipe.policy} {summary['budget']} {recipe.ratio}"
        yield key, stamped("cells", key, cell)


def solve(models: list[str]) -> None:
    """Measure the seconds from moments to a compressed model at 50 %, without calibration and
    probes. The machine must be idle.
    """
    record = read_record()
    for subject in subjects(models):
        entry = record.setdefault(subject.title, {"cells": {}})
        model, seconds = lrcore.load(subject.recipe.model), {}
        calibration = lrcore.calibrate(model, subject.recipe)
        for method in lrcore.list_methods():
            name = method["name"]
            recipe = recipe_of(subject.recipe, name, ratio=RATIOS[-1])
            run = partial(factorize_and_compress, model, calibration, recipe)
            seconds[name] = round(timed(run)[1], 2)
            log(f"solve {subject.title} {name} {seconds[name]}")
        entry["solve_seconds"] = seconds
        write_record(record)
        if entry["cells"]:
            write_tables(subject.title, entry)


def factorize_and_compress(model, calibration, recipe: lrcore.Recipe) -> lrcore.LoadedModel:
    """Return the compressed model."""
    factors = lrcore.factorize(model, calibration, recipe.method)
    return lrcore.compress(model, recipe, factors)


def protocol(subject: Subject, model, calibration) -> str:
    """Return the sizes of the dense model and the calibration and evaluation windows."""
    size, recipe = model.size, subject.recipe
    windows = f"{recipe.samples} windows of {recipe.seq_len}, {recipe.sampling}, seed {recipe.seed}"
    return (
        f"{size.parameters:,} parameters, {size.decoder_linear:,} of them decoder-linear, "
        f"{size.kv_bytes} KV bytes per token. "
        f"Calibrated on {calibration.protocol['tokens']:,} tokens of `{Path(recipe.data).name}` "
        f"({windows}); measured on the first {subject.windows} windows of {subject.length} of "
        f"`{Path(subject.data).name}` (test split if available)."
    )


# ---- tables


def write_tables(title: str, entry: dict[str, Any]) -> None:
    """Write the tables of a model to docs/benchmarks/ and the best pairings to docs/choosing.md."""
    write_section(f"quality {title}", quality_block(title, entry))
    write_section(f"measured {title}", summary_block(title, entry))
    write_choice(title, entry)
    write_margins(title, entry, RATIOS)
    write_section(f"predicted {title}", predicted_table(title, entry))


def quality_block(title: str, entry: dict[str, Any]) -> str:
    """Return the protocol of a model and the rows of all methods and policies."""
    ratios = [f"{ratio:.0%}" for ratio in RATIOS]
    header = ["method", "policy", *ratios, "parameters at 50 %", "KV bytes at 50 %", "solve, s"]
    parts = [f"**{title}**: dense perplexity {entry['dense']:.3f}; {entry['protocol']}"]
    params, kv = rows_of(entry, "params"), rows_of(entry, "kv")
    if params:
        parts.append(table(header, params))
    if kv:
        parts += ["By fraction of the **KV cache** removed:", table(header, kv)]
    return "\n\n".join(parts)


def summary_block(title: str, entry: dict[str, Any]) -> str:
    """Return the rows of uniform ranks and of `fused` with `probed`."""
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in RATIOS)]
    rows = [
        row[: len(header)]
        for row in rows_of(entry, "params")
        if row[1] == "uniform" or (row[0], row[1]) == ("fused", "probed")
    ]
    caption = (
        f"**{title}**, perplexity by fraction of the decoder-linear parameters removed (dense "
        f"{entry['dense']:.3f}):"
    )
    return f"{caption}\n\n{table(header, rows)}"


def rows_of(entry: dict[str, Any], budget: str, ratios: Sequence[float] = RATIOS) -> list[list]:
    """Return a row per measured method and policy, in the order of lrcore.list_methods() and
    lrcore.list_policies().
    """
    rows = []
    for method in lrcore.list_methods():
        for policy in lrcore.list_policies():
            cells = [
                entry["cells"].get(f"{method['name']} {policy['name']} {budget} {ratio}")
                for ratio in ratios
            ]
            if any(cells):
                last = next(cell for cell in reversed(cells) if cell)
                figures = [with_error(cell) if cell else "–" for cell in cells]
                sizes = [
                    f"{last['parameters']:,}",
                    last["kv_bytes"],
                    entry.get("solve_seconds", {}).get(method["name"], "–"),
                ]
                rows.append([method["name"], policy["name"], *figures, *sizes])
    return rows


def predicted_table(title: str, entry: dict[str, Any]) -> str:
    """Return predicted and actual perplexities under `probed`, their rank correlation over methods
    and ratios, and the error of the predicted loss increases.
    """
    rows, pairs, dense = [], [], entry["dense"]
    for method in lrcore.list_methods():
        cells = [entry["cells"].get(f"{method['name']} probed params {ratio}") for ratio in RATIOS]
        if all(cell and cell.get("predicted_rise") is not None for cell in cells):
            predictions = [dense * math.exp(cell["predicted_rise"]) for cell in cells]
            figures = [
                f"{predicted:.3f} / {with_error(cell)}"
                for predicted, cell in zip(predictions, cells, strict=True)
            ]
            rows.append([method["name"], *figures])
            pairs += zip(predictions, (cell["perplexity"] for cell in cells), strict=True)
    caption = (
        f"**{title}**, predicted / actual; Spearman rank correlation over the {len(pairs)} pairs: "
        f"{spearman(pairs):.3f}; median error of the predicted loss increase: "
        f"{median_error(pairs, dense):.0%}. The prediction is the dense loss of the test text plus "
        "the sum of the predicted increases, which are measured on windows of the calibration text."
    )
    return f"{caption}\n\n{table(['method', *(f'{ratio:.0%}' for ratio in RATIOS)], rows)}"


def median_error(pairs: list[tuple[float, float]], dense: float) -> float:
    """Return the median of abs(predicted - actual) / actual loss increase over pairs of predicted
    and actual perplexities. Pairs without an actual increase are excluded; NaN if none remain.
    """
    increases = [
        (math.log(predicted / dense), math.log(actual / dense)) for predicted, actual in pairs
    ]
    errors = [abs(predicted - actual) / actual for predicted, actual in increases if actual > 0]
    return statistics.median(errors) if errors else math.nan


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Return the Pearson correlation of the ranks; ties have their mean rank."""
    import pandas as pd

    frame = pd.DataFrame(pairs, columns=["predicted", "actual"]).rank()
    return float(frame["predicted"].corr(frame["actual"]))
