"""What is left of the difference between methods after healing on no more text than calibration
has: perplexity of compressed models before it and after.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lrcore

from .page import Subject, note, recipe_of, subjects, table, with_error, write_section
from .quality import evaluation, figures_of, keep_cell, read_record
from .real import reference_text
from .real import subject as real_subject

PAIRS = (
    ("fused", "probed"),
    ("a3", "uniform"),
    ("modegpt", "uniform"),
    ("latentllm", "uniform"),
    ("llm_surgeon", "uniform"),
)
RATIOS = (0.3, 0.5)
WHEN = ("before", "after")
STEPS = {"steps": 100, "batch": 8}
REAL_STEPS = {"steps": 100, "batch": 2}  # of windows twice as long, in a model of 135 M
Cell = dict[str, dict[str, float]]  # before and after: perplexity and its standard error


def healed(only: list[str]) -> None:
    """Measure what the record lacks, and write the table of a model after every cell."""
    for one in subjects(only):
        _measure(one, STEPS)
    if (text := reference_text(only)) is not None:
        _measure(real_subject(text), REAL_STEPS)


def _measure(one: Subject, steps: Mapping[str, int]) -> None:
    missing = list(_missing(one))
    if not missing:
        return
    model, recipe = lrcore.load(one.recipe.model), one.recipe
    dense = evaluation(model, one)
    settings = lrcore.Healing(
        samples=recipe.samples, seq_len=recipe.seq_len, test_samples=0, **steps
    )
    for name, wanted in missing:
        small = lrcore.compress(model, wanted)
        before, after = (
            evaluation(it, one) for it in (small, lrcore.heal(small, settings, teacher=model))
        )
        cell = {
            "before": figures_of(before, dense),
            "after": figures_of(after, dense),
        }
        note(f"healed {one.title} {name} {cell}")
        own = keep_cell(one.title, "healed", name, cell)
        write_section(f"healed {one.title}", section(one, settings, dense.perplexity, own))


def _missing(one: Subject) -> Iterator[tuple[str, lrcore.Recipe]]:
    known = read_record().get(one.title, {}).get("healed", {})
    for ratio in RATIOS:
        for method, policy in PAIRS:
            name = key(method, policy, ratio)
            if name not in known:
                yield name, recipe_of(one.recipe, method, policy=policy, ratio=ratio)


def key(method: str, policy: str, ratio: float) -> str:
    return f"{method} {policy} {ratio}"


def section(
    one: Subject, settings: lrcore.Healing, dense: float, own: Mapping[str, Mapping[str, Cell]]
) -> str:
    """The protocol and a row per pairing, perplexity before and after at every ratio."""
    words = (
        f"**{one.title}**: dense perplexity {dense:.3f}. {settings.steps} steps of "
        f"{settings.batch} windows of {settings.seq_len} tokens out of {settings.samples} of "
        f"`{Path(one.recipe.data).name}`, as many as calibration takes; the other settings are "
        f"those of `lrcore heal`. Perplexity on the first {one.windows} windows of {one.length} of "
        f"`{Path(one.data).name}` (test split where there is one)."
    )
    header = ["method", "policy"]
    for ratio in RATIOS:
        header += [f"{ratio:.0%}", f"{ratio:.0%}, healed"]
    return f"{words}\n\n{table(header, rows_of(own['healed']))}"


def rows_of(cells: Mapping[str, Cell]) -> list[list[Any]]:
    """Of pairings of which any ratio is measured; "–" where one is not."""
    rows: list[list[Any]] = []
    for method, policy in PAIRS:
        own = [cells.get(key(method, policy, ratio)) for ratio in RATIOS]
        if any(own):
            row: list[Any] = [method, policy]
            for cell in own:
                row += ["–" if cell is None else with_error(cell[when]) for when in WHEN]
            rows.append(row)
    return rows
