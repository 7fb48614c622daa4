"""How long a job goes on after it was cancelled: the longest time between two looks at whether it
was, in every stage, for a machine that does nothing else.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import lrcore

from .page import empty_cache, machine, note, subjects, table, write_section
from .real import MODEL

T = TypeVar("T")
METHODS = ("a3", "svd_llm", "modegpt", "latentllm", "fused")
SAMPLES, LENGTH, RATIO = 8, 512, 0.3


@dataclass
class Looks:
    """When a stage looked. gap: the longest time without a look; seconds: of the whole stage."""

    last: float = field(default_factory=time.perf_counter)
    gap: float = 0.0
    seconds: float = 0.0

    def __call__(self, *_: object) -> None:
        now = time.perf_counter()
        self.gap, self.last = max(self.gap, now - self.last), now

    def of(self, stage: Callable[[], T]) -> T:
        began = time.perf_counter()
        with lrcore.cancellable(self):
            value = stage()
        self()
        self.seconds = time.perf_counter() - began
        return value


def cancel(_models: list[str]) -> None:
    """Every stage of SmolLM2-135M and of the demo model, with an empty cache."""
    data = next(subjects(["demo-llama"])).recipe.data
    rows = []
    for name in (MODEL, "demo-llama"):
        recipe = lrcore.Recipe(model=name, data=data, samples=SAMPLES, seq_len=LENGTH)
        recipe = recipe.with_(seq_len=min(LENGTH, lrcore.load(name).context or LENGTH))
        with empty_cache():
            rows += [[name, *row] for row in stages(recipe)]
    words = (
        f"{SAMPLES} windows of at most {LENGTH} tokens of {data}, an empty cache; {machine()}. A "
        "job that is cancelled stops at its next look."
    )
    header = ["model", "stage", "seconds", "longest time without a look"]
    write_section("cancel", f"{words}\n\n{table(header, rows)}")


def stages(recipe: lrcore.Recipe) -> list[list[str]]:
    """The name of each stage, its seconds and its longest time without a look."""
    rows: list[list[str]] = []

    def measured(name: str, stage: Callable[..., T], *given: Any, **options: Any) -> T:
        looks = Looks()
        value = looks.of(lambda: stage(*given, **options))
        note(f"{recipe.model} {name} {looks.seconds:.2f} {looks.gap:.2f}")
        rows.append([name, f"{looks.seconds:.2f}", f"{looks.gap:.2f}"])
        return value

    model = measured("load", lrcore.load, recipe.model)
    calibration = measured("calibrate", lrcore.calibrate, model, recipe)
    measured("analyse", lrcore.analyse, model, calibration)
    for method in METHODS:
        factors = measured(f"factorise {method}", lrcore.factorise, model, calibration, method)
        own = recipe.with_(method=method, ratio=RATIO)
        small = measured(f"compress {method}", lrcore.compress, model, own, factors)
    if recipe.model in lrcore.DEMO_MODELS:  # 35 minutes for the other
        measured("probe", lrcore.probe, model, factors)
    measured("evaluate", lrcore.evaluate, small, recipe.data, samples=4, seq_len=128)
    measured("heal", lrcore.heal, small, recipe.data, teacher=model, steps=4, batch=2, seq_len=128)
    measured("slice", lrcore.slice_hidden, model, recipe.with_(ratio=RATIO))
    measured("quantise", lrcore.quantise, small, 4)
    with tempfile.TemporaryDirectory() as folder:
        measured("save", lrcore.save, small, Path(folder) / "small")
        measured("load the checkpoint", lrcore.load, Path(folder) / "small")
        measured("export", lrcore.export, small, Path(folder) / "exported")
    return rows
