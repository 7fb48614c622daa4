"""Growth of time and memory with layers, width and tokens, on random models.

One size is doubled at a time, and an exponent is fitted.
"""

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log as ln
from pathlib import Path
from typing import TypeVar

import torch

import lrcore
from lrcore.evaluation.cost import read_peak, reset_peak

from .machine import machine
from .random_models import write_model, write_text
from .report import log, table, write_section
from .timing import empty_cache, timed

T = TypeVar("T")
METHODS = ("a3", "modegpt", "svd_llm", "latentllm")
BASE = {"layers": 4, "width": 512, "tokens": 4096}
SWEPT: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16),
    "width": (256, 512, 1024, 2048),
    "tokens": (2048, 4096, 8192, 16384),
}
LENGTH, HEAD, TEXTS, RATIO = 256, 64, 2000, 0.3
SMALLEST = 1e6  # bytes: Linux counts resident memory in batches
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cost:
    """Seconds, and peak resident bytes minus the bytes before the stage; None if the system has no
    counter.
    """

    seconds: float
    memory: int | None


def growth(models: list[str]) -> None:
    """Measure each stage at each size with an empty cache."""
    if models:
        return
    parts = [f"{machine()}; otherwise {BASE['layers']} layers, width {BASE['width']}, "]
    parts[0] += f"{BASE['tokens']:,} tokens in windows of {LENGTH}; float32, uniform ranks."
    for dimension, sizes in SWEPT.items():
        runs = [measure(**(BASE | {dimension: size})) for size in sizes]
        parts.append(section(dimension, sizes, runs))
    write_section("growth", "\n\n".join(parts))


def measure(layers: int, width: int, tokens: int) -> dict[str, Cost]:
    """Return the cost of each stage on a model of this size."""
    log(f"growth: {layers} layers, width {width}, {tokens} tokens")
    shape = {
        "hidden_size": width,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": max(1, width // HEAD // 4),
        "num_hidden_layers": layers,
        "intermediate_size": width * 11 // 4,
    }
    with empty_cache(), tempfile.TemporaryDirectory() as parent:
        folder, text = Path(parent) / "model", Path(parent) / "text.jsonl"
        write_model(folder, shape)
        write_text(text, TEXTS)
        recipe = lrcore.Recipe(
            str(folder), data=str(text), samples=tokens // LENGTH, seq_len=LENGTH, ratio=RATIO
        )
        return stages(lrcore.load(folder), recipe)


def stages(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> dict[str, Cost]:
    """Return the cost of the stages in order; factors are released after use."""
    rows: dict[str, Cost] = {}
    calibration = spend(rows, "calibrate", lambda: lrcore.calibrate(model, recipe))
    for method in METHODS:
        solve = partial(lrcore.factorize, model, calibration, method)
        factors = spend(rows, f"factorize {method}", solve)
        method_recipe = recipe.with_(method=method)
        spend(rows, f"compress {method}", partial(lrcore.compress, model, method_recipe, factors))
    return rows


def spend(rows: dict[str, Cost], name: str, run: Callable[[], T]) -> T:
    """Return the result of a stage and add the cost to the rows."""
    gc.collect()
    reset_peak(CPU)
    before = read_peak(CPU)
    value, seconds = timed(run)
    peak = read_peak(CPU)
    rows[name] = Cost(seconds, None if before is None or peak is None else peak - before)
    return value


def section(dimension: str, sizes: tuple[int, ...], runs: list[dict[str, Cost]]) -> str:
    """Return the table of seconds by size with the exponents of time and memory."""
    header = [f"seconds by {dimension}", *(f"{size:,}" for size in sizes), "exponent"]
    header += ["MB at the largest", "exponent"]
    rows = [row(name, sizes, [run[name] for run in runs]) for name in runs[0]]
    return table(header, rows)


def row(name: str, sizes: tuple[int, ...], costs: list[Cost]) -> list[str]:
    """Return the row of a stage; dashes if the memory is below the resolution of the system."""
    seconds = [cost.seconds for cost in costs]
    memory = [cost.memory for cost in costs if cost.memory is not None and cost.memory > SMALLEST]
    is_measured = len(memory) == len(costs)
    return [
        name,
        *(f"{value:.2f}" for value in seconds),
        f"{exponent(sizes, seconds):.1f}",
        f"{memory[-1] / 1e6:,.0f}" if is_measured else "–",
        f"{exponent(sizes, memory):.1f}" if is_measured else "–",
    ]


def exponent(sizes: tuple[int, ...], values: list[float] | list[int]) -> float:
    """Return p of `value = c * size^p` by least squares of the logarithms."""
    x, y = [ln(size) for size in sizes], [ln(value) for value in values]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - x_mean) ** 2 for a in x)
