"""A smaller KV cache: `fused` with cached latents or only narrowed heads, compared with CARE."""

import os
from collections.abc import Iterator
from pathlib import Path

import lrcore
from lrcore.evaluation.evaluate import Evaluation

from .fresh_models import ARCHITECTURES, fresh_subject, trained_model
from .perplexity import evaluation, figure
from .report import log, table, write_section
from .subjects import Subject, subjects

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


def cached(models: list[str]) -> None:
    """Measure the perplexity with a half, a quarter and a tenth of the KV cache."""
    for subject in cache_subjects(models):
        model = lrcore.load(subject.recipe.model)
        dense = evaluation(model, subject)
        rows = []
        for name, fields in ROWS.items():
            recipe = subject.recipe.with_(budget="kv", **fields)
            rows.append([name, *figures(model, recipe, subject, dense)])
            log(f"cached {subject.title} {rows[-1]}")
        caption = (
            f"**{subject.title}**, dense {dense.perplexity:.3f}, {model.size.parameters:,} "
            f"parameters, {model.size.kv_bytes:,} KV bytes per token."
        )
        header = ["method", *(f"{ratio:.0%} removed" for ratio in RATIOS)]
        header.append(f"parameters at {RATIOS[-1]:.0%}")
        write_section(f"cached {subject.title}", f"{caption}\n\n{table(header, rows)}")


def figures(
    model: lrcore.LoadedModel, recipe: lrcore.Recipe, subject: Subject, dense: Evaluation
) -> Iterator[str]:
    """Yield the cells of a row; "–" for a ratio that the method cannot remove."""
    parameters = "–"
    for ratio in RATIOS:
        try:
            compressed = lrcore.compress(model, recipe.with_(ratio=ratio))
        except lrcore.InputError:
            yield "–"
            continue
        parameters = f"{compressed.size.parameters:,}"
        yield figure(compressed, subject, dense)
    yield parameters


def cache_subjects(models: list[str]) -> Iterator[Subject]:
    """Yield the models of the perplexity tables and a fresh model per architecture."""
    yield from subjects(models)
    reference = os.environ.get("LRCORE_REFERENCE")
    if reference and not models:
        text = Path(reference) / "text"
        for architecture in ARCHITECTURES:
            yield fresh_subject(trained_model(architecture, 0, text), text)
