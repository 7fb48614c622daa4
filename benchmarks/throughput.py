"""Prefill and decoding speed of compressed models relative to the dense model, in turns, compared
with the ratio of their FLOPs.

Results are stored in build/, so that an interrupted run can continue.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lrcore
from lrcore.models.architectures import text_config

from .machine import ROOT, machine
from .random_models import MODEL_SHAPES, write_model, write_text
from .report import log, table, write_section

REAL, SHAPE = "smollm2-135m", "tinyllama-1.1b"
METHODS = {REAL: ("a3", "svd_llm", "modegpt", "latentllm", "fused"), SHAPE: ("a3", "svd_llm")}
RATIOS, BATCHES = (0.2, 0.4), (1, 8, 32)
PROMPT, NEW, ROUNDS = 128, 16, 3
SAMPLES, LENGTH, TEXTS = 8, 512, 500
RESULTS = ROOT / "build" / "throughput.json"
HEADER = (
    "method",
    "removed",
    "batch",
    "prefill FLOPs / dense",
    "prefill speed / dense",
    "prefill speedup / FLOPs ratio",
    "decoding speed / dense",
    "prefill speed, factors merged",
    "decoding speed, factors merged",
)


@dataclass(frozen=True)
class Cell:
    """Speeds relative to the dense model.

    flops: prefill FLOPs of the dense model divided by the FLOPs of the compressed model;
    merged_prefill, merged_decode: with factors merged if that decodes faster.
    """

    flops: float
    prefill: float
    decode: float
    merged_prefill: float
    merged_decode: float


def throughput(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each cell."""
    if models:
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in METHODS:
        for key, cell in measure(name, results):
            results[key] = asdict(cell)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False))
            write_section(f"throughput {name}", section(name, results))


def measure(name: str, results: dict[str, Any]) -> Iterator[tuple[str, Cell]]:
    """Yield key and cell of each missing measurement of a model."""
    missing = [
        (method, ratio, batch)
        for method in METHODS[name]
        for ratio in RATIOS
        for batch in BATCHES
        if key_of(name, method, ratio, batch) not in results
    ]
    if not missing:
        return
    model, recipe = subject(name)
    for method in dict.fromkeys(method for method, _, _ in missing):
        method_recipe = recipe.with_(method=method)
        factors = lrcore.prepare(model, method_recipe)
        pairs = [cell[1:] for cell in missing if cell[0] == method]  # ratio and batch
        for ratio in dict.fromkeys(ratio for ratio, _ in pairs):
            compressed = lrcore.compress(model, method_recipe.with_(ratio=ratio), factors)
            for batch in [pair[1] for pair in pairs if pair[0] == ratio]:
                cell = measure_cell(model, compressed, batch)
                log(f"throughput {name} {method} {ratio} {batch}: {cell}")
                yield key_of(name, method, ratio, batch), cell


def measure_cell(model: lrcore.LoadedModel, compressed: lrcore.LoadedModel, batch: int) -> Cell:
    """Time the dense model and the compressed model, with and without merged factors, in turns."""
    merged = lrcore.merge_factors(compressed, batch)  # the same model without factors
    models = [model, compressed] if merged is compressed else [model, compressed, merged]
    dense, *speeds = lrcore.measure_speed(
        models, prompt=PROMPT, new=NEW, rounds=ROUNDS, batch=batch
    )
    ratios = [(speed.prefill / dense.prefill, speed.decode / dense.decode) for speed in speeds]
    return Cell(prefill_flops(model) / prefill_flops(compressed), *ratios[0], *ratios[-1])


def key_of(name: str, method: str, ratio: float, batch: int) -> str:
    """Return the key of a cell in the results."""
    return f"{name} {method} {ratio} {batch}"


def subject(name: str) -> tuple[lrcore.LoadedModel, lrcore.Recipe]:
    """Return a built-in model, or a random bfloat16 model of a shape, with its recipe."""
    settings = {"samples": SAMPLES, "seq_len": LENGTH}
    if name not in MODEL_SHAPES:
        return lrcore.load(name), lrcore.Recipe(model=name, data="stories", **settings)
    folder, text = random_model(ROOT / "build" / "throughput" / name, name)
    model = lrcore.load(folder, dtype="auto")
    return model, lrcore.Recipe(model=str(folder), data=str(text), dtype="auto", **settings)


def random_model(parent: Path, shape: str) -> tuple[Path, Path]:
    """Return the folder of a random model and its text; write them if they are missing."""
    folder, text = parent / "model", parent / "text.jsonl"
    if not (folder / "config.json").exists():
        write_model(folder, MODEL_SHAPES[shape])
    if not text.exists():
        write_text(text, TEXTS)
    return folder, text


def prefill_flops(model: lrcore.LoadedModel) -> float:
    """Return the FLOPs of a prompt, with the output head at the last token only."""
    config = text_config(model.network)
    head = 2 * config.hidden_size * config.vocab_size
    return PROMPT * lrcore.measure_cost(model, PROMPT).flops_prefill - (PROMPT - 1) * head


def section(name: str, results: dict[str, Any]) -> str:
    """Return the table of the measured cells of a model, and the number of cells that reach the
    expected speed.
    """
    cells: dict[tuple[str, float, int], Cell] = {
        (method, ratio, batch): Cell(**results[key_of(name, method, ratio, batch)])
        for method in METHODS[name]
        for ratio in RATIOS
        for batch in BATCHES
        if key_of(name, method, ratio, batch) in results
    }
    rows = [
        [
            method,
            f"{ratio:.0%}",
            batch,
            f"{1 / cell.flops:.2f}",
            f"{cell.prefill:.2f}",
            f"{cell.prefill / cell.flops:.2f}",
            f"{cell.decode:.2f}",
            f"{cell.merged_prefill:.2f}",
            f"{cell.merged_decode:.2f}",
        ]
        for (method, ratio, batch), cell in cells.items()
    ]
    reached = _count(cells, lambda cell: cell.prefill >= 0.95 * cell.flops)
    slower = _count(cells, lambda cell: min(cell.prefill, cell.decode) < 1)
    slower_merged = _count(cells, lambda cell: min(cell.merged_prefill, cell.merged_decode) < 1)
    kind = "bfloat16" if name in MODEL_SHAPES else "float32"
    caption = (
        f"**{name}**, {kind}: prompts of {PROMPT} tokens, {NEW} decoded after each; medians of "
        f"{ROUNDS} rounds, dense and compressed in turn; {machine()}. Prefill reaches at "
        f"least 0.95 of the FLOPs ratio in {reached} of {len(cells)} cells; slower than dense in "
        f"prefill or decoding: {slower}; with factors merged if this decodes faster "
        f"(`merge_factors`): {slower_merged}."
    )
    return f"{caption}\n\n{table(list(HEADER), rows)}"


def _count(cells: dict[Any, Cell], condition: Callable[[Cell], bool]) -> int:
    return sum(map(condition, cells.values()))
