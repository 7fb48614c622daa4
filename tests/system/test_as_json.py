"""NaN and infinity in JSON output, where they are not valid."""

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lrcore import InputError
from lrcore.system.as_json import json_text

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path for folder in ("lrcore", "workbench", "scripts") for path in (ROOT / folder).rglob("*.py")
]
NONFINITE = [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")]


def open_writers(source: str) -> list[int]:
    """Return the lines that call `json.dump` or `json.dumps` without `allow_nan=False`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("dump", "dumps")
        and getattr(call.func.value, "id", "") == "json"
        and not any(
            keyword.arg == "allow_nan" and getattr(keyword.value, "value", True) is False
            for keyword in call.keywords
        )
    ]


def test_all_json_writers_disallow_nan():
    assert open_writers("json.dumps(x, indent=1)\njson.dump(x, f, allow_nan=False)") == [1]
    unsafe_lines = {str(path): open_writers(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: lines for name, lines in unsafe_lines.items() if lines} == {}
    all_sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert "from json import" not in all_sources
    assert "to_json(orient" not in all_sources


@pytest.mark.parametrize("value", NONFINITE, ids=lambda value: f"{type(value).__name__} {value}")
def test_a_nonfinite_number_is_reported_or_written_as_null(value):
    values = {"run": [{"loss": 1.5}, {"loss": value}], "name": "a"}
    with pytest.raises(InputError, match=r"run\.1\.loss is NaN or infinite") as refused:
        json_text(values, default=float)
    assert str(refused.value).endswith(".")
    written = json.loads(json_text(values, nulls=True, indent=1, default=float))
    assert written == {"run": [{"loss": 1.5}, {"loss": None}], "name": "a"}
    with pytest.raises(InputError, match="The value is NaN"):
        json_text(value, default=float)


def test_finite_values_are_written_unchanged():
    values = {"b": [1, 2.5, None, True, "NaN"], "a": {"c": np.float64(0.5)}}
    assert json_text(values, sort_keys=True) == json.dumps(values, sort_keys=True)
    with pytest.raises(TypeError):
        json_text({"a": object()})
