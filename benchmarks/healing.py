"""Perplexity before and after healing: of a few settings on demo-llama, and of several methods on
as much text as calibration uses.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lrcore
from lrcore.recipes.history import Healed

from .perplexity import evaluation, figure, figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import Subject, real_subject, recipe_of, reference_text, subjects

SETTINGS = {"steps": 100, "batch": 4, "seq_len": 128}
ROWS = (
    ("care", 0.8, {"lr": 3e-3}),
    ("care", 0.8, {"lr": 3e-3, "rotary_channel": 8}),
    ("care", 0.8, {"lr": 3e-3, "beta": 0.0}),
    ("care", 0.75, {"lr": 3e-3}),
    ("modegpt", 0.5, {"lr": 5e-4}),
    ("fused", 0.5, {"lr": 5e-4}),
)
PAIRINGS = (
    ("fused", "probed"),
    ("a3", "uniform"),
    ("modegpt", "uniform"),
    ("latentllm", "uniform"),
    ("llm_surgeon", "uniform"),
)
RATIOS = (0.3, 0.5)
STEPS = {"steps": 100, "batch": 8}
REAL_STEPS = {"steps": 100, "batch": 2}  # windows of double length, 135 million parameters
Cell = dict[str, dict[str, float]]  # "before" and "after": perplexity and standard error


# ---- settings on demo-llama


def healing(models: list[str]) -> None:
    """Measure the rows on demo-llama with uniform ranks and write the table after each row."""
    if models and "demo-llama" not in models:
        return
    header = ["method", "removed", "trained", "d_r", "beta", "lr", "parameters", "before", "after"]
    subject = next(subjects(["demo-llama"]))
    model, rows = lrcore.load(subject.recipe.model), []
    dense = evaluation(model, subject)
    for method, ratio, changes in ROWS:
        compressed = lrcore.compress(model, subject.recipe.with_(method=method, ratio=ratio))
        settings = lrcore.Healing(**SETTINGS, test_samples=0, **changes)
        result = lrcore.heal(compressed, settings, teacher=model)
        step = result.step(Healed)
        cells = [
            f"{ratio:.0%}",
            f"{step.train}, {step.trained_parameters:,}",
            settings.rotary_channel,
            f"{settings.beta:g}",
            f"{settings.lr:g}",
            f"{result.size.parameters:,}",
        ]
        figures = [figure(state, subject, dense) for state in (compressed, result)]
        rows.append([method, *cells, *figures])
        log(f"healing {rows[-1]}")
        caption = (
            f"**demo-llama**: dense perplexity {dense.perplexity:.3f}; uniform ranks; the fraction "
            f"removed is that of the KV cache for `care`. {settings.steps} steps of "
            f"{settings.batch} windows of {settings.seq_len} tokens out of "
            f"{settings.samples} (`stories`, calibration split), "
            f"temperature {settings.temperature:g}; perplexity on the first "
            f"{subject.windows} windows of 256 of its test split."
        )
        write_section("healing demo-llama", f"{caption}\n\n{table(header, rows)}")


# ---- methods on the calibration text


def healed(models: list[str]) -> None:
    """Measure the missing cells and write the table of a model after each cell."""
    for subject in subjects(models):
        _measure(subject, STEPS)
    if (text := reference_text(models)) is not None:
        _measure(real_subject(text), REAL_STEPS)


def _measure(subject: Subject, steps: Mapping[str, int]) -> None:
    missing = list(_missing_recipes(subject))
    if not missing:
        return
    model, recipe = lrcore.load(subject.recipe.model), subject.recipe
    dense = evaluation(model, subject)
    settings = lrcore.Healing(
        samples=recipe.samples, seq_len=recipe.seq_len, test_samples=0, **steps
    )
    for name, missing_recipe in missing:
        compressed = lrcore.compress(model, missing_recipe)
        result = lrcore.heal(compressed, settings, teacher=model)
        cell = {
            "before": figures_of(evaluation(compressed, subject), dense),
            "after": figures_of(evaluation(result, subject), dense),
        }
        log(f"healed {subject.title} {name} {cell}")
        entry = add_cell(subject.title, "healed", name, cell)
        write_section(
            f"healed {subject.title}", section(subject, settings, dense.perplexity, entry)
        )


def _missing_recipes(subject: Subject) -> Iterator[tuple[str, lrcore.Recipe]]:
    cells = read_record().get(subject.title, {}).get("healed", {})
    for ratio in RATIOS:
        for method, policy in PAIRINGS:
            name = key(method, policy, ratio)
            if name not in cells:
                yield name, recipe_of(subject.recipe, method, policy=policy, ratio=ratio)


def key(method: str, policy: str, ratio: float) -> str:
    """Return the name of a cell in the record."""
    return f"{method} {policy} {ratio}"


def section(
    subject: Subject,
    settings: lrcore.Healing,
    dense: float,
    entry: Mapping[str, Mapping[str, Cell]],
) -> str:
    """Return the protocol and a row per pairing with the perplexities before and after healing."""
    caption = (
        f"**{subject.title}**: dense perplexity {dense:.3f}. {settings.steps} steps of "
        f"{settings.batch} windows of {settings.seq_len} tokens out of {settings.samples} of "
        f"`{Path(subject.recipe.data).name}`, the number used for calibration; the remaining "
        f"settings are the defaults of `lrcore heal`. Perplexity on the first {subject.windows} "
        f"windows of {subject.length} of `{Path(subject.data).name}` (test split if available)."
    )
    header = ["method", "policy"]
    for ratio in RATIOS:
        header += [f"{ratio:.0%}", f"{ratio:.0%}, healed"]
    return f"{caption}\n\n{table(header, rows_of(entry['healed']))}"


def rows_of(cells: Mapping[str, Cell]) -> list[list[Any]]:
    """Return a row per pairing with at least one cell; "–" for missing cells."""
    rows: list[list[Any]] = []
    for method, policy in PAIRINGS:
        by_ratio = [cells.get(key(method, policy, ratio)) for ratio in RATIOS]
        if any(by_ratio):
            row: list[Any] = [method, policy]
            for cell in by_ratio:
                row += [
                    "–" if cell is None else with_error(cell[when]) for when in ("before", "after")
                ]
            rows.append(row)
    return rows
