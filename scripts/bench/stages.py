"""What every stage takes on SmolLM2-135M, beside the forward passes that it cannot do without, for
a machine that does nothing else.
"""

import tempfile
from pathlib import Path

import torch

import lrcore

from .page import empty_cache, machine, note, table, timed, write_section
from .real import MODEL

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
COMPRESSED, ANALYSED = 5, 8  # seconds
CALIBRATED, SAVED = 1.3, 1.6  # of the passes
Row = list[str]


def stages(only: list[str]) -> None:
    """Every stage once with an empty cache, and the passes before and after them."""
    if only:
        return
    model, recipe = lrcore.load(MODEL), lrcore.Recipe(MODEL, samples=SAMPLES, seq_len=LENGTH)
    passes(model)  # what is made at the first call
    before, rows = passes(model), []
    with empty_cache():
        calibration, seconds = timed(lambda: lrcore.calibrate(model, recipe))
        rows.append(of_passes("calibrate", seconds, before, CALIBRATED))
        _, seconds = timed(lambda: lrcore.analyse(model, calibration))
        rows.append(row("analyse", seconds, before, f"{ANALYSED} s", seconds <= ANALYSED))
        for method, most in GOALS.items():
            rows += of_method(model, calibration, recipe, method, most, before)
    with empty_cache(), tempfile.TemporaryDirectory() as folder:
        whole = recipe.with_(method="a3", ratio=RATIO)
        out = Path(folder) / "small"
        _, seconds = timed(lambda: lrcore.save(lrcore.compress(model, whole), out))
        name = "a3, from `compress` to the saved checkpoint"
        rows.append(of_passes(name, seconds, before, SAVED))
    after = passes(model)
    words = (
        f"**{MODEL}**, float32, {SAMPLES} windows of {LENGTH} tokens, an empty cache; {machine()}. "
        f"The forward passes of these windows, without the output head: {before:.1f} s before "
        f"these stages, {after:.1f} s after them."
    )
    header = ["stage", "seconds", "of the passes", "should take at most", ""]
    write_section("stages", f"{words}\n\n{table(header, rows)}")


def of_method(
    model: lrcore.LoadedModel,
    calibration: lrcore.Calibration,
    recipe: lrcore.Recipe,
    method: str,
    most: float,
    unit: float,
) -> list[Row]:
    """The rows of a method: solving all layers, and writing one model. unit: seconds of the
    passes.
    """
    factors, solved = timed(lambda: lrcore.factorise(model, calibration, method))
    own = recipe.with_(method=method, ratio=RATIO)
    _, seconds = timed(lambda: lrcore.compress(model, own, factors))
    return [
        row(f"factorise {method}", solved, unit, f"{most} s", solved <= most),
        row(f"compress {method}", seconds, unit, f"{COMPRESSED} s", seconds <= COMPRESSED),
    ]


def of_passes(name: str, seconds: float, unit: float, most: float) -> Row:
    return row(name, seconds, unit, f"{most} x the passes", seconds <= most * unit)


def row(name: str, seconds: float, unit: float, most: str, holds: bool) -> Row:
    note(f"stages {name}: {seconds:.2f} s")
    return [name, f"{seconds:.2f}", f"{seconds / unit:.2f}", most, "" if holds else "missed"]


@torch.inference_mode()
def passes(model: lrcore.LoadedModel) -> float:
    """Seconds of the forward passes of as many windows, in batches as calibration makes them."""
    from lrcore.models.stream import BATCH

    windows = torch.randint(1000, (SAMPLES, LENGTH), dtype=torch.int64)
    parts = windows.split(BATCH)
    run = model.network.base_model
    return timed(lambda: [run(input_ids=part, use_cache=False) for part in parts])[1]
