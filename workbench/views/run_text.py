"""Sentences about runs: results, history, standard architectures."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore
from lrcore.recipes.history import (
    Healed,
    LayersDropped,
    Quantized,
    SharedBases,
    Sliced,
    StandardFit,
    Step,
    last_step,
)
from lrcore.runs.runs import Run

from .. import words
from ..base import numbers
from ..state.sweep_runs import find_evaluation

MOST_NAMED = 4  # runs named in a sentence


def rows(first: int, end: int, total: int) -> str:
    """Return the range of the rows on the page of a table; first is counted from 0."""
    if not total:
        return "0 runs"
    if end - first == total:
        return numbers.plural(total, "run")
    return f"{first + 1}–{end} of {total}"


def shorter(text: str, length: int) -> str:
    """Return the text, cut to `length` characters; more of the end stays, as paths differ there."""
    if len(text) <= length:
        return text
    head = (length - 1) // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def outcome(run: Run, evaluation: Mapping[str, Any] | None) -> str:
    """Return a line with the perplexity ± standard error, change and size."""
    text = words.compare_and_runs
    value = text.NOT_FINITE if evaluation else text.NOT_MEASURED
    if evaluation and evaluation["perplexity"]:
        value = measured_perplexity(evaluation)
        dense = evaluation["dense_perplexity"]
        value += (
            f" ({numbers.relative_change(evaluation['perplexity'] / dense - 1)})" if dense else ""
        )
    return f"{made_by(run)} → {value}, {numbers.megabytes(run.account.model.megabytes)}"


def lowest(runs: Sequence[Run], settings: lrcore.EvaluationSettings | None) -> str:
    """Return the number of runs, and the outcome of the run with the lowest perplexity."""
    evaluated = [(run, settings and find_evaluation(run, settings)) for run in runs]
    measured = [
        (evaluation["perplexity"], run, evaluation)
        for run, evaluation in evaluated
        if evaluation and evaluation["perplexity"]
    ]
    if not measured:
        return f"{len(runs)} runs"
    _, run, evaluation = min(measured, key=lambda row: row[0])
    return f"{len(runs)} runs; lowest perplexity: {outcome(run, evaluation)}"


def measured_perplexity(evaluation: Mapping[str, Any]) -> str:
    """Return a perplexity ± the standard error of its difference to the dense model's."""
    error = evaluation.get("delta_error")
    value = evaluation["perplexity"]
    spread = "" if error is None else f" ± {numbers.perplexity(value * error)}"
    return f"{numbers.perplexity(value)}{spread}"


def made_by(run: Run) -> str:
    """Return method, ratio and later steps of a run."""
    return " ".join((run.method, ratio(run), *later_steps(run)))


def ratio(run: Run) -> str:
    """Return the requested ratio; for a run without ranks, the fraction that was removed."""
    account = run.account
    return f"{account.achieved if account.requested is None else account.requested:.0%}"


def later_steps(run: Run) -> list[str]:
    """Return the steps after the first step: healed, quantized."""
    labels = []
    for step in run.history[1:]:
        labels += ["healed"] if isinstance(step, Healed) else []
        labels += [f"{step.bits} bit"] if isinstance(step, Quantized) else []
    return labels


def times(dense: Mapping[str, Sequence[float]], device: str) -> str:
    """Return how the times of runs were measured: device, and time per token of the dense models.

    dense: for each dense model the times in ms per token, one for each run measured with it.
    """
    parts = []
    for model, milliseconds in dense.items():
        low, high = f"{min(milliseconds):.3g}", f"{max(milliseconds):.3g}"
        name = f" ({words.spectra.short_name(model)})" if len(dense) > 1 else ""
        parts.append(f"{low if low == high else f'{low} to {high}'} ms{name}")
    return words.compare_and_runs.TIMES.format(f" on {device}" if device else "", ", ".join(parts))


def without_times(names: Sequence[str]) -> str:
    """Return a sentence about runs without a time; "" if all runs have a time."""
    if not names:
        return ""
    unnamed = len(names) - MOST_NAMED
    listed = ", ".join(names[:MOST_NAMED])
    if unnamed > 0:
        listed += words.compare_and_runs.AND_MORE.format(unnamed)
    return words.compare_and_runs.NO_TIMES.format(listed)


def standard_fit(fit: StandardFit | None, is_dense: bool = False) -> str:
    """Return whether a standard architecture can load the model, and why not.

    The sentence names a width of the MLPs that can be loaded, if there is one. is_dense: True if
    the model has no compressed layers, such as a model with fewer layers.
    """
    text = words.compare_and_runs
    if fit is None:
        return text.STANDARD_SHORT if is_dense else text.STANDARD_UNKNOWN
    if fit.qualifies:
        return text.STANDARD_SHORT if is_dense else text.STANDARD_YES
    width = next((rank for (_, name), rank in (fit.ranks or {}).items() if name == "mlp"), None)
    sentence = text.STANDARD_NOT.format("; ".join(fit.reasons))
    return sentence + (text.STANDARD_WIDTH.format(width) if width else "")


def healed(history: Sequence[Step]) -> str:
    """Return a sentence about the last healing; "" without one."""
    step = last_step(history, Healed)
    if step is None:
        return ""
    text = words.compare_and_runs
    duration = words.compress.duration(step.seconds)
    sentence = text.HEALED.format(step.steps, step.data, numbers.count(step.tokens), duration)
    if step.perplexity_before and step.perplexity_after:
        sentence += text.HEALED_PERPLEXITY.format(
            text.protocol(step.test_protocol),
            numbers.perplexity(step.perplexity_before),
            numbers.perplexity(step.perplexity_after),
        )
    return f"{sentence}."


def pruned(history: Sequence[Step]) -> str:
    """Return a sentence about the layers that were pruned last; "" if none were."""
    step = last_step(history, LayersDropped)
    if step is None:
        return ""
    text = words.compare_and_runs
    return text.PRUNED.format(
        layers=layer_list(step.gone),
        order=text.IN_THIS_ORDER if len(step.gone) > 1 else "",
        layer_count=step.of,
        by=words.compress.PRUNE_CRITERIA.get(step.by, step.by),
    )


def sliced(history: Sequence[Step]) -> str:
    """Return a sentence about the sliced hidden size; "" if it was not sliced."""
    step = last_step(history, Sliced)
    if step is None:
        return ""
    residual = step.residual_parameters
    text = words.compare_and_runs
    matrices = text.SLICED_RESIDUAL.format(numbers.count(residual)) if residual else ""
    return text.SLICED.format(matrices, **step.fields_dict())


def shared(step: SharedBases) -> str:
    """Return a sentence about the bases that layers share."""
    return words.compare_and_runs.SHARED.format(
        group=step.group, requested=step.requested, removed=step.removed
    )


def layer_list(layers: Sequence[int]) -> str:
    """Return the numbers of layers, at the beginning of a sentence."""
    return f"Layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
