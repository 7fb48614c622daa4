"""Perplexity of models cut from a nested checkpoint, and of models compressed directly to the same
ratios.

Each cell is recorded as soon as it is measured, so an interrupted run continues.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lrcore

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import Subject, recipe_of, subjects

METHOD, POLICY, REFITS = "svd_llm", "probed", ("off", "on")
RATIOS = (0.2, 0.3, 0.4, 0.5)  # the first is that of the checkpoint
KINDS = ("direct", "cut")
Cell = Mapping[str, Any]


def nested(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each refit."""
    for subject in subjects(models):
        title = subject.title
        for refit in REFITS:
            if any(_name(refit, r, kind) not in _cells(title) for r in RATIOS for kind in KINDS):
                _measure(subject, refit)
        if _cells(title):
            write_section(f"nested {title}", section(title, read_record()[title]))


def _measure(subject: Subject, refit: str) -> None:
    """Measure the cells of a setting that the record lacks."""
    model = lrcore.load(subject.recipe.model)
    dense = evaluation(model, subject)
    recipe = recipe_of(subject.recipe, METHOD, policy=POLICY, refit=refit, ratio=RATIOS[0])

    def add(ratio: float, kind: str, made: lrcore.LoadedModel) -> None:
        cell = figures_of(evaluation(made, subject), dense)
        cell["parameters"] = made.size.parameters
        log(f"nested {subject.title} {_name(refit, ratio, kind)} {cell}")
        add_cell(subject.title, "nested", _name(refit, ratio, kind), cell)

    with tempfile.TemporaryDirectory() as parent:
        checkpoint = lrcore.compress_nested(model, recipe, RATIOS[1:])
        folder = lrcore.save(checkpoint, Path(parent) / "checkpoint")
        for ratio in RATIOS:
            add(ratio, "cut", lrcore.load(folder, ratio=ratio))
    for ratio in RATIOS:
        if _name(refit, ratio, "direct") not in _cells(subject.title):
            add(ratio, "direct", lrcore.compress(model, recipe.with_(ratio=ratio)))


def _cells(title: str) -> Mapping[str, Cell]:
    return read_record().get(title, {}).get("nested", {})


def _name(refit: str, ratio: float, kind: str) -> str:
    return f"{METHOD} {POLICY} refit={refit} {ratio} {kind}"


def section(title: str, entry: Mapping[str, Any]) -> str:
    """Return a row per refit and kind, with the perplexity at each ratio."""
    rows = [
        [refit, kind, *(with_error(entry["nested"].get(_name(refit, r, kind))) for r in RATIOS)]
        for refit in REFITS
        for kind in KINDS
    ]
    header = ["refit", "made", *(f"{ratio:.0%}" for ratio in RATIOS)]
    return f"**{title}**, dense perplexity {entry['dense']:.3f}:\n\n{table(header, rows)}"
