"""A smaller KV cache: `fused` with cached latents, and with narrowed heads alone, against CARE."""

import os
from collections.abc import Iterator
from pathlib import Path

import lrcore

from .fresh import ARCHITECTURES, trained
from .fresh import subject as fresh_subject
from .page import Subject, note, subjects, table, write_section
from .quality import evaluation, figure

RATIOS = (0.5, 0.75, 0.9)
ROWS = {
    "`care` (CARE-U)": {"method": "care"},
    "`care`, `whitening=root`": {"method": "care", "options": {"whitening": "root"}},
    "`care`, policy `probed`": {"method": "care", "policy": "probed"},
    "`fused`, `probed`, `forms=pairs`": {
        "method": "fused",
        "policy": "probed",
        "options": {"forms": "pairs"},
    },
    "`fused`, `probed`": {"method": "fused", "policy": "probed"},
}


def cached(only: list[str]) -> None:
    """Perplexity with half, a quarter and a tenth of the KV cache left."""
    for subject in every(only):
        model = lrcore.load(subject.recipe.model)
        dense = evaluation(model, subject)
        rows = []
        for name, fields in ROWS.items():
            recipe = subject.recipe.with_(budget="kv", **fields)
            rows.append([name, *figures(model, recipe, subject, dense)])
            note(f"cached {subject.title} {rows[-1]}")
        about = (
            f"**{subject.title}**, dense {dense.perplexity:.3f}, {model.size.parameters:,} "
            f"parameters, {model.size.kv_bytes:,} KV bytes per token."
        )
        header = ["", *(f"{ratio:.0%} removed" for ratio in RATIOS), "parameters of the last"]
        write_section(f"cached {subject.title}", f"{about}\n\n{table(header, rows)}")


def figures(
    model: lrcore.LoadedModel, recipe: lrcore.Recipe, subject: Subject, dense: lrcore.Evaluation
) -> Iterator[str]:
    """The cells of a row; "–" for what the method cannot remove of the model."""
    parameters = "–"
    for ratio in RATIOS:
        try:
            small = lrcore.compress(model, recipe.with_(ratio=ratio))
        except lrcore.InputError:
            yield "–"
            continue
        parameters = f"{small.size.parameters:,}"
        yield figure(small, subject, dense)
    yield parameters


def every(only: list[str]) -> Iterator[Subject]:
    """The models of the other tables, and one of each architecture that is trained afresh."""
    yield from subjects(only)
    reference = os.environ.get("LRCORE_REFERENCE")
    if reference and not only:
        text = Path(reference) / "text"
        for architecture in ARCHITECTURES:
            yield fresh_subject(trained(architecture, 0, text), text)
