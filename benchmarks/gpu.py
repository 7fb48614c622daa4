"""Compression of models with 7 and 8 billion parameters on a GPU, and their speed.

The weights are random. Needs 30 GB of disk and 40 GB of GPU memory. Results are stored in
build/gpu, so that an interrupted run can continue.
"""

import gc
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import lrcore
from lrcore.evaluation.cost import read_peak, reset_peak

from .random_models import MODEL_SHAPES, write_model, write_text
from .report import ROOT, log, table, write_section
from .timing import timed

SHAPE_NAMES = ("llama-2-7b", "llama-3-8b")
SAMPLES, LENGTH, RATIO, TEXTS = 128, 2048, 0.3, 20_000
BATCHES, PROMPTS, NEW, ROUNDS = (1, 16, 256), (128, 2048), 32, 3
STAGES = ("calibrate", "factorize", "compress")
FOLDER = ROOT / "build" / "gpu"


@dataclass(frozen=True)
class Compression:
    """Seconds by stage, and peak bytes on the device."""

    seconds: dict[str, float]
    memory: int


@dataclass(frozen=True)
class Rate:
    """Tokens per second; None if the memory of the device is too small."""

    prefill: float | None = None
    decode: float | None = None


def gpu(models: list[str]) -> None:
    """Measure all methods at both shapes on the first CUDA device."""
    if models:
        return
    if not torch.cuda.is_available():
        log("gpu is skipped: torch finds no CUDA device.")
        return
    device = torch.device("cuda")
    parts = [f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}."]
    for shape in SHAPE_NAMES:
        rows = measure(FOLDER / shape, MODEL_SHAPES[shape], device)
        parts.append(section(shape, rows))
        write_section("gpu", "\n\n".join(parts))


def measure(parent: Path, shape: dict[str, int], device: torch.device) -> dict[str, Any]:
    """Return the fields of `Compression` and `Rate` for the dense model and all methods."""
    folder, text, results = parent / "model", parent / "text.jsonl", parent / "measured.json"
    if not (folder / "config.json").exists():
        write_model(folder, shape)
    if not text.exists():
        write_text(text, TEXTS)
    rows = json.loads(results.read_text()) if results.exists() else {}
    recipe = lrcore.Recipe(
        str(folder),
        data=str(text),
        dtype="auto",
        device=str(device),
        samples=SAMPLES,
        seq_len=LENGTH,
        ratio=RATIO,
    )
    for method in ("dense", *(row["name"] for row in lrcore.list_methods())):
        if method not in rows:
            rows[method] = measure_method(parent, recipe.with_(method=method), device)
            results.write_text(json.dumps(rows, indent=1, allow_nan=False))
    return rows


def measure_method(parent: Path, recipe: lrcore.Recipe, device: torch.device) -> dict[str, Any]:
    """Compress with offloaded layers, then time the checkpoint on the device."""
    log(f"gpu {parent.name} {recipe.method}")
    out, compression = parent / "out", {}
    folder = Path(recipe.model) if recipe.method == "dense" else out
    try:
        if recipe.method != "dense":
            compression = asdict(compress(recipe, out, device))
        model = lrcore.load(folder, dtype="auto", device=str(device))
        rates = {
            f"{batch} {prompt}": asdict(rate(model, batch, prompt))
            for batch in BATCHES
            for prompt in PROMPTS
        }
    except lrcore.InputError as error:
        log(str(error))
        return {"refused": str(error)}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return compression | {"rates": rates}


def compress(recipe: lrcore.Recipe, out: Path, device: torch.device) -> Compression:
    """Run the stages of a method. The cache contains the moments after the first method."""
    reset_peak(device)
    model = lrcore.load(recipe.model, dtype=recipe.dtype, device=recipe.device, offload=True)
    calibration, first = timed(lambda: lrcore.calibrate(model, recipe))
    factors, second = timed(lambda: lrcore.factorize(model, calibration, recipe.method))
    compressed, third = timed(lambda: lrcore.compress(model, recipe, factors))
    lrcore.save(compressed, out, overwrite=True)
    seconds = dict(zip(STAGES, (first, second, third), strict=True))
    return Compression(seconds, read_peak(device) or 0)


def rate(model: lrcore.LoadedModel, batch: int, prompt: int) -> Rate:
    """Measure tokens per second."""
    try:
        (speed,) = lrcore.measure_speed([model], prompt=prompt, new=NEW, rounds=ROUNDS, batch=batch)
    except torch.OutOfMemoryError:
        gc.collect()
        torch.cuda.empty_cache()
        return Rate()
    return Rate(speed.prefill, speed.decode)


def section(shape: str, rows: dict[str, Any]) -> str:
    """Return the table of the stages and the table of tokens per second by batch and prompt."""
    caption = (
        f"**{shape}**, random weights in bfloat16, {RATIO:.0%} removed, {SAMPLES} windows of "
        f"{LENGTH} tokens, offloaded layers, uniform ranks. `calibrate` is measured once: the "
        "methods share the moments. Tokens per second: prefill / decoding of "
        f"{NEW} tokens, by batch x prompt; –: not enough memory."
    )
    refused = [f"{name}: {row['refused']}" for name, row in rows.items() if "refused" in row]
    complete = {name: row for name, row in rows.items() if "refused" not in row}
    stages = [stage_row(name, row) for name, row in complete.items() if "seconds" in row]
    shapes = [f"{batch} {prompt}" for batch in BATCHES for prompt in PROMPTS]
    rates = [
        [name, *(speeds(row["rates"][shape]) for shape in shapes)] for name, row in complete.items()
    ]
    return "\n\n".join(
        [
            caption,
            table(["method", *(f"{stage}, s" for stage in STAGES), "peak, GB"], stages),
            table(["method", *(shape.replace(" ", " x ") for shape in shapes)], rates),
            *refused,
        ]
    )


def stage_row(name: str, row: dict[str, Any]) -> list[str]:
    """Return the row of a method in the table of the stages."""
    seconds = [f"{row['seconds'][stage]:,.1f}" for stage in STAGES]
    return [name, *seconds, f"{row['memory'] / 1e9:.1f}"]


def speeds(rate: dict[str, float | None]) -> str:
    """Return the speed of prefill and decoding."""
    if rate["prefill"] is None or rate["decode"] is None:
        return "–"
    return f"{rate['prefill']:,.0f} / {rate['decode']:,.0f}"
