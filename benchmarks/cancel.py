"""Longest time between two checks for cancellation in each stage. Needs an idle machine."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import lrcore
from lrcore.models.load import DEMO_MODELS
from lrcore.system.cancellation import cancellable

from .machine import machine
from .report import log, table, write_section
from .subjects import REAL_MODEL, subjects
from .timing import empty_cache

T = TypeVar("T")
METHODS = ("a3", "svd_llm", "modegpt", "latentllm", "fused")
SAMPLES, LENGTH, RATIO = 8, 512, 0.3


@dataclass
class CheckTimer:
    """A cancellation check that records its times.

    gap: longest time between two checks; seconds: of the complete stage.
    """

    last: float = field(default_factory=time.perf_counter)
    gap: float = 0.0
    seconds: float = 0.0

    def __call__(self, *_: object) -> None:
        current = time.perf_counter()
        self.gap, self.last = max(self.gap, current - self.last), current

    def run(self, stage: Callable[[], T]) -> T:
        """Run a stage with this check."""
        start = time.perf_counter()
        with cancellable(self):
            value = stage()
        self()
        self.seconds = time.perf_counter() - start
        return value


def cancel(_models: list[str]) -> None:
    """Measure all stages of SmolLM2-135M and of demo-llama with an empty cache."""
    data = next(subjects(["demo-llama"])).recipe.data
    rows = []
    for name in (REAL_MODEL, "demo-llama"):
        recipe = lrcore.Recipe(model=name, data=data, samples=SAMPLES, seq_len=LENGTH)
        recipe = recipe.with_(seq_len=min(LENGTH, lrcore.load(name).context or LENGTH))
        with empty_cache():
            rows += [[name, *row] for row in stages(recipe)]
    caption = (
        f"{SAMPLES} windows of at most {LENGTH} tokens of {data}, an empty cache; {machine()}. A "
        "canceled job stops at its next check."
    )
    header = ["model", "stage", "seconds", "longest time between checks, s"]
    write_section("cancel", f"{caption}\n\n{table(header, rows)}")


def stages(recipe: lrcore.Recipe) -> list[list[str]]:
    """Return name, seconds and longest time between checks of each stage."""
    rows: list[list[str]] = []

    def measured(name: str, stage: Callable[..., T], *arguments: Any, **options: Any) -> T:
        timer = CheckTimer()
        value = timer.run(lambda: stage(*arguments, **options))
        log(f"{recipe.model} {name} {timer.seconds:.2f} {timer.gap:.2f}")
        rows.append([name, f"{timer.seconds:.2f}", f"{timer.gap:.2f}"])
        return value

    model = measured("load", lrcore.load, recipe.model)
    calibration = measured("calibrate", lrcore.calibrate, model, recipe)
    measured("analyze", lrcore.analyze, model, calibration)
    for method in METHODS:
        factors = measured(f"factorize {method}", lrcore.factorize, model, calibration, method)
        method_recipe = recipe.with_(method=method, ratio=RATIO)
        compressed = measured(f"compress {method}", lrcore.compress, model, method_recipe, factors)
    if recipe.model in DEMO_MODELS:  # 35 minutes for SmolLM2-135M
        measured("probe", lrcore.probe, model, factors)
    measured("evaluate", lrcore.evaluate, compressed, recipe.data, samples=4, seq_len=128)
    measured(
        "heal", lrcore.heal, compressed, recipe.data, teacher=model, steps=4, batch=2, seq_len=128
    )
    measured("slice", lrcore.slice_hidden, model, recipe.with_(ratio=RATIO))
    measured("quantize", lrcore.quantize, compressed, 4)
    with tempfile.TemporaryDirectory() as folder:
        measured("save", lrcore.save, compressed, Path(folder) / "small")
        measured("load the checkpoint", lrcore.load, Path(folder) / "small")
        measured("export", lrcore.export, compressed, Path(folder) / "exported")
    return rows
