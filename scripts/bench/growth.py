"""How time and memory grow with layers, width and tokens: the same stages on made-up models, one
size doubled at a time, and the exponent that fits.
"""

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from typing import TypeVar

import torch

import lrcore
from lrcore.evaluation.cost import read_peak, reset_peak

from .made_up import write_model, write_text
from .page import empty_cache, machine, note, table, timed, write_section

T = TypeVar("T")
METHODS = ("a3", "modegpt", "svd_llm", "latentllm")
BASE = {"layers": 4, "width": 512, "tokens": 4096}
SWEPT: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16),
    "width": (256, 512, 1024, 2048),
    "tokens": (2048, 4096, 8192, 16384),
}
LENGTH, HEAD, TEXTS, RATIO = 256, 64, 2000, 0.3
LEAST = 1e6  # bytes: Linux counts what is resident in batches
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Spent:
    """Seconds, and bytes that were resident at once above those before; None where the system does
    not tell.
    """

    seconds: float
    memory: int | None


def growth(only: list[str]) -> None:
    """Every stage at every size, with empty caches."""
    if only:
        return
    parts = [f"{machine()}; otherwise {BASE['layers']} layers, width {BASE['width']}, "]
    parts[0] += f"{BASE['tokens']:,} tokens in windows of {LENGTH}; float32, uniform ranks."
    for what, sizes in SWEPT.items():
        runs = [measured(**(BASE | {what: size})) for size in sizes]
        parts.append(section(what, sizes, runs))
    write_section("growth", "\n\n".join(parts))


def measured(layers: int, width: int, tokens: int) -> dict[str, Spent]:
    """What each stage takes on a model of this size."""
    note(f"growth: {layers} layers, width {width}, {tokens} tokens")
    shape = {
        "hidden_size": width,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": max(1, width // HEAD // 4),
        "num_hidden_layers": layers,
        "intermediate_size": width * 11 // 4,
    }
    with empty_cache(), tempfile.TemporaryDirectory() as place:
        folder, text = Path(place) / "model", Path(place) / "text.jsonl"
        write_model(folder, shape)
        write_text(text, TEXTS)
        recipe = lrcore.Recipe(
            str(folder), data=str(text), samples=tokens // LENGTH, seq_len=LENGTH, ratio=RATIO
        )
        return stages(lrcore.load(folder), recipe)


def stages(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> dict[str, Spent]:
    """In their order; factors go once they were used."""
    rows: dict[str, Spent] = {}
    calibration = spend(rows, "calibrate", lambda: lrcore.calibrate(model, recipe))
    for method in METHODS:
        solve = partial(lrcore.factorise, model, calibration, method)
        factors = spend(rows, f"factorise {method}", solve)
        own = recipe.with_(method=method)
        spend(rows, f"compress {method}", partial(lrcore.compress, model, own, factors))
    return rows


def spend(rows: dict[str, Spent], name: str, run: Callable[[], T]) -> T:
    """What a stage gives; what it took goes into the rows."""
    gc.collect()
    reset_peak(CPU)
    held = read_peak(CPU)
    value, seconds = timed(run)
    peak = read_peak(CPU)
    rows[name] = Spent(seconds, None if held is None or peak is None else peak - held)
    return value


def section(what: str, sizes: tuple[int, ...], runs: list[dict[str, Spent]]) -> str:
    """Seconds by size, their exponent, and that of the memory."""
    header = [f"seconds by {what}", *(f"{size:,}" for size in sizes), "exponent"]
    header += ["MB at the largest", "exponent"]
    rows = [row(name, sizes, [run[name] for run in runs]) for name in runs[0]]
    return table(header, rows)


def row(name: str, sizes: tuple[int, ...], spent: list[Spent]) -> list[str]:
    taken = [one.seconds for one in spent]
    memory = [one.memory for one in spent if one.memory is not None and one.memory > LEAST]
    known = len(memory) == len(spent)
    return [
        name,
        *(f"{seconds:.2f}" for seconds in taken),
        f"{exponent(sizes, taken):.1f}",
        f"{memory[-1] / 1e6:,.0f}" if known else "–",
        f"{exponent(sizes, memory):.1f}" if known else "–",
    ]


def exponent(sizes: tuple[int, ...], values: list[float] | list[int]) -> float:
    """p of `value = c * size^p`, by least squares of the logarithms."""
    x, y = [log(size) for size in sizes], [log(value) for value in values]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle) ** 2 for one in x)
    slope = sum((one - middle) * (two - level) for one, two in zip(x, y, strict=True))
    return slope / spread
