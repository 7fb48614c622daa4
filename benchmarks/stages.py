"""Time of each stage on SmolLM2-135M compared with the forward passes. Needs an idle machine."""

import tempfile
from pathlib import Path

import torch

import lrcore
from lrcore.compression.calibration.calibrate import Calibration

from .machine import machine
from .report import log, table, write_section
from .subjects import REAL_MODEL
from .timing import empty_cache, timed

MODEL = REAL_MODEL

SAMPLES, LENGTH, RATIO = 8, 512, 0.3
GOALS = {  # seconds
    "svd": 4,
    "svd_llm": 4,
    "a3": 4,
    "modegpt": 4,
    "care": 4,
    "latentllm": 20,
    "fused": 20,
}
COMPRESSED, ANALYZED = 5, 8  # seconds
CALIBRATED, SAVED = 1.3, 1.6  # relative to the forward passes
Row = list[str]


def stages(models: list[str]) -> None:
    """Time each stage once with an empty cache, and the forward passes before and after."""
    if models:
        return
    model, recipe = lrcore.load(MODEL), lrcore.Recipe(MODEL, samples=SAMPLES, seq_len=LENGTH)
    passes(model)  # warm-up
    before, rows = passes(model), []
    with empty_cache():
        calibration, seconds = timed(lambda: lrcore.calibrate(model, recipe))
        rows.append(pass_row("calibrate", seconds, before, CALIBRATED))
        _, seconds = timed(lambda: lrcore.analyze(model, calibration))
        rows.append(row("analyze", seconds, before, f"{ANALYZED} s", seconds <= ANALYZED))
        for method, goal in GOALS.items():
            rows += method_rows(model, calibration, recipe, method, goal, before)
    with empty_cache(), tempfile.TemporaryDirectory() as folder:
        a3_recipe = recipe.with_(method="a3", ratio=RATIO)
        out = Path(folder) / "small"
        _, seconds = timed(lambda: lrcore.save(lrcore.compress(model, a3_recipe), out))
        name = "a3, from `compress` to the saved checkpoint"
        rows.append(pass_row(name, seconds, before, SAVED))
    after = passes(model)
    caption = (
        f"**{MODEL}**, float32, {SAMPLES} windows of {LENGTH} tokens, an empty cache; {machine()}. "
        f"The forward passes of these windows, without the output head: {before:.1f} s before "
        f"these stages, {after:.1f} s after them."
    )
    header = ["stage", "seconds", "relative to the passes", "goal", ""]
    write_section("stages", f"{caption}\n\n{table(header, rows)}")


def method_rows(
    model: lrcore.LoadedModel,
    calibration: Calibration,
    recipe: lrcore.Recipe,
    method: str,
    goal: float,
    unit: float,
) -> list[Row]:
    """Return the rows of a method: solving all layers and writing a model. unit: seconds of the
    forward passes.
    """
    factors, solved = timed(lambda: lrcore.factorize(model, calibration, method))
    method_recipe = recipe.with_(method=method, ratio=RATIO)
    _, seconds = timed(lambda: lrcore.compress(model, method_recipe, factors))
    return [
        row(f"factorize {method}", solved, unit, f"{goal} s", solved <= goal),
        row(f"compress {method}", seconds, unit, f"{COMPRESSED} s", seconds <= COMPRESSED),
    ]


def pass_row(name: str, seconds: float, unit: float, goal: float) -> Row:
    """Return a row whose goal is relative to the forward passes."""
    return row(name, seconds, unit, f"{goal} x the passes", seconds <= goal * unit)


def row(name: str, seconds: float, unit: float, goal: str, is_met: bool) -> Row:
    """Return a row of the table."""
    log(f"stages {name}: {seconds:.2f} s")
    return [name, f"{seconds:.2f}", f"{seconds / unit:.2f}", goal, "" if is_met else "missed"]


@torch.inference_mode()
def passes(model: lrcore.LoadedModel) -> float:
    """Return the seconds of the forward passes of the same number of windows, in the batches of
    calibration.
    """
    from lrcore.models.stream import BATCH

    windows = torch.randint(1000, (SAMPLES, LENGTH), dtype=torch.int64)
    parts = windows.split(BATCH)
    run = model.network.base_model
    return timed(lambda: [run(input_ids=part, use_cache=False) for part in parts])[1]
