"""Latency budgets: the planned fraction of time removed and the measured time of models."""

import statistics
from collections.abc import Iterable

import torch

import lrcore
from lrcore.evaluation.evaluate import Evaluation

from .machine import machine
from .perplexity import evaluation, figure
from .report import log, table, write_section
from .subjects import Subject, real_subject, reference_text, subjects
from .timing import timed

PAIRINGS = (
    ("fused", "probed"),
    ("modegpt", "probed"),
    ("svd_llm", "probed"),
    ("svd_llm", "uniform"),
)
# A single pairing with probes, which take longer than all remaining measurements
REAL_PAIRINGS = (
    ("fused", "probed"),
    ("fused", "uniform"),
    ("a3", "uniform"),
    ("svd_llm", "uniform"),
)
RATIO = 0.25
TURNS, REAL_TURNS = 25, 7
HEADER = (
    "method, policy",
    "budget",
    "parameters removed",
    "time removed, planned",
    "measured",
    "perplexity",
)


def latency(models: list[str]) -> None:
    """Compare removing a quarter of the time with removing a quarter of the parameters. Needs an
    idle machine.
    """
    for subject in subjects(models):
        _measure(subject, PAIRINGS, TURNS)
    if (text := reference_text(models)) is not None:
        _measure(real_subject(text), REAL_PAIRINGS, REAL_TURNS)


def _measure(subject: Subject, pairings: Iterable[tuple[str, str]], turns: int) -> None:
    model = lrcore.load(subject.recipe.model)
    dense = evaluation(model, subject)
    rows = [
        row(
            model,
            subject,
            subject.recipe.with_(method=method, policy=policy, budget=budget, ratio=RATIO),
            turns,
            dense,
        )
        for method, policy in pairings
        for budget in ("latency", "params")
    ]
    caption = (
        f"**{subject.title}**, dense perplexity {dense.perplexity:.3f}: {RATIO:.0%} "
        f"removed, of the layer time over a window of {subject.recipe.seq_len} tokens or of the "
        "layer parameters. Measured: the network without its output head, dense and compressed in "
        f"turn, median of {turns}; {machine()}."
    )
    write_section(f"latency {subject.title}", f"{caption}\n\n{table(list(HEADER), rows)}")


def row(model, subject: Subject, recipe: lrcore.Recipe, turns: int, dense: Evaluation) -> list[str]:
    """Return the row of a recipe; dashes if no ranks meet the budget."""
    log(f"latency {subject.title} {recipe.method} {recipe.policy} {recipe.budget}")
    name = f"{recipe.method}, {recipe.policy}"
    try:
        compressed = lrcore.compress(model, recipe)
    except lrcore.InputError as error:
        log(str(error))
        return [name, recipe.budget, *("–" for _ in HEADER[2:])]
    account = compressed.account
    planned = f"{account.removed_latency:.0%}" if recipe.budget == "latency" else "–"
    return [
        name,
        recipe.budget,
        f"{account.removed_params:.1%}",
        planned,
        f"{removed_time(model, compressed, recipe.seq_len, turns):.0%}",
        figure(compressed, subject, dense),
    ]


def removed_time(dense, compressed, length: int, turns: int) -> float:
    """Return the fraction of the time of a pass over a window that compression removes."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    for model in (dense, compressed):
        seconds(model, tokens)
    return 1 - statistics.median(
        seconds(compressed, tokens) / seconds(dense, tokens) for _ in range(turns)
    )


@torch.inference_mode()
def seconds(model, tokens: torch.Tensor) -> float:
    """Return the time of a forward pass without the output head."""
    return timed(lambda: model.network.base_model(input_ids=tokens, use_cache=False))[1]
