"""What training the MLPs in the refit is worth: perplexity of several methods with `refit: on` and
with `refit: trained`, and where `fused` then stands beside the methods as published.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import lrcore

from .page import Subject, note, recipe_of, subjects, table, with_error, write_section
from .quality import evaluation, figures_of, keep_cell, read_record
from .real import reference_text
from .real import subject as real_subject
from .standing import OURS, least_of_others, perplexities, share

RATIOS = (0.2, 0.3, 0.4, 0.5)
PAIRS = (
    OURS,
    ("fused", "uniform"),
    ("a3", "uniform"),
    ("modegpt", "uniform"),
    ("latentllm", "uniform"),
    ("svd_llm", "uniform"),
    ("llm_surgeon", "uniform"),
)
REFITS = ("on", "trained")
Cells = Mapping[str, dict[str, Any]]


def trained(only: list[str]) -> None:
    """Measure what the record lacks, and write the table of a model after every cell."""
    for one in subjects(only):
        _measure(one)
    if (text := reference_text(only)) is not None:
        _measure(real_subject(text))


def _measure(one: Subject) -> None:
    missing = list(_missing(one))
    if not missing:
        return
    model = lrcore.load(one.recipe.model)
    dense = evaluation(model, one)
    for name, recipe in missing:
        small = lrcore.compress(model, recipe)
        cell = figures_of(evaluation(small, one), dense)
        note(f"trained {one.title} {name} {cell}")
        own = keep_cell(one.title, "trained", name, cell)
        write_section(f"trained {one.title}", section(one.title, own))


def _missing(one: Subject) -> Iterator[tuple[str, lrcore.Recipe]]:
    """The cells that the record lacks, those of `fused` first; what it has with the refit of
    `auto` is not measured again.
    """
    own = read_record().get(one.title, {})
    for method, policy in PAIRS:
        for ratio in RATIOS:
            for refit in REFITS:
                if cell_of(own, method, policy, ratio, refit) is None:
                    recipe = recipe_of(one.recipe, method, policy=policy, ratio=ratio)
                    yield key(method, policy, ratio, refit), recipe.with_(refit=refit)


def key(method: str, policy: str, ratio: float, refit: str) -> str:
    return f"{method} {policy} {ratio} {refit}"


def cell_of(
    own: Mapping[str, Cells], method: str, policy: str, ratio: float, refit: str
) -> dict[str, Any] | None:
    """A cell of this table, or of the tables of perplexities where a method refits by itself."""
    if method == OURS[0] and refit == "on":
        return own.get("cells", {}).get(f"{method} {policy} params {ratio}")
    return own.get("trained", {}).get(key(method, policy, ratio, refit))


def section(title: str, own: Mapping[str, Any]) -> str:
    """A row per pairing and refit, and one per ratio that compares ours with the others."""
    ratios = [f"{ratio:.0%}" for ratio in RATIOS]
    words = f"**{title}**, dense perplexity {own['dense']:.3f}:"
    each = table(["method", "policy", "refit", *ratios], list(_rows(own)))
    header = ["removed", "`fused` with `probed`, trained", "rise, of that with `refit: on`"]
    header += ["of the least under uniform ranks", "of the least as published"]
    return f"{words}\n\n{each}\n\n{table(header, list(_standing(own)))}"


def _rows(own: Mapping[str, Any]) -> Iterator[list[str]]:
    for method, policy in PAIRS:
        for refit in REFITS:
            cells = [cell_of(own, method, policy, ratio, refit) for ratio in RATIOS]
            if any(cells):
                shown = ["–" if one is None else with_error(one) for one in cells]
                yield [method, policy, refit, *shown]


def _standing(own: Mapping[str, Any]) -> Iterator[list[str]]:
    for ratio in RATIOS:
        cells = [cell_of(own, *OURS, ratio, refit) for refit in REFITS]
        others = least_of_others(perplexities(own["cells"], ratio))
        if None in cells or others is None:  # not measured yet
            continue
        before, after = (cell["perplexity"] for cell in cells if cell)
        of = [share(after, least, own["dense"]) for least in (before, *others)]
        yield [f"{ratio:.0%}", with_error(cells[1]), *of]
