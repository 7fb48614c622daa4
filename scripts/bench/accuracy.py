"""SmolLM2-135M-Instruct as the papers show a model: perplexity on two texts, accuracy on five
tasks, parameters, KV cache and seconds.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lrcore
from lrcore.evaluation.settings import TaskSettings
from lrcore.evaluation.tasks import answer

from .page import DOCUMENT, ROOT, empty_cache, note, recipe_of, table, timed, write_section
from .quality import keep, paired_error, read_record
from .real import MODEL, reference_text

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
ITEMS = 200  # of every task
# Each method with the policy of its paper, uniform ranks where that has none; and ours
ROWS = (
    ("fused", "probed"),
    ("a3", "uniform"),
    ("modegpt", "softmax"),
    ("latentllm", "uniform"),
    ("svd_llm", "uniform"),
    ("fused", "uniform"),
    ("flap", "global_ranking"),
    ("llm_surgeon", "uniform"),
)
CACHED = ("care", "uniform", 0.5)  # the share of the KV cache
DENSE = "dense"
Cell = dict[str, Any]


def accuracy(only: list[str]) -> None:
    """Measure what the record lacks, figure by figure, and write the tables after every model; then
    the seconds, with nothing cached, which are those of a machine that does nothing else.
    """
    if (text := reference_text(only)) is None:
        return
    model = lrcore.load(MODEL)
    dense = measured(DENSE, model, text, None)
    for recipe in recipes(text):
        if lacking(known().get(key(recipe), {})):
            measured(key(recipe), lrcore.compress(model, recipe), text, dense)
        write_tables(known())
    take_times(model, recipes(text))
    write_tables(known())


def recipes(text: Path) -> Iterator[lrcore.Recipe]:
    base = lrcore.Recipe(
        model=MODEL, data=str(text / "wikitext2.train.txt"), samples=SAMPLES, seq_len=LENGTH
    )
    first = [(*pair, RATIOS[0]) for pair in ROWS]
    rest = [(*pair, ratio) for ratio in RATIOS[1:] for pair in ROWS]
    for method, policy, ratio in (*first, CACHED, *rest):
        yield recipe_of(base, method, policy=policy, ratio=ratio)


def key(recipe: lrcore.Recipe) -> str:
    return named((recipe.method, recipe.policy, recipe.ratio))


def named(row: tuple[str, str, float]) -> str:
    """The key of a method, a policy and a ratio in the record."""
    return " ".join(map(str, row))


# ---- what is measured


def measured(name: str, model: lrcore.LoadedModel, text: Path, dense: Cell | None) -> Cell:
    """The figures of a model, each kept as soon as it is there. dense: those of the dense model,
    which standard errors are paired with; None for itself.
    """
    put(name, "parameters", model.size.parameters)
    put(name, "kv_bytes", model.size.kv_bytes)
    for figure in lacking(known()[name]):
        if figure in TEXTS:
            put(name, figure, perplexity(model, text, figure, dense))
        else:
            task = TaskSettings(str(text.parent / "tasks" / TASKS[figure]), ITEMS)
            result = answer(model, task)
            put(name, figure, {"accuracy": result["accuracy"], "error": result["accuracy_error"]})
    return known()[name]


def lacking(cell: Cell) -> list[str]:
    """The texts and tasks that a cell has no figures of."""
    return [figure for figure in (*TEXTS, *TASKS) if figure not in cell]


def perplexity(
    model: lrcore.LoadedModel, text: Path, figure: str, dense: Cell | None
) -> dict[str, Any]:
    """Of one text, with the loss of every window of the dense model, or the standard error of the
    difference to it, paired by window.
    """
    file, windows, protocol = TEXTS[figure]
    found = lrcore.evaluate(model, str(text / file), samples=windows, protocol=protocol)
    if dense is None:
        return {"perplexity": found.perplexity, "window_nll": list(found.window_nll)}
    error = paired_error(found, dense[figure]["window_nll"])
    return {"perplexity": found.perplexity, "error": error}


def take_times(model: lrcore.LoadedModel, every: Iterator[lrcore.Recipe]) -> None:
    """Seconds from the second moments to each model that has none, probes and all, with an empty
    cache; and of calibrating. What serves every ratio of a pairing is done once, and counts for
    each.
    """
    left: dict[tuple[str, str], list[lrcore.Recipe]] = {}  # by pairing
    for recipe in every:
        if "seconds" not in known()[key(recipe)]:
            left.setdefault((recipe.method, recipe.policy), []).append(recipe)
    if not left:
        return
    with empty_cache():  # which holds the moments until the last model is made
        first = next(iter(left.values()))[0]
        calibration, took = timed(partial(lrcore.calibrate, model, first))
        put(DENSE, "seconds", round(took, 1))  # what calibration takes
        for same in left.values():
            with empty_cache():
                factors, shared = timed(partial(measured_factors, model, calibration, same[0]))
                for recipe in same:
                    _, own = timed(partial(lrcore.compress, model, recipe, factors))
                    note(f"accuracy: {key(recipe)} in {shared:.1f} + {own:.1f} s")
                    put(key(recipe), "seconds", round(shared + own, 1))


def measured_factors(model, calibration, recipe: lrcore.Recipe) -> lrcore.Factorisation:
    """The factors of the recipe's method, with what its policy measures for every ratio."""
    factors = lrcore.factorise(model, calibration, recipe.method)
    return lrcore.measure_evidence(model, factors, recipe)


