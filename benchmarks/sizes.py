"""Perplexity against the size of the model in MB: quantized, low rank, both in sequence, and by the
budget of bytes.

Each cell is recorded as soon as it is measured, so an interrupted run continues.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import lrcore
from lrcore.compression.solve.factorize import Factorization

from .perplexity import evaluation, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import Subject, real_subject, recipe_of, reference_text, subjects

BITS = (8, 4, 3, 2)
RATIOS = (0.1, 0.2, 0.3, 0.5)  # of the parameters, for low rank
SERIES = {
    "gptq": "GPTQ",
    "hqq": "HQQ",
    "low rank": "low rank",
    "both": "low rank, then GPTQ",
    "joint": "budget `bytes`",
}
Cell = dict[str, Any]
Entry = Mapping[str, Any]


def sizes(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each cell."""
    for subject in subjects(models):
        _Measurement(subject).run()
    if (text := reference_text(models)) is not None:
        _Measurement(real_subject(text)).run()


class _Measurement:
    """The measurement of a subject. Model, factors and evaluation are made once."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.title = subject, subject.title
        self.model = lrcore.load(subject.recipe.model)
        self.dense = evaluation(self.model, subject)
        self._factors: Factorization | None = None

    def run(self) -> None:
        for bits in BITS:
            for quantizer in ("gptq", "hqq"):
                self._add(
                    f"{quantizer} {bits}", lambda b=bits, q=quantizer: self._round(self.model, b, q)
                )
        for ratio in RATIOS:
            names = {f"both {ratio} {bits}": bits for bits in BITS[:-1]}
            cells = self._cells()
            if cells.keys() >= {f"low rank {ratio}", *names}:
                continue
            small = self._compressed(ratio, "all_params")
            self._add(f"low rank {ratio}", lambda made=small: made)
            for name, bits in names.items():
                self._add(name, lambda made=small, b=bits: self._round(made, b, "gptq"))
        for megabytes in _targets(self._cells()):
            ratio = 1 - megabytes * 1e6 / self.model.size.stored
            self._add(f"joint {megabytes}", lambda r=ratio: self._compressed(r, "bytes"))

    def _cells(self) -> Mapping[str, Cell]:
        return read_record().get(self.title, {}).get("sizes", {})

    def _add(self, name: str, make: Callable[[], lrcore.LoadedModel]) -> None:
        """Measure and record a cell that the record lacks, and write the table."""
        if name in self._cells():
            return
        made = make()
        cell = figures_of(evaluation(made, self.subject), self.dense)
        cell["megabytes"] = round(made.size.stored / 1e6, 4)
        log(f"bytes {self.title} {name} {cell}")
        entry = add_cell(self.title, "sizes", name, cell)
        write_section(f"bytes {self.title}", section(self.title, entry, self.model))

    def _round(self, model: lrcore.LoadedModel, bits: int, quantizer: str) -> lrcore.LoadedModel:
        return lrcore.quantize(model, bits, quantizer=quantizer, recipe=self.subject.recipe)

    def _compressed(self, ratio: float, budget: str) -> lrcore.LoadedModel:
        """Return the model compressed by `fused` with `probed`."""
        recipe = recipe_of(self.subject.recipe, "fused", policy="probed", ratio=ratio)
        recipe = recipe.with_(budget=budget)
        if self._factors is None:
            self._factors = lrcore.prepare(self.model, recipe)
        self._factors = lrcore.measure_evidence(self.model, self._factors, recipe)
        return lrcore.compress(self.model, recipe, self._factors)


def _targets(cells: Mapping[str, Cell]) -> list[float]:
    """Return the sizes of the joint plans in MB, descending.

    They are those of GPTQ and low rank, and halfway between the sizes of GPTQ.
    """
    rounded = [cells[f"gptq {bits}"]["megabytes"] for bits in BITS]
    between = [round((high + low) / 2, 4) for high, low in pairwise(rounded)]
    low_rank = [cells[f"low rank {ratio}"]["megabytes"] for ratio in RATIOS]
    return sorted({*rounded, *between, *low_rank}, reverse=True)


def section(title: str, entry: Entry, model: lrcore.LoadedModel) -> str:
    """Return a row per budget: the lowest perplexity of each series in at most this size."""
    cells = entry["sizes"]
    rows = [row for size in _sizes(cells) if (row := _row(cells, size))]
    caption = f"**{title}**, dense perplexity {entry['dense']:.3f}, {model.size.megabytes:.2f} MB:"
    return f"{caption}\n\n{table(['MB', *SERIES.values()], rows)}"


def _sizes(cells: Mapping[str, Cell]) -> list[float]:
    """Return the budgets of the joint plans in MB, descending."""
    return sorted((float(name.split()[1]) for name, _ in _of(cells, "joint")), reverse=True)


def _row(cells: Mapping[str, Cell], size: float) -> list[str]:
    best = {name: _lowest(cells, name, size) for name in SERIES}
    figures = [with_error(cell) for cell in best.values()]
    return [f"{size:.3f}", *figures]


def _lowest(cells: Mapping[str, Cell], series: str, size: float) -> Cell | None:
    """Return the cell of a series with the lowest perplexity in at most this size, or None."""
    fitting = [cell for _, cell in _of(cells, series) if cell["megabytes"] <= size]
    return min(fitting, key=lambda cell: cell["perplexity"], default=None)


def _of(cells: Mapping[str, Cell], series: str) -> Iterator[tuple[str, Cell]]:
    """Yield name and cell of a series."""
    return ((name, cell) for name, cell in cells.items() if name.startswith(f"{series} "))
