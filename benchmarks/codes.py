"""Perplexity of `fused` with pairs, and with sparse codes for gate and up.

Each cell is recorded as soon as it is measured, so an interrupted run continues.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import lrcore

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import RATIOS, Subject, real_subject, recipe_of, reference_text, subjects

FORMS = ("pairs", "codes")
REAL_RATIOS = (0.2, 0.4)
Cell = Mapping[str, Any]


def codes(models: list[str]) -> None:
    """Measure the missing perplexities of both forms, and write a table per model."""
    for subject, ratios in _all_subjects(models):
        model = lrcore.load(subject.recipe.model)
        dense = evaluation(model, subject)
        for ratio in ratios:
            for forms in FORMS:
                if _name(forms, ratio) in read_record().get(subject.title, {}).get("codes", {}):
                    continue
                recipe = recipe_of(
                    subject.recipe,
                    "fused",
                    policy="probed",
                    ratio=ratio,
                    options={"forms": forms},
                )
                small = lrcore.compress(model, recipe)
                cell = figures_of(evaluation(small, subject), dense)
                add_cell(subject.title, "codes", _name(forms, ratio), cell)
                log(f"codes {subject.title} {_name(forms, ratio)}")
        entry = read_record()[subject.title]["codes"]
        caption = f"**{subject.title}**, dense perplexity {dense.perplexity:.3f}:"
        write_section(f"codes {subject.title}", f"{caption}\n\n{section(entry, ratios)}")


def _all_subjects(models: list[str]) -> Iterator[tuple[Subject, tuple[float, ...]]]:
    """Yield the models of the perplexity tables, and SmolLM2-135M unless models are named."""
    for subject in subjects(models):
        yield subject, RATIOS
    text = reference_text(models)
    if text is not None:
        yield real_subject(text), REAL_RATIOS


def _name(forms: str, ratio: float) -> str:
    return f"fused probed {forms} {ratio}"


def section(cells: Mapping[str, Cell], ratios: tuple[float, ...]) -> str:
    """Return a row per form, with the perplexity at each ratio."""
    header = ["forms", *(f"{ratio:.0%}" for ratio in ratios)]
    rows = [[f"`{f}`", *(with_error(cells.get(_name(f, r))) for r in ratios)] for f in FORMS]
    return table(header, rows)
