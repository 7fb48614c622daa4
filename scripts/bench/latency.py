"""Budgets of latency: the share of time that a plan promises, and what whole models then take."""

import statistics

import torch

import lrcore

from .page import Subject, machine, note, subjects, table, timed, write_section
from .quality import perplexity

PAIRINGS = (
    ("fused", "probed"),
    ("modegpt", "probed"),
    ("svd_llm", "probed"),
    ("svd_llm", "uniform"),
)
RATIO = 0.25
TURNS = 25
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
        model = lrcore.load(subject.recipe.model)
        rows = [
            row(model, subject, subject.recipe.with_(method=method, policy=policy, budget=budget))
            for method, policy in PAIRINGS
            for budget in ("latency", "params")
        ]
        words = (
            f"**{subject.title}**, dense perplexity {perplexity(model, subject):.3f}: a share of "
            f"{RATIO:.0%}, of the layers' time over one window of {subject.recipe.seq_len} tokens "
            "or of their parameters. Measured: the network without its output head, dense and "
            f"compressed in turn, median of {TURNS}; {machine()}."
        )
        write_section(f"latency {subject.title}", f"{words}\n\n{table(list(HEADER), rows)}")


def row(model, subject: Subject, recipe: lrcore.Recipe) -> list[str]:
    recipe = recipe.with_(ratio=RATIO)
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
        f"{removed_time(model, small, recipe.seq_len):.0%}",
        f"{perplexity(small, subject):.3f}",
    ]


def removed_time(dense, small, length: int) -> float:
    """The share of the time of a pass over one window that is gone."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    for model in (dense, small):
        seconds(model, tokens)
    return 1 - statistics.median(
        seconds(small, tokens) / seconds(dense, tokens) for _ in range(TURNS)
    )


@torch.inference_mode()
def seconds(model, tokens: torch.Tensor) -> float:
    return timed(lambda: model.network.base_model(input_ids=tokens, use_cache=False))[1]
