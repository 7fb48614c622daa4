"""A real model on real text: SmolLM2-135M-Instruct, calibrated and measured on WikiText-2."""

import os
from pathlib import Path

import lrcore

from .page import RATIOS, Subject, note, table, write_section
from .quality import keep, measure, perplexity, protocol, read_record, rows_of
from .standing import write_standing

MODEL = "smollm2-135m"
# The pairings of the papers, and ours; ratios in an order that gives a column at once
ROWS = (
    ("fused", "probed"),
    ("fused", "uniform"),
    ("latentllm", "uniform"),
    ("modegpt", "uniform"),
    ("modegpt", "softmax"),
    ("a3", "uniform"),
    ("svd_llm", "uniform"),
    ("svd_llm", "svd_llm_v2"),
    ("svd", "uniform"),
    ("flap", "global_ranking"),
)
ORDER = (0.3, 0.2, 0.5, 0.1, 0.4)
WINDOWS, LENGTH = 6, 2048  # of the test


def real(only: list[str]) -> None:
    """Measure the cells that the record lacks, and write the table after every one. A killed run
    goes on where it was.
    """
    reference = os.environ.get("LRCORE_REFERENCE")
    if only:
        return
    if not reference:
        note(f"{MODEL} is left out: LRCORE_REFERENCE does not name the reference data.")
        return
    one, record = subject(Path(reference) / "text"), read_record()
    own = record.setdefault(MODEL, {"cells": {}})
    model = lrcore.load(MODEL)
    if "dense" not in own:
        own["protocol"] = protocol(one, model, lrcore.calibrate(model, one.recipe))
        own["dense"] = perplexity(model, one)
    for ratio in ORDER:
        for method, policy in ROWS:
            recipe = one.recipe.with_(method=method, policy=policy, ratio=ratio)
            if f"{method} {policy} params {ratio}" in own["cells"]:
                continue
            for name, cell in measure(model, iter([recipe]), one):
                own["cells"][name] = cell
                keep(record)
                write_tables(own)
    write_tables(own)


def subject(text: Path) -> Subject:
    recipe = lrcore.Recipe(
        model=MODEL, data=str(text / "wikitext2.train.txt"), samples=32, seq_len=512
    )
    return Subject(MODEL, recipe, str(text / "wikitext2.test.txt"), WINDOWS, LENGTH)


def write_tables(own: dict) -> None:
    """What the record has, between the markers of docs/benchmarks.md."""
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in RATIOS)]
    rows = [row[: len(header)] for row in rows_of(own, "params")]
    words = (
        f"**{MODEL}** (instruct-tuned, dequantised from 4 bits): dense perplexity "
        f"{own['dense']:.2f}; {own['protocol']}"
    )
    write_section(f"quality {MODEL}", f"{words}\n\n{table(header, rows)}")
    write_standing(MODEL, own, RATIOS)