def known() -> dict[str, Cell]:
    return read_record().get(MODEL, {}).get("accuracy", {})


def put(name: str, figure: str, value: Any) -> None:
    """Keep a figure; the record is read again, for another process may have added to it."""
    record = read_record()
    cells = record.setdefault(MODEL, {"cells": {}}).setdefault("accuracy", {})
    cells.setdefault(name, {})[figure] = value
    keep(record)
    note(f"accuracy: {name}, {figure}")


# ---- tables


def write_tables(cells: dict[str, Cell]) -> None:
    """Perplexity, mean accuracy, sizes and seconds into docs/benchmarks.md, with the accuracies on
    each task, and those at the first ratio and of CARE into README.
    """
    order = [DENSE, *map(named, in_order())]
    whole = {name: cells[name] for name in order if name in cells and not lacking(cells[name])}
    if not whole:
        return
    later = {named(row) for row in in_order() if row[2] in RATIOS[1:]}
    short = [name for name in whole if name not in later]
    readme = f"{summary_table(whole, short)}\n\n{short_words()}"
    write_section("accuracy", readme, ROOT / "README.md")
    summary = f"{summary_table(whole, whole)}\n\n{words(whole)}"
    header = ["method", "policy", "removed", *TASKS, "mean"]
    lines = [
        [*heading(name), *(percent([cell[one]]) for one in TASKS), mean(cell)]
        for name, cell in whole.items()
    ]
    write_section("accuracy", f"{summary}\n\n{table(header, lines)}", DOCUMENT)


def in_order() -> list[tuple[str, str, float]]:
    return [(*pair, ratio) for ratio in RATIOS for pair in ROWS] + [CACHED]


def summary_table(cells: dict[str, Cell], names: Iterable[str]) -> str:
    header = ["method", "policy", "removed", *TEXTS, "mean accuracy, %"]
    header += ["parameters", "KV bytes per token", "seconds"]
    return table(header, [summary_line(name, cells[name]) for name in names])


def short_words() -> str:
    """What the table of README shows, and where the rest is said."""
    return (
        "SmolLM2-135M-Instruct (instruct-tuned, dequantised from 4 bits): perplexity on two texts "
        f"(± the paired standard error of the difference to the dense model) and {len(TASKS)} "
        f"zero-shot tasks of {ITEMS} items, calibrated on {SAMPLES} windows of WikiText-2's "
        "training text. [Protocols, each task and other ratios]"
        "(docs/benchmarks.md#accuracy-on-tasks)."
    )


def words(cells: dict[str, Cell]) -> str:
    """The protocol of the table."""
    texts = " and ".join(
        f"the first {windows} windows of 2048 tokens of {name} (`{protocol}`)"
        for name, (_, windows, protocol) in TEXTS.items()
    )
    calibrated = cells[DENSE].get("seconds")
    more = "" if calibrated is None else f", to which calibration adds {calibrated:.0f}"
    return (
        f"SmolLM2-135M-Instruct (instruct-tuned, dequantised from 4 bits), calibrated on {SAMPLES} "
        f"windows of {LENGTH} tokens of WikiText-2's training text. Perplexity of {texts}, ± the "
        "standard error of the difference to the dense model, paired by window. Accuracy on "
        f"{', '.join(TASKS)}, the first {ITEMS} items of each, without examples, ± its standard "
        "error. Removed: share of the decoder-linear parameters, with CARE of the KV cache. "
        "Seconds: from the second moments to the compressed model, probes and all, on two CPU "
        f"cores with nothing cached{more} (–: not timed). `python scripts/benchmarks.py accuracy` "
        "makes the table."
    )


def heading(name: str) -> list[str]:
    if name == DENSE:
        return [DENSE, "–", "–"]
    method, policy, ratio = name.split()
    return [method, policy, f"{float(ratio):.0%}{' of KV' if method == CACHED[0] else ''}"]


def summary_line(name: str, cell: Cell) -> list[str]:
    took = "–" if name == DENSE or "seconds" not in cell else f"{cell['seconds']:.1f}"
    texts = [figure(cell[one]) for one in TEXTS]
    return [*heading(name), *texts, mean(cell), f"{cell['parameters']:,}", cell["kv_bytes"], took]


def figure(text: dict[str, Any]) -> str:
    error = f" ± {text['error']:.2f}" if "error" in text else ""
    return f"{text['perplexity']:.2f}{error}"


def mean(cell: Cell) -> str:
    return percent([cell[one] for one in TASKS])


def percent(tasks: Sequence[dict[str, float]]) -> str:
    """Mean accuracy of tasks that have as many items each, with its standard error."""
    error = math.hypot(*(task["error"] for task in tasks)) / len(tasks)
    return f"{statistics.mean(task['accuracy'] for task in tasks):.1%} ± {error:.1%}".replace(
        "%", ""
    )
