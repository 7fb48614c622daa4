"""Budgets of latency: the share of time that a plan promises, and what whole models then take."""

import statistics
from collections.abc import Iterable

import torch

import lrcore

from .page import Subject, machine, note, subjects, table, timed, write_section
from .quality import evaluation, figure
from .real import reference_text
from .real import subject as real_subject

PAIRINGS = (
    ("fused", "probed"),
    ("modegpt", "probed"),
    ("svd_llm", "probed"),
    ("svd_llm", "uniform"),
)
# Of the real model: one that probes, which take longer there than all the rest
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


def latency(only: list[str]) -> None:
    """A quarter of the time against a quarter of the parameters, for a machine that does nothing
    else.
    """
    for subject in subjects(only):
        _measure(subject, PAIRINGS, TURNS)
    if (text := reference_text(only)) is not None:
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
    words = (
        f"**{subject.title}**, dense perplexity {dense.perplexity:.3f}: a share of "
        f"{RATIO:.0%}, of the layers' time over one window of {subject.recipe.seq_len} tokens "
        "or of their parameters. Measured: the network without its output head, dense and "
        f"compressed in turn, median of {turns}; {machine()}."
    )
    write_section(f"latency {subject.title}", f"{words}\n\n{table(list(HEADER), rows)}")


def row(
    model, subject: Subject, recipe: lrcore.Recipe, turns: int, dense: lrcore.Evaluation
) -> list[str]:
    note(f"latency {subject.title} {recipe.method} {recipe.policy} {recipe.budget}")
    name = f"{recipe.method}, {recipe.policy}"
    try:
        small = lrcore.compress(model, recipe)
    except lrcore.InputError as error:
        note(str(error))
        return [name, recipe.budget, *("–" for _ in HEADER[2:])]
    account = small.account
    promised = f"{account.removed_latency:.0%}" if recipe.budget == "latency" else "–"
    return [
        name,
        recipe.budget,
        f"{account.removed_params:.1%}",
        promised,
        f"{removed_time(model, small, recipe.seq_len, turns):.0%}",
        figure(small, subject, dense),
    ]


def removed_time(dense, small, length: int, turns: int) -> float:
    """The share of the time of a pass over one window that is gone."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    for model in (dense, small):
        seconds(model, tokens)
    return 1 - statistics.median(
        seconds(small, tokens) / seconds(dense, tokens) for _ in range(turns)
    )


@torch.inference_mode()
def seconds(model, tokens: torch.Tensor) -> float:
    return timed(lambda: model.network.base_model(input_ids=tokens, use_cache=False))[1]
