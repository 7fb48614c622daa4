"""Objectives of methods that narrow heads and MLP with 60 digits: A3, CLOVER and MoDeGPT."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mpmath
import torch
from exact_objectives import (
    Exact,
    Matrix,
    Number,
    Objective,
    bias_of,
    per_head_outputs,
    read_by,
    scores,
    selection,
)
from exact_scores import (
    column_scores,
    diagonal,
    head_moments,
    magnitudes,
    neurons,
    turned_squares,
    vectors,
)
from sixty_digits import (
    exact,
    inner,
    moment,
    squares,
    stacked,
    symmetric_tails,
)


def a3(e: Exact, options: Any) -> dict[str, Objective]:
    a, rotary = e.layer.attention, e.layer.attention.position == "rotary"
    solved = {}
    if rotary and options.scores != "random" and options.qk == "both":
        qs, ks = (
            [diagonal(m) for m in head_moments(e, name, options.scores == "wanda")] for name in "qk"
        )
        if options.scores == "abs":
            qs, ks = magnitudes(e, "q", a.n_q), magnitudes(e, "k", a.n_kv)
        solved["qk"] = selection(column_scores(e, qs, ks, pairs=True), step=2)
    elif not rotary and options.qk == "both":
        solved["qk"] = scores(e)
    if options.ov == "heads":
        grams = [moment(e.head(e.seen("attn_out"), i, a.n_q)) for i in range(a.n_q)]
        solved["ov"] = per_head_outputs(e, grams if e.group == 1 else head_moments(e, "v"))
    elif options.ov == "inputs":
        solved["ov"] = per_head_outputs(e, head_moments(e, "v"))
    elif options.ov == "weights":
        solved["ov"] = clover(e, None)["ov"]
    elif options.ov == "overall":
        solved["ov"] = output_components(e)
    elif options.ov in ("abs", "wanda"):
        solved["ov"] = value_columns(e, options.ov)
    if options.mlp in ("a3", "abs", "wanda"):
        solved["mlp"] = selection([neurons(e, options.mlp)])
    return solved


def output_components(e: Exact) -> Objective:
    """Return the objective of the attention output on its principal directions, the rows of v's
    maps.
    """
    dense, gram = e.weight("o"), e.second("attn_out")
    output_gram = dense * gram * dense.T
    minima = symmetric_tails(output_gram)

    def error(_small: Any, factor: Any, rank: int) -> Number:
        basis = exact(factor.basis[:, :rank])
        residual = mpmath.eye(dense.rows) - basis * basis.T
        return inner(residual * output_gram, residual)

    return Objective(error, lambda _f, rank: minima[rank], minima[0])


def value_columns(e: Exact, kind: str) -> Objective:
    """Return the objective of columns of value heads, selected together with those of the output
    projection.
    """
    a = e.layer.attention
    read = vectors(e, "o", kind)
    value_scores = vectors(e, "v", kind) if kind == "abs" else [mpmath.mpf(0)] * (a.n_kv * a.v_size)
    per_head = [
        [
            value_scores[g * a.v_size + j]
            + mpmath.fsum(read[i * a.v_size + j] for i in range(g * e.group, (g + 1) * e.group))
            for j in range(a.v_size)
        ]
        for g in range(a.n_kv)
    ]
    chosen = selection(per_head)

    def error(small: Any, factor: Any, rank: int) -> Number:
        return chosen.error(small, replace_order(factor), rank)

    return Objective(error, chosen.best, chosen.total)


class replace_order:
    """The order of columns in maps of ones."""

    def __init__(self, factor: Any) -> None:
        self.order = factor.v_maps.argmax(-1)


def clover(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objectives of `W_q,i^T W_k,i` and `W_o,i W_v,i`, with a bias as an additional
    input.
    """
    blind = Exact(replace(e.case, x=torch.eye(e.case.x.shape[1], dtype=torch.float64)))
    a = e.layer.attention

    def states(name: str) -> Matrix:
        return stacked([e.weight(name).T, bias_of(e.layer.matrices()[name]).T])

    blind._made = {("states", name): states(name) for name in "qkv"} | {
        name: e.weight(name) for name in "ov"
    }
    heads = [e.head(states("v"), g, a.n_kv) for g in range(a.n_kv)]
    solved = {"ov": per_head_outputs(blind, [head.T * head for head in heads])}
    if a.position != "rotary":
        blind.states = lambda name, layer=None: (  # type: ignore[method-assign]
            blind._made["states", name]
            if layer is None
            else stacked(
                [exact(layer.matrices()[name].weight).T, bias_of(layer.matrices()[name]).T]
            )
        )
        solved["qk"] = scores(blind)
    return solved


def modegpt(e: Exact, options: Any) -> dict[str, Objective]:
    a, rotary = e.layer.attention, e.layer.attention.position == "rotary"
    squared = column_scores(e, turned_squares(e, "q"), turned_squares(e, "k"), pairs=False)
    root_scores = [[mpmath.sqrt(x) for x in head_squares] for head_squares in squared]
    if rotary:
        half = a.qk_size // 2
        root_scores = [
            [head_scores[j] + head_scores[j + half] for j in range(half)]
            for head_scores in root_scores
        ]
    gram = e.second("mlp_hidden")
    ridge = mpmath.mpf(1) / e.case.moments.tokens
    inverse = mpmath.inverse(gram + ridge * mpmath.eye(gram.rows))
    values = head_moments(e, "v")
    return {
        "qk": selection(root_scores, step=2 if rotary else 1),
        "ov": per_head_outputs(e, values) if e.group == 1 else principal_values(e, values),
        "mlp": selection([[1 - ridge * inverse[j, j] for j in range(gram.rows)]])
        + read_by(e, "down", lambda factor, rank: factor.order[:rank].tolist()),
    }


def principal_values(e: Exact, grams: Sequence[Matrix]) -> Objective:
    """Return the objective of each value head on its principal directions V, `T = V^T`, `W^_o,i =
    W_o,i V`.
    """
    tails = [symmetric_tails(gram) for gram in grams]

    def error(small: Any, factor: Any, rank: int) -> Number:
        total = mpmath.mpf(0)
        for g, gram in enumerate(grams):
            maps = exact(factor.v_maps[g, :rank])
            residual = mpmath.eye(gram.rows) - maps.T * maps
            total += inner(residual * gram, residual)
            for i in range(g * e.group, (g + 1) * e.group):
                total += squares(e.out(i, small) - e.out(i) * maps.T)
        return total

    def best(_factor: Any, rank: int) -> Number:
        return mpmath.fsum(head_tails[rank] for head_tails in tails)

    return Objective(error, best, mpmath.fsum(head_tails[0] for head_tails in tails))
