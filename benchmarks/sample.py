"""Repeat a random sample of the recorded perplexities with the present code.

Measuring all cells takes days. A sample whose perplexities agree with the record shows that changes
of the code since did not change the figures. The repeated cells replace the recorded ones.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import lrcore

from . import real_model
from .perplexity import evaluation, measure, write_tables
from .rankings import write_policies
from .record import Sample, measuring_file, read_record, write_record
from .report import log
from .stamps import stamp
from .subjects import REAL_MODEL, Subject, real_subject, recipe_of, reference_text, subjects

SHARES = {REAL_MODEL: 0.03}  # of the cells; a cell of this model takes minutes
SHARE, SEED = 0.08, 20261203


def sample(models: list[str]) -> None:
    """Repeat the sampled cells of each model and write its tables.

    Records each cell as soon as it is measured, so that an interrupted run can continue.
    """
    for subject in sampled_subjects(models):
        names = drawn(subject.title)
        log(f"sample {subject.title}: {len(names)} cells")
        repeat(subject, names)
        entry = read_record()[subject.title]
        if subject.title == REAL_MODEL:
            real_model.write_tables(entry)
        else:
            write_tables(subject.title, entry)
    write_policies(read_record())


def sampled_subjects(models: list[str]) -> Iterator[Subject]:
    """Yield the models of the tables of perplexity."""
    yield from subjects(models)
    if text := reference_text(models):
        yield real_subject(text)


def drawn(title: str) -> list[str]:
    """Return the names of the cells to repeat, in the order of methods."""
    names = sorted(read_record()[title]["cells"])
    count = math.ceil(SHARES.get(title, SHARE) * len(names))
    return sorted(random.Random(SEED).sample(names, count))


def repeat(subject: Subject, names: Sequence[str]) -> None:
    """Measure the cells that the sample of the present code lacks."""
    done = begun(subject.title, len(names))
    missing: dict[str, list[lrcore.Recipe]] = defaultdict(list)  # by method
    for name in names:
        method, policy, _, ratio = name.split()
        if name not in done.differences:
            recipe = recipe_of(subject.recipe, method, policy=policy, ratio=float(ratio))
            missing[method].append(recipe)
    if not missing:
        return
    model = lrcore.load(subject.recipe.model)
    dense = evaluation(model, subject)
    for recipes in missing.values():
        for name, cell in measure(model, iter(recipes), subject, dense):
            add(subject.title, done, name, cell)


def begun(title: str, drawn: int) -> Sample:
    """Return the sample of the present code so far; without cells if there is none.

    drawn: number of cells of the complete sample.
    """
    entry = read_record()[title]
    names, found = entry["cells"], Sample.of(entry, "cells")
    if found is not None and found.seed == SEED and found.is_current("cells", names):
        return found
    return Sample(SEED, len(names), drawn, {}, stamp(measuring_file("cells"), " ".join(names)))


def add(title: str, done: Sample, name: str, cell: dict[str, Any]) -> None:
    """Record a repeated cell and its difference from the recorded one."""
    record = read_record()
    entry = record[title]
    old = entry["cells"][name]
    error = max(old["error"], 1e-4)  # the record has four decimals
    difference = abs(cell["perplexity"] - old["perplexity"]) / error
    done.differences[name] = round(difference, 4)
    entry["cells"][name] = {**old, **cell}
    entry.setdefault("samples", {})["cells"] = done.to_dict()
    write_record(record)
    log(f"sample {title} {name}: {difference:.3f} standard errors")
