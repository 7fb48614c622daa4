"""SmolLM2-135M-Instruct as in the papers: perplexity on two texts, accuracy on five tasks,
parameters, KV cache and seconds.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lrcore
from lrcore.compression.solve.factorize import Factorization
from lrcore.evaluation.evaluation_settings import TaskSettings
from lrcore.evaluation.tasks import measure_task

from .perplexity import paired_error
from .record import read_record, stamped, write_record
from .report import ROOT, log, table, write_section
from .subjects import REAL_MODEL, recipe_of, reference_text
from .timing import empty_cache, timed

MODEL = REAL_MODEL

RATIOS = (0.2, 0.4)
SAMPLES, LENGTH = 128, 512  # of calibration
TEXTS = {  # name in the table: file, windows of 2048 tokens, protocol
    "WikiText-2": ("wikitext2.test.txt", 40, "gptq-2048"),
    "C4": ("c4.sample.jsonl", 10, "gptq-2048-c4"),
}
TASKS = {
    "ARC-E": "ARC-Easy.test.jsonl",
    "ARC-C": "ARC-Challenge.test.jsonl",
    "PIQA": "piqa.test.jsonl",
    "WinoGrande": "winogrande.test.jsonl",
    "OBQA": "openbookqa.test.jsonl",
}
ITEMS = 200  # per task


class Row(NamedTuple):
    """A compressed model of the table. is_distilled: by the default refit of `fused`."""

    method: str
    policy: str
    ratio: float
    is_distilled: bool = False

    @property
    def key(self) -> str:
        """The name of the row in the record."""
        name = f"{self.method} {self.policy} {self.ratio}"
        return f"{name} auto" if self.is_distilled else name

    def recipe(self, base: lrcore.Recipe) -> lrcore.Recipe:
        """Return the recipe of the row."""
        recipe = recipe_of(base, self.method, policy=self.policy, ratio=self.ratio)
        return recipe.with_(refit="auto") if self.is_distilled else recipe


# The methods with the policies of their papers or uniform ranks, and `fused`
PAIRINGS = (
    ("fused", "probed"),
    ("a3", "uniform"),
    ("modegpt", "softmax"),
    ("latentllm", "uniform"),
    ("svd_llm", "uniform"),
    ("fused", "uniform"),
    ("flap", "global_ranking"),
    ("llm_surgeon", "uniform"),
)
DISTILLED = PAIRINGS[0]  # by default
CACHED = Row("care", "uniform", 0.5)  # fraction of the KV cache
DENSE = "dense"
Cell = dict[str, Any]


def accuracy(models: list[str]) -> None:
    """Measure the missing figures and write the tables after each model; then measure the seconds
    with an empty cache on an idle machine.
    """
    if (text := reference_text(models)) is None:
        return
    model = lrcore.load(MODEL)
    dense = measure(DENSE, model, text, None)
    base = lrcore.Recipe(
        model=MODEL, data=str(text / "wikitext2.train.txt"), samples=SAMPLES, seq_len=LENGTH
    )
    for row in table_rows():
        if missing_figures(recorded().get(row.key, {})):
            measure(row.key, lrcore.compress(model, row.recipe(base)), text, dense)
        write_tables(recorded())
    measure_seconds(model, base)
    write_tables(recorded())


def table_rows() -> list[Row]:
    """Return the rows of the table, starting with the first ratio."""
    rows = [
        row
        for ratio in RATIOS
        for row in (
            Row(*DISTILLED, ratio, is_distilled=True),
            *(Row(*pairing, ratio) for pairing in PAIRINGS),
        )
    ]
    return [*rows, CACHED]


# ---- measuring


def measure(name: str, model: lrcore.LoadedModel, text: Path, dense: Cell | None) -> Cell:
    """Record each missing figure of a model as soon as it is measured, and return the cell.

    dense: the cell of the dense model, for paired standard errors; None for the dense model.
    """
    store(name, "parameters", model.size.parameters)
    store(name, "kv_bytes", model.size.kv_bytes)
    for figure in missing_figures(recorded()[name]):
        if figure in TEXTS:
            store(name, figure, perplexity(model, text, figure, dense))
        else:
            task = TaskSettings(str(text.parent / "tasks" / TASKS[figure]), ITEMS)
            result = measure_task(model, task)
            store(name, figure, {"accuracy": result["accuracy"], "error": result["accuracy_error"]})
    return recorded()[name]


def missing_figures(cell: Cell) -> list[str]:
    """Return the texts and tasks without a figure."""
    return [figure for figure in (*TEXTS, *TASKS) if figure not in cell]


def perplexity(
    model: lrcore.LoadedModel, text: Path, figure: str, dense: Cell | None
) -> dict[str, Any]:
    """Return the perplexity on a text, with the window losses for the dense model and otherwise the
    standard error of the difference from the dense model, paired by window.
    """
    file, windows, protocol = TEXTS[figure]
    result = lrcore.evaluate(model, str(text / file), samples=windows, protocol=protocol)
    if dense is None:
        return {"perplexity": result.perplexity, "window_nll": list(result.window_nll)}
    error = paired_error(result, dense[figure]["window_nll"])
    return {"perplexity": result.perplexity, "error": error}


def measure_seconds(model: lrcore.LoadedModel, base: lrcore.Recipe) -> None:
    """Record the seconds of calibration, and from the second moments to each model, including
    probes, with an empty cache. Shared work of all rows of a pairing is done once and counts for
    each row.
    """
    pending: dict[tuple[str, str], list[Row]] = {}  # by pairing
    for row in table_rows():
        if "seconds" not in recorded()[row.key]:
            pending.setdefault((row.method, row.policy), []).append(row)
    if not pending:
        return
    with empty_cache():  # holds the moments until the last model is finished
        first = next(iter(pending.values()))[0].recipe(base)
        calibration, seconds = timed(partial(lrcore.calibrate, model, first))
        store(DENSE, "seconds", round(seconds, 1))  # calibration
        for rows in pending.values():
            with empty_cache():
                recipe = rows[0].recipe(base)
                factors, shared = timed(partial(measured_factors, model, calibration, recipe))
                for row in rows:
                    recipe = row.recipe(base)
                    _, separate = timed(partial(lrcore.compress, model, recipe, factors))
                    log(f"accuracy: {row.key} in {shared:.1f} + {separate:.1f} s")
                    store(row.key, "seconds", round(shared + separate, 1))


def measured_factors(model, calibration, recipe: lrcore.Recipe) -> Factorization:
    """Return the factors of the method with the measurements of the policy for all ratios."""
    factors = lrcore.factorize(model, calibration, recipe.method)
    return lrcore.measure_evidence(model, factors, recipe)


def recorded() -> dict[str, Cell]:
    """Return the recorded cells by name."""
    return read_record().get(MODEL, {}).get("accuracy", {})


def store(name: str, figure: str, value: Any) -> None:
    """Record a figure. Reads the record first, because another process can have changed it."""
    record = read_record()
    cells = record.setdefault(MODEL, {"cells": {}}).setdefault("accuracy", {})
    cells[name] = stamped("accuracy", name, {**cells.get(name, {}), figure: value})
    write_record(record)
    log(f"accuracy: {name}, {figure}")


# ---- tables


def write_tables(cells: dict[str, Cell]) -> None:
    """Write perplexity, mean accuracy, sizes and seconds to docs/benchmarks/tasks.md, with the
    accuracies on each task; write the first ratio and CARE to README.md.
    """
    order = [DENSE, *(row.key for row in table_rows())]
    complete = {
        name: cells[name] for name in order if name in cells and not missing_figures(cells[name])
    }
    if not complete:
        return
    later = {row.key for row in table_rows() if row.ratio in RATIOS[1:]}
    short = [name for name in complete if name not in later]
    readme = f"{summary_table(complete, short)}\n\n{short_caption()}"
    write_section("accuracy", readme, ROOT / "README.md")
    summary = f"{summary_table(complete, complete)}\n\n{caption(complete)}"
    header = ["method", "policy", "removed", *TASKS, "mean"]
    lines = [
        [*heading(name), *(percent([cell[task]]) for task in TASKS), mean(cell)]
        for name, cell in complete.items()
    ]
    write_section("accuracy", f"{summary}\n\n{table(header, lines)}")


def summary_table(cells: dict[str, Cell], names: Iterable[str]) -> str:
    """Return the table of perplexities, mean accuracy, sizes and seconds."""
    header = ["method", "policy", "removed", *TEXTS, "mean accuracy, %"]
    header += ["parameters", "KV bytes per token", "seconds"]
    return table(header, [summary_line(name, cells[name]) for name in names])


def short_caption() -> str:
    """Return the caption of the table in README.md."""
    return (
        f"SmolLM2-135M-Instruct, dequantized from 4 bits, calibrated on {SAMPLES} windows of "
        "WikiText-2's training text. Perplexities ± paired standard error of the difference from "
        f"dense; mean accuracy on {len(TASKS)} zero-shot tasks of {ITEMS} items. `refit: on`: no "
        "distillation. [All results](docs/benchmarks/tasks.md)."
    )


def caption(cells: dict[str, Cell]) -> str:
    """Return the protocol of the table."""
    texts = " and ".join(
        f"the first {windows} windows of 2048 tokens of {name} (`{protocol}`)"
        for name, (_, windows, protocol) in TEXTS.items()
    )
    seconds = cells[DENSE].get("seconds")
    calibration = "" if seconds is None else f"; calibration adds {seconds:.0f}"
    return (
        "SmolLM2-135M-Instruct (instruction-tuned, dequantized from 4 bits), calibrated on "
        f"{SAMPLES} windows of {LENGTH} tokens of WikiText-2's training text. Perplexity of "
        f"{texts}, ± the standard error of the difference from the dense model, paired by window. "
        f"Accuracy on {', '.join(TASKS)}, the first {ITEMS} items of each, without examples, ± its "
        "standard error. `refit: on`: without the default distillation. Removed: fraction of the "
        "decoder-linear parameters, for CARE of the KV cache. Seconds: from the second moments to "
        "the compressed model, including probes, on two CPU cores with an empty cache"
        f"{calibration} (–: not timed)."
    )


def heading(name: str) -> list[str]:
    """Return the first cells of a row: method, policy and fraction removed."""
    if name == DENSE:
        return [DENSE, "–", "–"]
    row = next(row for row in table_rows() if row.key == name)
    is_on = row[:2] == DISTILLED and not row.is_distilled
    method = f"{row.method}, `refit: on`" if is_on else row.method
    return [method, row.policy, f"{row.ratio:.0%}{' of KV' if row == CACHED else ''}"]


def summary_line(name: str, cell: Cell) -> list[str]:
    """Return a row of the summary table."""
    seconds = "–" if name == DENSE or "seconds" not in cell else f"{cell['seconds']:.1f}"
    texts = [figure(cell[text]) for text in TEXTS]
    return [
        *heading(name),
        *texts,
        mean(cell),
        f"{cell['parameters']:,}",
        cell["kv_bytes"],
        seconds,
    ]


def figure(text: dict[str, Any]) -> str:
    """Return a perplexity ± standard error."""
    error = f" ± {text['error']:.2f}" if "error" in text else ""
    return f"{text['perplexity']:.2f}{error}"


def mean(cell: Cell) -> str:
    """Return the mean accuracy over all tasks."""
    return percent([cell[task] for task in TASKS])


def percent(tasks: Sequence[dict[str, float]]) -> str:
    """Return the mean accuracy of tasks with equal numbers of items ± standard error."""
    error = math.hypot(*(task["error"] for task in tasks)) / len(tasks)
    return f"{statistics.mean(task['accuracy'] for task in tasks):.1%} ± {error:.1%}".replace(
        "%", ""
    )
