"""Perplexity by the number of calibration tokens, around as many as the remaining neurons."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import lrcore
from lrcore.models.layers import layer_shapes

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import Subject, subjects

RATIOS = (0.2, 0.5)
LENGTH = 64  # tokens per window
MULTIPLES = (0.6, 0.8, 1.0, 1.2, 2.0, 8.0)  # of the remaining neurons
UNDAMPED = {"shrinkage": False}


@dataclass(frozen=True)
class Row:
    """A method with options, at a fraction of removed parameters."""

    method: str
    options: Mapping[str, Any]
    ratio: float

    @property
    def title(self) -> str:
        """The method in the table."""
        return f"{self.method}, shrinkage=off" if self.options else self.method

    def key(self, multiple: float) -> str:
        """Return the name of a cell in the record."""
        return f"{self.title} {self.ratio} {multiple}"


ROWS = [
    Row(method, options, ratio)
    for ratio in RATIOS
    for method, options in (
        ("fused", {}),
        ("fused", UNDAMPED),
        ("modegpt", {}),
        ("modegpt", UNDAMPED),
        ("llm_surgeon", {}),
        ("llm_surgeon", UNDAMPED),
        ("latentllm", {}),
        ("svd_llm", {}),
    )
]


def tokens(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each row."""
    for subject in subjects(models):
        model = lrcore.load(subject.recipe.model)
        neurons = layer_shapes(model.network, 0).matrices()["down"].weight.shape[1]
        dense = evaluation(model, subject)
        for row in ROWS:
            for multiple in MULTIPLES:
                entry = read_record().get(subject.title, {}).get("tokens", {})
                if row.key(multiple) not in entry:
                    compressed = lrcore.compress(model, _recipe(subject, row, multiple, neurons))
                    cell = figures_of(evaluation(compressed, subject), dense)
                    log(f"tokens {subject.title} {row.key(multiple)} {cell}")
                    add_cell(subject.title, "tokens", row.key(multiple), cell)
            write_section(f"tokens {subject.title}", section(subject.title, neurons))


def _recipe(subject: Subject, row: Row, multiple: float, neurons: int) -> lrcore.Recipe:
    remaining = round((1 - row.ratio) * neurons)
    return lrcore.Recipe(
        model=subject.recipe.model,
        data=subject.recipe.data,
        method=row.method,
        options=dict(row.options),
        ratio=row.ratio,
        seq_len=LENGTH,
        samples=max(1, round(multiple * remaining / LENGTH)),
    )


def section(title: str, neurons: int) -> str:
    """Return a row per method and ratio, and a column per number of tokens."""
    entry = read_record()[title]
    header = ["removed", "method", *(f"{multiple:g}" for multiple in MULTIPLES)]
    rows = list(_rows(entry["tokens"]))
    caption = f"**{title}**, {neurons} neurons per MLP, dense perplexity {entry['dense']:.3f}:"
    return f"{caption}\n\n{table(header, rows)}"


def _rows(entry: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in ROWS:
        cells = [entry.get(row.key(multiple)) for multiple in MULTIPLES]
        if any(cells):
            figures = ["–" if cell is None else with_error(cell) for cell in cells]
            yield [f"{row.ratio:.0%}", row.title, *figures]
