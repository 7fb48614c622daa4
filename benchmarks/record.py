"""The record of measured cells, benchmarks/record.json.

An entry per model holds the dense perplexity, the protocol, and cells by "method policy budget
ratio".
"""

import json
import os
from typing import Any

from .report import ROOT

RECORD = ROOT / "benchmarks" / "record.json"
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
    """Add a cell to a part of the entry of a model and return the entry.

    Reads the record first, because another process can have changed it.
    """
    record = read_record()
    entry = record.setdefault(title, {"cells": {}})
    entry.setdefault(part, {})[name] = cell
    write_record(record)
    return entry
