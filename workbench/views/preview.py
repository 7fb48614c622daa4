"""Sentences about a job before it starts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lrcore

from .. import words
from ..base.numbers import count, megabytes, plural
from ..state.keys import BYTES
from .run_text import layer_list


def run_summary(recipe: lrcore.Recipe, size: dict[str, Any]) -> str:
    """Return a paragraph, in Markdown, about the model that a recipe makes.

    size: as `RankPlan.summary` returns it; empty if there is no plan.
    """
    budget = size.get("budget", recipe.budget)
    article = "" if budget in ("auto", "all_params") else "the "
    policy = recipe.policy
    if recipe.temperature:
        policy += words.compress.AT_TEMPERATURE.format(recipe.temperature)
    fields = recipe.to_dict() | {
        "policy": policy,
        "budget": article + words.allocation.budget(budget),
    }
    removes = words.compress.REMOVES_BYTES if budget == BYTES else words.compress.REMOVES
    sentences = [removes.format(**fields)]
    if size:
        sentences.append(
            words.compress.SIZE_CHANGE.format(
                megabytes(size["dense_megabytes"]),
                megabytes(size["megabytes"]),
                count(size["dense_kv_bytes_per_token"]),
                count(size["kv_bytes_per_token"]),
            )
        )
    if recipe.rank_overrides:
        ranks = plural(len(recipe.rank_overrides), "rank")
        sentences.append(words.compress.MANUAL_RANKS.format(ranks))
    return " ".join(sentences)


def run_protocol(recipe: lrcore.Recipe, evaluation: lrcore.EvaluationSettings | None) -> str:
    """Return a paragraph about the calibration, measurement and storage of a run.

    evaluation: None if the run is not measured.
    """
    sentences = [words.compress.CALIBRATED.format(**recipe.to_dict())]
    if recipe.calibration_mode == "sequential":
        sentences.append(words.compress.SEQUENTIAL)
    if evaluation:
        protocol = words.compare_and_runs.protocol(asdict(evaluation))
        sentences.append(words.compress.THEN_MEASURED.format(protocol))
    return " ".join([*sentences, words.compress.RUN_IS_KEPT])


def pruning(
    influence: Sequence[float], pruned: Sequence[int], criterion: str, size: dict[str, Any]
) -> str:
    """Return sentences about the effect of pruning layers.

    influence: Block Influence of each layer. pruned: the layers with the lowest influence; for the
    criterion "loss", only their number counts. size: as `Account.to_dict` returns it.
    """
    if criterion == "influence":
        sentence = words.compress.PRUNES.format(
            layers=layer_list(pruned),
            least=", ".join(f"{influence[layer]:.3g}" for layer in pruned),
            most=max(influence),
        )
    else:
        sentence = words.compress.PRUNES_LATER.format(count=len(pruned), layer_count=len(influence))
    figures = [
        as_text(size[f"{prefix}{name}"])
        for name, as_text in (
            ("parameters", count),
            ("megabytes", megabytes),
            ("kv_bytes_per_token", count),
        )
        for prefix in ("dense_", "")
    ]
    estimate = "" if criterion == "influence" else words.compress.EQUAL_LAYERS
    return sentence + words.compress.PRUNED_SIZE.format(*figures, estimate)


def slicing(size: dict[str, Any], dense: Any) -> str:
    """Return a sentence about the effect of slicing the hidden size.

    size: as `sliced_size` returns it. dense: the size of the dense model.
    """
    counts = (
        dense.decoder_linear,
        size["decoder_parameters"],
        dense.parameters,
        size["parameters"],
    )
    weights = [megabytes(number * dense.bytes_per_value / 1e6) for number in counts[2:]]
    grows = size["parameters"] > dense.parameters
    return words.compress.SLICES.format(
        *map(count, counts), *weights, words.compress.SLICE_GROWS if grows else "", **size
    )


def sharing(remaining: int, dense: int, group: int) -> str:
    """Return a sentence about the effect of shared bases on the decoder-linear parameters."""
    removed = 1 - remaining / dense
    return words.compress.SHARES.format(count(dense), count(remaining), removed, group)
