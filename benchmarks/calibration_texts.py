"""Perplexity by the calibration text and by the seed that draws its windows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lrcore

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import REAL_MODEL, Subject, real_subject, reference_text, subjects

PART = "calibration_texts"
RATIOS = (0.2, 0.4)
SEEDS = (0, 1)
# By model: name in the table -> file of the reference text. The first is of the kind of the text
# that the perplexity is measured on.
TEXTS = {
    "stories260K": {
        "TinyStories": "tinystories.calibration.txt",
        "WikiText-2": "wikitext2.train.txt",
    },
    REAL_MODEL: {
        "WikiText-2": "wikitext2.train.txt",
        "C4": "c4.sample.jsonl",
        "Alpaca": "alpaca.sample.json",
    },
}


@dataclass(frozen=True)
class Row:
    """A method with a calibration text and a seed."""

    title: str  # of the method
    fields: Mapping[str, str]  # of its recipe
    text: str
    seed: int

    def key(self, ratio: float) -> str:
        """Return the name of a cell in the record."""
        return f"{self.title} {self.text} {self.seed} {ratio}"


METHODS = {
    "`fused`, `probed`": {"method": "fused", "policy": "probed"},
    "the same before distillation": {"method": "fused", "policy": "probed", "refit": "on"},
    "`llm_surgeon`": {"method": "llm_surgeon"},
}


def calibration_texts(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each row."""
    for subject, folder in _all_subjects(models):
        model = lrcore.load(subject.recipe.model)
        dense = evaluation(model, subject)
        for row in _rows(subject.title):
            for ratio in RATIOS:
                if row.key(ratio) not in read_record().get(subject.title, {}).get(PART, {}):
                    recipe = _recipe(subject.recipe, row, folder, ratio)
                    cell = figures_of(evaluation(lrcore.compress(model, recipe), subject), dense)
                    log(f"{PART} {subject.title} {row.key(ratio)} {cell}")
                    add_cell(subject.title, PART, row.key(ratio), cell)
            cells = read_record()[subject.title][PART]
            caption = (
                f"**{subject.title}**, calibrated on {subject.recipe.samples} windows of "
                f"{subject.recipe.seq_len} tokens, measured on `{Path(subject.data).name}`; dense "
                f"perplexity {dense.perplexity:.3f}:"
            )
            write_section(
                f"{PART} {subject.title}", f"{caption}\n\n{section(subject.title, cells)}"
            )


def _all_subjects(models: list[str]) -> Iterator[tuple[Subject, Path]]:
    """Yield stories260K, and SmolLM2-135M unless models are named, with the reference text."""
    if (text := reference_text([])) is None:
        return
    if not models or "stories260K" in models:
        for subject in subjects(["stories260K"]):
            yield subject, text
    if not models:
        yield real_subject(text), text


def _rows(title: str) -> Iterator[Row]:
    for name, fields in METHODS.items():
        for text in TEXTS[title]:
            for seed in SEEDS:
                yield Row(name, fields, text, seed)


def _recipe(base: lrcore.Recipe, row: Row, folder: Path, ratio: float) -> lrcore.Recipe:
    data = str(folder / TEXTS[_title(base)][row.text])
    return base.with_(**row.fields, data=data, ratio=ratio, seed=row.seed, sampling="random")


def _title(recipe: lrcore.Recipe) -> str:
    return Path(recipe.model).name


def section(title: str, cells: Mapping[str, Any]) -> str:
    """Return a row per method, calibration text and seed."""
    header = ["method", "calibration text", "seed", *(f"{ratio:.0%}" for ratio in RATIOS)]
    rows = [
        [row.title, row.text, str(row.seed), *(with_error(cells.get(row.key(r))) for r in RATIOS)]
        for row in _rows(title)
        if any(row.key(ratio) in cells for ratio in RATIOS)
    ]
    return table(header, rows)
