"""Models of the benchmarks, with their calibration and evaluation texts."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lrcore
from lrcore.models.hub import DEMO_MODELS
from lrcore.system.errors import unknown

from .report import log

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
REAL_MODEL = "smollm2-135m"
REAL_WINDOWS, REAL_LENGTH = 10, 2048  # of the test text of WikiText-2


@dataclass(frozen=True)
class Subject:
    """A model with a calibration recipe and an evaluation text: the first `windows` windows of
    `length` tokens of `data`.
    """

    title: str
    recipe: lrcore.Recipe
    data: str
    windows: int
    length: int = 256

    @property
    def evaluation(self) -> lrcore.EvaluationSettings:
        """The settings of the perplexity measurement."""
        return lrcore.EvaluationSettings(self.data, samples=self.windows, seq_len=self.length)


# Recipe fields without which a method would equal a different method, or, for `fused`, would be
# distilled after measured ranks, which the other methods are not.
METHOD_FIELDS: dict[str, dict[str, str]] = {
    "aa_svd": {"calibration_mode": "sequential"},  # else svd_llm
    "fused": {"refit": "on"},
}


def recipe_of(base: lrcore.Recipe, method: str, **fields: Any) -> lrcore.Recipe:
    """Return the recipe of a method in the tables."""
    return base.with_(**METHOD_FIELDS.get(method, {}), method=method, **fields)


def check_models(models: list[str]) -> None:
    """Raise InputError for an unknown model or a model whose files are missing."""
    for name in models:
        if name not in (*DEMO_MODELS, "stories260K"):
            raise unknown("model", name, (*DEMO_MODELS, "stories260K"))
        if name == "stories260K" and not os.environ.get("LRCORE_REFERENCE"):
            raise lrcore.InputError(
                "stories260K is not part of the project: set LRCORE_REFERENCE to the folder with "
                "the reference data, described in docs/benchmarks/README.md."
            )


def subjects(models: list[str]) -> Iterator[Subject]:
    """Yield the demo models and, if LRCORE_REFERENCE is set, stories260K; or the named models."""
    for name in [name for name in DEMO_MODELS if not models or name in models]:
        yield Subject(
            name, lrcore.Recipe(model=name, data="stories", samples=64, seq_len=256), "stories", 32
        )
    reference = os.environ.get("LRCORE_REFERENCE")
    if reference and (not models or "stories260K" in models):
        text = Path(reference) / "text"
        recipe = lrcore.Recipe(
            model=str(Path(reference) / "models/stories260K"),
            data=str(text / "tinystories.calibration.txt"),
            samples=128,
            seq_len=256,
            sampling="first",
        )
        yield Subject("stories260K", recipe, str(text / "tinystories.evaluation.txt"), 128)
    elif not models:
        log("stories260K is skipped: LRCORE_REFERENCE does not name the reference data.")


def reference_text(models: list[str]) -> Path | None:
    """Return the folder of the reference text for SmolLM2-135M. Returns None if other models are
    named, or, with a message, if LRCORE_REFERENCE is not set.
    """
    reference = os.environ.get("LRCORE_REFERENCE")
    if models:
        return None
    if not reference:
        log(f"{REAL_MODEL} is skipped: LRCORE_REFERENCE does not name the reference data.")
        return None
    return Path(reference) / "text"


def real_subject(text: Path) -> Subject:
    """Return SmolLM2-135M-Instruct with WikiText-2 from the folder `text`."""
    recipe = lrcore.Recipe(
        model=REAL_MODEL, data=str(text / "wikitext2.train.txt"), samples=32, seq_len=512
    )
    return Subject(REAL_MODEL, recipe, str(text / "wikitext2.test.txt"), REAL_WINDOWS, REAL_LENGTH)
