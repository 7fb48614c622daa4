"""Perplexity of several methods with `refit: on`, `trained` and `distilled`, and of `fused` with
measured ranks and its default refit, `auto`.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import lrcore
from lrcore.recipes.history import Compressed

from .perplexity import evaluation, figures_of
from .rankings import BEST, increase_ratio, lowest_of_different_methods, perplexities
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import Subject, real_subject, recipe_of, reference_text, subjects

RATIOS = (0.2, 0.3, 0.4, 0.5)
PAIRINGS = (
    BEST,
    ("fused", "uniform"),
    ("a3", "uniform"),
    ("modegpt", "uniform"),
    ("latentllm", "uniform"),
    ("svd_llm", "uniform"),
    ("llm_surgeon", "uniform"),
)
REFITS = ("on", "auto", "trained", "distilled")
DISTILLED = PAIRINGS[:2]  # pairings that are distilled as well
Entry = Mapping[str, Any]


def trained(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each cell."""
    for subject in subjects(models):
        _measure(subject)
    if (text := reference_text(models)) is not None:
        _measure(real_subject(text))


def _measure(subject: Subject) -> None:
    missing = list(_missing_recipes(subject))
    if not missing:
        return
    model = lrcore.load(subject.recipe.model)
    dense = evaluation(model, subject)
    for name, recipe in missing:
        compressed = lrcore.compress(model, recipe)
        cell = figures_of(evaluation(compressed, subject), dense)
        cell["seconds"] = compressed.step(Compressed).seconds
        log(f"trained {subject.title} {name} {cell}")
        entry = add_cell(subject.title, "trained", name, cell)
        write_section(f"trained {subject.title}", section(subject.title, entry))


def _missing_recipes(subject: Subject) -> Iterator[tuple[str, lrcore.Recipe]]:
    """Yield the recipes without a cell, `fused` first."""
    entry = read_record().get(subject.title, {})
    for (method, policy), refit, ratio in product(PAIRINGS, REFITS, RATIOS):
        if refit == "distilled" and (method, policy) not in DISTILLED:
            continue
        if refit == "auto" and (method, policy) != BEST:  # the same as on, or as no refit
            continue
        if cell_of(entry, method, policy, ratio, refit) is None:
            recipe = recipe_of(subject.recipe, method, policy=policy, ratio=ratio)
            yield key(method, policy, ratio, refit), recipe.with_(refit=refit)


def key(method: str, policy: str, ratio: float, refit: str) -> str:
    """Return the name of a cell in the record."""
    return f"{method} {policy} {ratio} {refit}"


def cell_of(
    entry: Entry, method: str, policy: str, ratio: float, refit: str
) -> dict[str, Any] | None:
    """Return a cell of this table; for `fused` with `refit: on`, from the perplexity tables."""
    if method == BEST[0] and refit == "on":
        return entry.get("cells", {}).get(f"{method} {policy} params {ratio}")
    return entry.get("trained", {}).get(key(method, policy, ratio, refit))


def section(title: str, entry: Entry) -> str:
    """Return a row per pairing and refit, and a row per ratio and trained refit that compares
    `fused` with the remaining methods.
    """
    ratios = [f"{ratio:.0%}" for ratio in RATIOS]
    caption = f"**{title}**, dense perplexity {entry['dense']:.3f}:"
    figures = table(["method", "policy", "refit", *ratios], list(_rows(entry)))
    header = ["refit", "removed", "`fused` with `probed`", "increase / increase with `refit: on`"]
    header += ["increase / lowest with uniform ranks", "increase / lowest as published"]
    return f"{caption}\n\n{figures}\n\n{table(header, list(_comparison(entry)))}"


def _rows(entry: Entry) -> Iterator[list[str]]:
    for method, policy in PAIRINGS:
        for refit in REFITS:
            cells = [cell_of(entry, method, policy, ratio, refit) for ratio in RATIOS]
            if any(cells):
                figures = [with_error(cell) for cell in cells]
                yield [method, policy, refit, *figures]


def _comparison(entry: Entry) -> Iterator[list[str]]:
    for refit, ratio in product(REFITS[1:], RATIOS):
        before, after = (cell_of(entry, *BEST, ratio, word) for word in (REFITS[0], refit))
        lowest_published = lowest_of_different_methods(perplexities(entry["cells"], ratio))
        if before is None or after is None or lowest_published is None:  # not measured yet
            continue
        references = (before["perplexity"], *lowest_published)
        shares = [
            increase_ratio(after["perplexity"], reference, entry["dense"])
            for reference in references
        ]
        yield [refit, f"{ratio:.0%}", with_error(after), *shares]
