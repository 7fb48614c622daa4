"""The page the tables go to: markdown tables, sections between markers, the models there are."""

import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from prose import wrap

import lrcore
from lrcore.errors import unknown

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
T = TypeVar("T")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], rows: list[list]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def with_error(cell: Mapping[str, Any]) -> str:
    """The perplexity of a cell ± the standard error of its difference to the dense one, paired by
    window.
    """
    return f"{cell['perplexity']:.3f} ± {cell['error']:.3f}"


def write_section(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Exchange what stands between the markers of a section."""
    page = document.read_text(encoding="utf-8")
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{document.name} has no section '{name}'")
    document.write_text(
        pattern.sub(lambda match: match[1] + wrap(text) + "\n" + match[2], page), encoding="utf-8"
    )


@contextmanager
def empty_cache() -> Iterator[None]:
    """Inside, nothing that was computed before shortens what is measured."""
    before = os.environ.get("LRCORE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRCORE_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("LRCORE_CACHE")
            if before is not None:
                os.environ["LRCORE_CACHE"] = before


@dataclass(frozen=True)
class Subject:
    """A model with the text it is calibrated on and the text it is measured on: the first
    `windows` windows of `length` tokens.
    """

    title: str
    recipe: lrcore.Recipe
    data: str
    windows: int
    length: int = 256

    @property
    def evaluation(self) -> lrcore.EvaluationSettings:
        """What its perplexity is measured by."""
        return lrcore.EvaluationSettings(self.data, samples=self.windows, seq_len=self.length)


# What a method is measured with where a recipe's default would make it another one.
OWN: dict[str, dict[str, str]] = {"aa_svd": {"calibration": "sequential"}}  # else it is svd_llm


def recipe_of(base: lrcore.Recipe, method: str, **fields: Any) -> lrcore.Recipe:
    """The recipe of a method among the tables."""
    return base.with_(**OWN.get(method, {}), method=method, **fields)


def check(models: list[str]) -> None:
    """Raises InputError for a model that is no subject, or whose files are not on this machine."""
    for name in models:
        if name not in (*lrcore.DEMO_MODELS, "stories260K"):
            raise unknown("model", name, (*lrcore.DEMO_MODELS, "stories260K"))
        if name == "stories260K" and not os.environ.get("LRCORE_REFERENCE"):
            raise lrcore.InputError(
                "stories260K is not part of the project: set LRCORE_REFERENCE to the folder with "
                "the reference data, which docs/benchmarks.md describes."
            )


def subjects(only: list[str]) -> Iterator[Subject]:
    """The demo models, and stories260K where LRCORE_REFERENCE names the folder that holds it; or
    those named.
    """
    for name in [name for name in lrcore.DEMO_MODELS if not only or name in only]:
        yield Subject(
            name, lrcore.Recipe(model=name, data="stories", samples=64, seq_len=256), "stories", 32
        )
    reference = os.environ.get("LRCORE_REFERENCE")
    if reference and (not only or "stories260K" in only):
        text = Path(reference) / "text"
        recipe = lrcore.Recipe(
            model=str(Path(reference) / "models/stories260K"),
            data=str(text / "tinystories.calibration.txt"),
            samples=128,
            seq_len=256,
            sampling="first",
        )
        yield Subject("stories260K", recipe, str(text / "tinystories.evaluation.txt"), 128)
    elif not only:
        note("stories260K is left out: LRCORE_REFERENCE does not name the reference data.")


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What a stage gives, and its seconds, until a GPU has done what it was given."""
    began = time.perf_counter()
    value = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return value, time.perf_counter() - began


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    return statistics.median(timed(run)[1] for _ in range(repeats))


def machine() -> str:
    version = torch.__version__.partition("+")[0]
    return f"{processor()}, {torch.get_num_threads()} threads, torch {version}"


def processor() -> str:
    """What Linux calls it, such as "AMD EPYC"; elsewhere its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
