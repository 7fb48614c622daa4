"""A real model on real text: SmolLM2-135M-Instruct, calibrated and measured on WikiText-2."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lrcore

from .page import RATIOS, Subject, note, recipe_of, table, write_section
from .quality import evaluation, keep, measure, protocol, read_record, rows_of
from .standing import OURS, write_standing

MODEL = "smollm2-135m"
# Uniform ranks first, for they need no probes; then the pairings of the papers, and ours
ROWS = (
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
# Methods whose ratio is that of the cache
CACHED_ROWS = (
    ("care", "uniform"),
    ("care", "waterfill"),
    ("mha2mla", "uniform"),
    ("transmla", "uniform"),
)
CACHED_RATIOS = (0.25, 0.5, 0.75)
PASSES = ((0.3,), (0.1, 0.5), (0.2, 0.4))  # the first column is whole early
WINDOWS, LENGTH = 10, 2048  # of the test


def real(only: list[str]) -> None:
    """Measure the cells that the record lacks, and write the tables after every one. A killed run
    goes on where it was.
    """
    if (text := reference_text(only)) is None:
        return
    one, record = subject(text), read_record()
    own = record.setdefault(MODEL, {"cells": {}})
    model = lrcore.load(MODEL)
    dense = evaluation(model, one)
    own["dense"] = dense.perplexity
    own["protocol"] = protocol(one, model, lrcore.calibrate(model, one.recipe))
    for recipes in missing(one.recipe, own["cells"]):
        for name, cell in measure(model, iter(recipes), one, dense):
            own["cells"][name] = cell
            keep(record)
            write_tables(own)
    write_tables(own)


def reference_text(only: list[str]) -> Path | None:
    """The folder with the reference text; None, with a note, where there is none, and without one
    where other models are named.
    """
    reference = os.environ.get("LRCORE_REFERENCE")
    if only:
        return None
    if not reference:
        note(f"{MODEL} is left out: LRCORE_REFERENCE does not name the reference data.")
        return None
    return Path(reference) / "text"


def missing(base: lrcore.Recipe, known: dict[str, Any]) -> Iterator[list[lrcore.Recipe]]:
    """The recipes that are not measured, those of one pairing together."""
    for ratios in PASSES:
        for method, policy in ROWS:
            yield [
                recipe_of(base, method, policy=policy, ratio=ratio)
                for ratio in ratios
                if f"{method} {policy} params {ratio}" not in known
            ]
    for method, policy in CACHED_ROWS:
        yield [
            recipe_of(base, method, policy=policy, ratio=ratio)
            for ratio in CACHED_RATIOS
            if f"{method} {policy} kv {ratio}" not in known
        ]


def subject(text: Path) -> Subject:
    recipe = lrcore.Recipe(
        model=MODEL, data=str(text / "wikitext2.train.txt"), samples=32, seq_len=512
    )
    return Subject(MODEL, recipe, str(text / "wikitext2.test.txt"), WINDOWS, LENGTH)


def write_tables(own: dict[str, Any]) -> None:
    """What the record has, between the markers of docs/benchmarks.md."""
    words = (
        f"**{MODEL}** (instruct-tuned, dequantised from 4 bits): dense perplexity "
        f"{own['dense']:.2f}; {own['protocol']}"
    )
    parts = [words, _table(own, "params", RATIOS)]
    if any(" kv " in name for name in own["cells"]):
        parts += [
            "Share of the **KV cache** removed instead:",
            _table(own, "kv", CACHED_RATIOS),
        ]
    write_section(f"quality {MODEL}", "\n\n".join(parts))
    if any(name.startswith(" ".join(OURS)) for name in own["cells"]):
        write_standing(MODEL, own, RATIOS)


def _table(own: dict[str, Any], budget: str, ratios: tuple[float, ...]) -> str:
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in ratios)]
    return table(header, [row[: len(header)] for row in rows_of(own, budget, ratios)])
