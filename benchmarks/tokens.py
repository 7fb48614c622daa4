"""Perplexity by the number of calibration tokens, around as many as the remaining neurons."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import lrcore
from lrcore.models.layers import layer_shapes

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record, write_record
from .report import log, table, with_error, write_section
from .subjects import Subject, subjects

RATIOS = (0.2, 0.5)
MULTIPLES = (0.6, 0.8, 1.0, 1.2, 2.0, 8.0)  # of the remaining neurons
UNDAMPED = {"shrinkage": False}


@dataclass(frozen=True)
class Sampling:
    """Tokens per window, and the number of seeds that choose the windows."""

    length: int
    seeds: int


# A narrow model needs few tokens: short windows, so that all columns differ, and several seeds.
WIDE = 512  # neurons
SAMPLINGS = {True: Sampling(64, 1), False: Sampling(16, 5)}


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
        _record_neurons(subject.title, neurons)
        for row in ROWS:
            for multiple in MULTIPLES:
                cells = read_record().get(subject.title, {}).get("tokens", {})
                if row.key(multiple) not in cells:
                    measured = [
                        figures_of(evaluation(lrcore.compress(model, recipe), subject), dense)
                        for recipe in _recipes(subject, row, multiple, neurons)
                    ]
                    cell = _mean(measured)
                    log(f"tokens {subject.title} {row.key(multiple)} {cell}")
                    add_cell(subject.title, "tokens", row.key(multiple), cell)
            write_section(f"tokens {subject.title}", section(subject.title))


def _recipes(subject: Subject, row: Row, multiple: float, neurons: int) -> Iterator[lrcore.Recipe]:
    """Yield the recipes of a cell, one per seed."""
    sampling = SAMPLINGS[neurons >= WIDE]
    remaining = round((1 - row.ratio) * neurons)
    for seed in range(sampling.seeds):
        yield lrcore.Recipe(
            model=subject.recipe.model,
            data=subject.recipe.data,
            method=row.method,
            options=dict(row.options),
            ratio=row.ratio,
            seq_len=sampling.length,
            samples=max(1, round(multiple * remaining / sampling.length)),
            seed=seed,
        )


def _mean(cells: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the geometric mean of the perplexities of several seeds, with an error that includes
    the spread over the seeds.
    """
    if len(cells) == 1:
        return dict(cells[0])
    losses = [math.log(cell["perplexity"]) for cell in cells]
    perplexity = math.exp(statistics.fmean(losses))
    spread = perplexity * statistics.stdev(losses) / math.sqrt(len(cells))
    error = math.hypot(spread, statistics.fmean(cell["error"] for cell in cells))
    return {"perplexity": round(perplexity, 4), "error": round(error, 4)}


def _record_neurons(title: str, neurons: int) -> None:
    record = read_record()
    record.setdefault(title, {"cells": {}})["neurons"] = neurons
    write_record(record)


def section(title: str) -> str:
    """Return a row per method and ratio, and a column per number of tokens."""
    entry = read_record()[title]
    sampling = SAMPLINGS[entry["neurons"] >= WIDE]
    windows = f"windows of {sampling.length} tokens" + (
        f", mean of {sampling.seeds} seeds" if sampling.seeds > 1 else ""
    )
    header = ["removed", "method", *(f"{multiple:g}" for multiple in MULTIPLES), "falls"]
    rows = list(_rows(entry["tokens"]))
    caption = (
        f"**{title}**, {entry['neurons']} neurons per MLP, dense perplexity {entry['dense']:.3f}; "
        f"{windows}:"
    )
    return f"{caption}\n\n{table(header, rows)}"


def _rows(entry: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in ROWS:
        cells = [entry.get(row.key(multiple)) for multiple in MULTIPLES]
        if any(cells):
            figures = [with_error(cell) for cell in cells]
            falls = "yes" if is_falling([cell for cell in cells if cell]) else "no"
            yield [f"{row.ratio:.0%}", row.title, *figures, falls]


def is_falling(cells: Sequence[Mapping[str, float]]) -> bool:
    """Return True if no perplexity exceeds a previous one by more than two standard errors."""
    return all(
        after["perplexity"] - before["perplexity"]
        <= 2 * math.hypot(before["error"], after["error"])
        for before, after in combinations(cells, 2)
    )
