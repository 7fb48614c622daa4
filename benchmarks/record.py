"""The record of measured cells, benchmarks/record.json.

An entry per model holds the dense perplexity, the protocol, and parts with cells, such as "cells"
by "method policy budget ratio". The stamp "measured" of a cell states when and by which code.
"samples" states, by part, which cells were repeated later and how much they differed.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machine import ROOT
from .stamps import Stamp, fingerprint, stamp

RECORD = ROOT / "benchmarks" / "record.json"
# First word of the sections whose figures are cells of the record, and the part of the record
RECORDED = {
    **dict.fromkeys(
        ("quality", "measured", "standing", "policies", "choice", "predicted"), "cells"
    ),
    "fresh": "cells",
    "interaction": "predictions",
    "bytes": "sizes",
    "accuracy": "accuracy",
    **{part: part for part in ("tokens", "trained", "chat", "healed", "nested", "codes")},
    "calibration_texts": "calibration_texts",
}
# Modules that measure the cells of a part, if named otherwise
MEASURED_BY = {"cells": "perplexity", "trained": "refit", "healed": "healing"}
BUDGETS = ("params", "all_params", "kv")


@dataclass(frozen=True)
class Sample:
    """Cells that were repeated with later code.

    cells: number of cells from which the sample was drawn. drawn: number of cells of the complete
    sample. differences: of the repeated cells so far, by name, the absolute difference of the two
    perplexities in standard errors of the recorded one.
    """

    seed: int
    cells: int
    drawn: int
    differences: dict[str, float]
    stamp: Stamp

    @classmethod
    def of(cls, entry: dict[str, Any], part: str) -> "Sample | None":
        """Return the sample of a part of an entry; None if there is none."""
        found = entry.get("samples", {}).get(part)
        if found is None:
            return None
        return cls(**{**found, "stamp": Stamp.parse(found["stamp"])})

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as the record stores it."""
        return {**vars(self), "stamp": str(self.stamp)}

    @property
    def largest(self) -> float:
        """The largest difference in standard errors."""
        return max(self.differences.values())

    def is_current(self, part: str, names: Iterable[str]) -> bool:
        """Return whether the sample is of the present code. names: of all cells of the part."""
        return self.stamp.code == fingerprint(measuring_file(part), " ".join(names))

    def confirms(self, name: str) -> bool:
        """Return whether the sample is complete and no repeated cell of the same method differs by
        a standard error. name: of a cell, starting with its method.
        """
        method = name.split()[0]
        return len(self.differences) == self.drawn and all(
            difference < 1
            for repeated, difference in self.differences.items()
            if repeated.split()[0] == method
        )

    def line(self) -> str:
        """Return the sample as a section of a document states it."""
        return (
            f"A random sample of {len(self.differences)} of {self.cells} cells (seed {self.seed}) "
            f"was repeated {self.stamp.date} at commit `{self.stamp.commit}`; the largest "
            f"difference was {self.largest:.2g} standard errors."
        )


@dataclass(frozen=True)
class RecordedCell:
    """Name and stamp of a cell, and the sample of its model.

    is_sampled: whether this sample confirms the cells of its method for the present code.
    """

    name: str
    stamp: Stamp | None
    sample: Sample | None
    is_sampled: bool


def read_record() -> dict[str, Any]:
    """Return the entries by model."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def write_record(record: dict[str, Any]) -> None:
    """Replace the record atomically."""
    partial = RECORD.with_suffix(".tmp")
    partial.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, RECORD)


def add_cell(title: str, part: str, name: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Add a cell to a part of the entry of a model, with a stamp, and return the entry.

    Reads the record first, because another process can have changed it.
    """
    record = read_record()
    entry = record.setdefault(title, {"cells": {}})
    entry.setdefault(part, {})[name] = stamped(part, name, cell)
    write_record(record)
    return entry


def stamped(part: str, name: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell that was measured now, with its stamp."""
    return {**cell, "measured": str(stamp(measuring_file(part), name))}


def measuring_file(part: str) -> Path:
    """Return the file that measures a part of the record."""
    return ROOT / "benchmarks" / f"{MEASURED_BY.get(part, part)}.py"


def cells_of(section: str) -> list[RecordedCell]:
    """Return the cells behind a section, such as "tokens demo-llama", of its model or of all
    models.
    """
    first, _, title = section.partition(" ")
    part = RECORDED[first]
    return [
        cell
        for model, entry in read_record().items()
        if not title or model == title or model.startswith(f"{section} ")
        for cell in _cells(entry, part)
    ]


def _cells(entry: dict[str, Any], part: str) -> list[RecordedCell]:
    cells, sample = entry.get(part, {}), Sample.of(entry, part)
    is_current = sample is not None and sample.is_current(part, cells)
    return [
        RecordedCell(
            name,
            Stamp.parse(cell["measured"]) if "measured" in cell else None,
            sample,
            is_sampled=is_current and sample.confirms(name),
        )
        for name, cell in cells.items()
    ]
