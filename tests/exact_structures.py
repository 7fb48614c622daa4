"""Objectives of methods that remove complete heads and neurons, with 60 digits."""

from collections.abc import Callable
from typing import Any

import mpmath
from exact_objectives import (
    Exact,
    Number,
    Objective,
    read_by,
    selection,
)
from exact_scores import (
    diagonal,
    names_of,
    vectors,
)
from sixty_digits import (
    columns,
    exact,
    inner,
    rows,
    squares,
)

from lrcore.layers.statistics import TAPS


def inputs_of(e: Exact) -> list[list[int]]:
    """Return the columns of the output projection that belong to the queries of each kv head."""
    a = e.layer.attention
    size = e.group * a.v_size
    return [list(range(g * size, (g + 1) * size)) for g in range(a.n_kv)]


def kept_inputs(e: Exact) -> Callable[[Any, int], list[int]]:
    groups = inputs_of(e)

    def input_columns(factor: Any, rank: int) -> list[int]:
        return [j for g in sorted(factor.order[:rank].tolist()) for j in groups[g]]

    return input_columns


def kept_neurons(factor: Any, rank: int) -> list[int]:
    return sorted(factor.order[:rank].tolist())


def flap(e: Exact, options: Any) -> dict[str, Objective]:
    matrix_scores = {}
    for name in ("o", "down"):
        second, spread = e.second(TAPS[name]), e.covariance(TAPS[name])
        weight = e.weight(name)
        sums = [mpmath.fsum(abs(v) for v in weight[:, j]) for j in range(weight.cols)]
        matrix_scores[name] = {
            "wifv": [spread[j, j] * squares(weight[:, j]) for j in range(weight.cols)],
            "ifv": diagonal(spread),
            "wifn": [mpmath.sqrt(second[j, j]) * s for j, s in enumerate(sums)],
        }[options.metric]
    heads = [
        mpmath.fsum(matrix_scores["o"][j] ** 2 for j in head_inputs) for head_inputs in inputs_of(e)
    ]
    return {
        "heads": selection([heads]) + read_by(e, "o", kept_inputs(e), centered=True, refit=False),
        "mlp": selection([matrix_scores["down"]])
        + read_by(e, "down", kept_neurons, centered=True, refit=False),
    }


def llm_pruner(e: Exact, options: Any) -> dict[str, Objective]:
    if options.scores == "random":
        return {}
    kind, matrix_scores = options.scores, {}
    for name in names_of(e):
        if kind in ("abs", "wanda"):
            matrix_scores[name] = (
                vectors(e, name, kind) if kind == "abs" or name in ("o", "down") else []
            )
        else:
            matrix_scores[name] = [abs(v) for v in exact(e.case.moments.values[name, kind])]
    a = e.layer.attention

    def of_group(name: str, g: int) -> Number:
        flat_scores, count = matrix_scores[name], a.n_kv
        size = len(flat_scores) // count
        return mpmath.fsum(flat_scores[g * size : (g + 1) * size])

    heads = [mpmath.fsum(of_group(name, g) for name in "qkvo") for g in range(a.n_kv)]
    mlp_scores = [matrix_scores[name] for name in ("gate", "up", "down") if matrix_scores.get(name)]
    return {
        "heads": selection([heads]),
        "mlp": selection([[mpmath.fsum(parts) for parts in zip(*mlp_scores, strict=True)]]),
    }


def llm_surgeon(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objectives `tr(D G D^T A)`: the remaining columns compensate for the removed ones;
    K-OBD: they do not.
    """
    curvature = {name: exact(e.case.moments.values[name, "curvature"]) for name in ("o", "down")}
    if options.update:
        alone = [[j] for j in range(e.weight("down").cols)]
        return {
            "heads": read_by(e, "o", kept_inputs(e), curvature["o"], groups=inputs_of(e)),
            "mlp": read_by(
                e,
                "down",
                lambda factor, rank: factor.order[:rank].tolist(),
                curvature["down"],
                groups=alone,
            ),
        }
    costs = {"heads": [], "mlp": []}
    for slot, name, groups in (
        ("heads", "o", inputs_of(e)),
        ("mlp", "down", [[j] for j in range(e.weight("down").cols)]),
    ):
        weight, second = e.weight(name), e.second(TAPS[name])
        for group in groups:
            part = columns(weight, group)
            costs[slot].append(
                inner(curvature[name] * part * rows(columns(second, group), group), part)
            )
    return {slot: selection([group_costs]) for slot, group_costs in costs.items()}
