"""The record of measured cells, benchmarks/record.json.

An entry per model holds the dense perplexity, the protocol, and parts with cells, such as "cells"
by "method policy budget ratio". The stamp "measured" of a cell states when and by which code.
"""

import json
import os
from pathlib import Path
from typing import Any

from .machine import ROOT
from .stamps import stamp

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


def cells_of(section: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and cells behind a section, such as "tokens demo-llama", of its model or of
    all models.
    """
    first, _, title = section.partition(" ")
    return [
        (name, cell)
        for model, entry in read_record().items()
        if not title or model == title or model.startswith(f"{section} ")
        for name, cell in entry.get(RECORDED[first], {}).items()
    ]
