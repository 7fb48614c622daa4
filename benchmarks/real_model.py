"""Perplexity of SmolLM2-135M-Instruct, calibrated and measured on WikiText-2."""

from collections.abc import Collection, Iterator
from typing import Any

import lrcore

from .perplexity import evaluation, measure, protocol, rows_of
from .rankings import BEST, write_margins
from .record import read_record, write_record
from .report import table, write_section
from .subjects import RATIOS, REAL_MODEL, real_subject, recipe_of, reference_text

# Uniform ranks first because they need no probes; then the pairings of the papers and `probed`
PAIRINGS = (
    ("a3", "uniform"),
    ("fused", "uniform"),
    ("latentllm", "uniform"),
    ("modegpt", "uniform"),
    ("svd_llm", "uniform"),
    ("fused", "probed"),
    ("modegpt", "softmax"),
    ("svd_llm", "svd_llm_v2"),
    ("a3", "probed"),
    ("modegpt", "probed"),
    ("latentllm", "probed"),
    ("svd_llm", "probed"),
    ("svd", "uniform"),
    ("flap", "global_ranking"),
    ("flap", "uniform"),
    ("llm_surgeon", "uniform"),
    ("llm_pruner", "uniform"),
    ("bolaco", "uniform"),
    ("aa_svd", "uniform"),
    ("clover", "uniform"),
    ("llm_surgeon", "probed"),
    ("flap", "probed"),
    ("llm_pruner", "probed"),
    ("aa_svd", "probed"),
    ("bolaco", "probed"),
)
# Methods whose ratio counts the KV cache
CACHE_PAIRINGS = (
    ("care", "uniform"),
    ("care", "waterfill"),
    ("mha2mla", "uniform"),
    ("transmla", "uniform"),
)
CACHE_RATIOS = (0.25, 0.5, 0.75)
PASSES = ((0.3,), (0.1, 0.5), (0.2, 0.4))  # completes the first column early


def real(models: list[str]) -> None:
    """Measure the cells that the record lacks and write the tables after each cell, so that an
    interrupted run can continue.
    """
    if (text := reference_text(models)) is None:
        return
    subject, record = real_subject(text), read_record()
    entry = record.setdefault(REAL_MODEL, {"cells": {}})
    model = lrcore.load(REAL_MODEL)
    dense = evaluation(model, subject)
    entry["dense"] = dense.perplexity
    entry["protocol"] = protocol(subject, model, lrcore.calibrate(model, subject.recipe))
    for recipes in missing_recipes(subject.recipe, entry["cells"]):
        for name, cell in measure(model, iter(recipes), subject, dense):
            entry["cells"][name] = cell
            write_record(record)
            write_tables(entry)
    write_tables(entry)


def missing_recipes(base: lrcore.Recipe, cells: Collection[str]) -> Iterator[list[lrcore.Recipe]]:
    """Yield the recipes without a cell, grouped by pairing."""
    for ratios in PASSES:
        for method, policy in PAIRINGS:
            yield [
                recipe_of(base, method, policy=policy, ratio=ratio)
                for ratio in ratios
                if f"{method} {policy} params {ratio}" not in cells
            ]
    for method, policy in CACHE_PAIRINGS:
        yield [
            recipe_of(base, method, policy=policy, ratio=ratio)
            for ratio in CACHE_RATIOS
            if f"{method} {policy} kv {ratio}" not in cells
        ]


def write_tables(entry: dict[str, Any]) -> None:
    """Write the recorded cells to docs/benchmarks/."""
    write_section(f"quality {REAL_MODEL}", quality_block(entry))
    if any(name.startswith(" ".join(BEST)) for name in entry["cells"]):
        write_margins(REAL_MODEL, entry, RATIOS)


def quality_block(entry: dict[str, Any]) -> str:
    """Return the protocol and the rows by budget."""
    caption = (
        f"**{REAL_MODEL}** (instruction-tuned, dequantized from 4 bits): dense perplexity "
        f"{entry['dense']:.2f}; {entry['protocol']}"
    )
    parts = [caption, _table(entry, "params", RATIOS)]
    if any(" kv " in name for name in entry["cells"]):
        parts += [
            "By fraction of the **KV cache** removed:",
            _table(entry, "kv", CACHE_RATIOS),
        ]
    return "\n\n".join(parts)


def _table(entry: dict[str, Any], budget: str, ratios: tuple[float, ...]) -> str:
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in ratios)]
    return table(header, [row[: len(header)] for row in rows_of(entry, budget, ratios)])
