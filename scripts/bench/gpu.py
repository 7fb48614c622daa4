"""What compressing models of 7 and 8 billion parameters takes on a GPU, and how fast they then are.

The weights are made up. 30 GB of disk and 40 GB of the GPU's memory are needed; what was measured
is kept in build/gpu, so that a run goes on where it ended.
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

from .made_up import SHAPES, write_model, write_text
from .page import ROOT, note, table, timed, write_section

SHAPED = ("llama-2-7b", "llama-3-8b")
SAMPLES, LENGTH, RATIO, TEXTS = 128, 2048, 0.3, 20_000
BATCHES, PROMPTS, NEW, ROUNDS = (1, 16, 256), (128, 2048), 32, 3
STAGES = ("calibrate", "factorise", "compress")
PLACE = ROOT / "build" / "gpu"


@dataclass(frozen=True)
class Made:
    """Seconds by stage, and the bytes that were allocated on the device at once."""

    seconds: dict[str, float]
    memory: int


@dataclass(frozen=True)
class Rate:
    """Tokens per second; None where the memory of the device does not hold it."""

    prefill: float | None = None
    decode: float | None = None


def gpu(only: list[str]) -> None:
    """Every method at both shapes, on the first CUDA device."""
    if only:
        return
    if not torch.cuda.is_available():
        note("gpu is left out: torch sees no CUDA device.")
        return
    device = torch.device("cuda")
    parts = [f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}."]
    for shape in SHAPED:
        rows = measured(PLACE / shape, SHAPES[shape], device)
        parts.append(section(shape, rows))
        write_section("gpu", "\n\n".join(parts))


def measured(place: Path, shape: dict[str, int], device: torch.device) -> dict[str, Any]:
    """Of the dense model and of every method, what `Made` and `Rate` have, as plain values."""
    folder, text, kept = place / "model", place / "text.jsonl", place / "measured.json"
    if not (folder / "config.json").exists():
        write_model(folder, shape)
    if not text.exists():
        write_text(text, TEXTS)
    rows = json.loads(kept.read_text()) if kept.exists() else {}
    recipe = lrcore.Recipe(
        str(folder),
        data=str(text),
        dtype="auto",
        device=str(device),
        samples=SAMPLES,
        seq_len=LENGTH,
        ratio=RATIO,
    )
    for method in ("dense", *(row["name"] for row in lrcore.methods())):
        if method not in rows:
            rows[method] = of_method(place, recipe.with_(method=method), device)
            kept.write_text(json.dumps(rows, indent=1, allow_nan=False))
    return rows


def of_method(place: Path, recipe: lrcore.Recipe, device: torch.device) -> dict[str, Any]:
    """Compress with offloaded layers, then time the checkpoint alone on the device."""
    note(f"gpu {place.name} {recipe.method}")
    out, found = place / "out", {}
    folder = Path(recipe.model) if recipe.method == "dense" else out
    try:
        if recipe.method != "dense":
            found = asdict(made(recipe, out, device))
        model = lrcore.load(folder, dtype="auto", device=str(device))
        rates = {
            f"{batch} {prompt}": asdict(rate(model, batch, prompt))
            for batch in BATCHES
            for prompt in PROMPTS
        }
    except lrcore.InputError as error:
        note(str(error))
        return {"refused": str(error)}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return found | {"rates": rates}


def made(recipe: lrcore.Recipe, out: Path, device: torch.device) -> Made:
    """The stages of one method. The moments of the methods before it are in the cache."""
    reset_peak(device)
    model = lrcore.load(recipe.model, dtype=recipe.dtype, device=recipe.device, offload=True)
    calibration, first = timed(lambda: lrcore.calibrate(model, recipe))
    factors, second = timed(lambda: lrcore.factorise(model, calibration, recipe.method))
    small, third = timed(lambda: lrcore.compress(model, recipe, factors))
    lrcore.save(small, out, overwrite=True)
    seconds = dict(zip(STAGES, (first, second, third), strict=True))
    return Made(seconds, read_peak(device) or 0)


def rate(model: lrcore.LoadedModel, batch: int, prompt: int) -> Rate:
    try:
        (speed,) = lrcore.measure_speed([model], prompt=prompt, new=NEW, rounds=ROUNDS, batch=batch)
    except torch.OutOfMemoryError:
        gc.collect()
        torch.cuda.empty_cache()
        return Rate()
    return Rate(speed.prefill, speed.decode)


def section(shape: str, rows: dict[str, Any]) -> str:
    """Two tables: the stages, and tokens per second by batch and prompt."""
    words = (
        f"**{shape}**, made-up weights in bfloat16, {RATIO:.0%} removed, {SAMPLES} windows of "
        f"{LENGTH} tokens, offloaded layers, uniform ranks. `calibrate` is measured once: the "
        "methods share the moments. Tokens per second: prefill / decoding of "
        f"{NEW} tokens, by batch x prompt; – where the memory does not hold it."
    )
    refused = [f"{name}: {row['refused']}" for name, row in rows.items() if "refused" in row]
    whole = {name: row for name, row in rows.items() if "refused" not in row}
    stages = [stage_row(name, row) for name, row in whole.items() if "seconds" in row]
    shapes = [f"{batch} {prompt}" for batch in BATCHES for prompt in PROMPTS]
    rates = [[name, *(shown(row["rates"][one]) for one in shapes)] for name, row in whole.items()]
    return "\n\n".join(
        [
            words,
            table(["method", *(f"{stage}, s" for stage in STAGES), "peak, GB"], stages),
            table(["method", *(one.replace(" ", " x ") for one in shapes)], rates),
            *refused,
        ]
    )


def stage_row(name: str, row: dict[str, Any]) -> list[str]:
    seconds = [f"{row['seconds'][stage]:,.1f}" for stage in STAGES]
    return [name, *seconds, f"{row['memory'] / 1e9:.1f}"]


def shown(one: dict[str, float | None]) -> str:
    if one["prefill"] is None or one["decode"] is None:
        return "–"
    return f"{one['prefill']:,.0f} / {one['decode']:,.0f}"
