"""LatentLLM's algorithm 1 and related objectives with 60 digits: two stacks of heads with a shared
factor each, by alternating eigendecompositions of `d x d` matrices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
from exact_objectives import Exact, Matrix, Number, Objective, bias_of
from sixty_digits import exact, inner, leading, root, rows, squares, trace

from lrcore.methods.latentllm.joint import rotary_offsets, side_ranks

ROUNDS = 8
LEAST = 1e-6  # fraction of the largest eigenvalue below which a head is singular
ENOUGH = mpmath.mpf(10) ** -9  # relative gain of the last round


def alternated(
    left: Callable[[Matrix | None], Matrix],
    right: Callable[[Matrix | None], Matrix],
    ranks: tuple[int, int],
    explained: Callable[[Matrix, Matrix], Number],
    total: Number,
) -> Number:
    """Return the loss after the rounds. left(A_r), right(A_l): the matrices with the leading
    eigenvectors of the other side; None for all directions (eq. 75 and 77).
    """
    a_left, best = leading(left(None), ranks[0]), mpmath.mpf(0)
    for _ in range(ROUNDS):
        a_right = leading(right(a_left), ranks[1])
        a_left = leading(left(a_right), ranks[0])
        before, best = best, explained(a_left, a_right)
        if best - before <= ENOUGH * (total - best):
            break
    return total - best


def joint_scores(e: Exact, metric: Matrix | None, centered: bool, window: int) -> Objective:
    """Return the objective `sum_i sum_delta |P W_q^T Theta W_k P|^2` with shared A_q and A_k, and
    means if centered (eq. 129-142), with errors of the scores over all pairs of tokens if P is the
    root of their moments.
    """
    a = e.layer.attention
    size = e.weight("q").cols
    metric = mpmath.eye(size) if metric is None else metric
    half, mean = root(metric), e.mean("attn_in") if centered else mpmath.zeros(size, 1)
    turns = [mpmath.eye(a.qk_size)]
    if a.frequencies is not None and window:
        turns = [
            exact(rotation)
            for rotation in rotary_offsets(a.frequencies.double(), a.qk_size, window)
        ]

    def head(name: str, i: int, count: int) -> tuple[Matrix, Matrix]:
        """Return W P and the mean state of a head."""
        weight, bias = e.weight(name), bias_of(e.layer.matrices()[name])
        rows_of = list(range(i * a.qk_size, (i + 1) * a.qk_size))
        head_weight, offset = rows(weight, rows_of), rows(bias, rows_of)
        state = head_weight * mean + offset if centered else mpmath.zeros(a.qk_size, 1)
        return head_weight * half, state

    qs = [head("q", i, a.n_q) for i in range(a.n_q)]
    ks = [head("k", g, a.n_kv) for g in range(a.n_kv)]

    def spread(head: tuple[Matrix, Matrix], basis: Matrix | None) -> Matrix:
        part = head[0] if basis is None else head[0] * basis
        return part * part.T + head[1] * head[1].T

    def left(basis: Matrix | None) -> Matrix:
        total = mpmath.zeros(size)
        for g, k in enumerate(ks):
            inside = sum((t * spread(k, basis) * t.T for t in turns), mpmath.zeros(a.qk_size))
            for i in range(g * e.group, (g + 1) * e.group):
                total += qs[i][0].T * inside * qs[i][0]
        return total

    def right(basis: Matrix | None) -> Matrix:
        total = mpmath.zeros(size)
        for g, k in enumerate(ks):
            inside = mpmath.zeros(a.qk_size)
            for i in range(g * e.group, (g + 1) * e.group):
                inside += sum((t.T * spread(qs[i], basis) * t for t in turns), inside * 0)
            total += k[0].T * inside * k[0]
        return total

    def means() -> Matrix:
        """Return the contribution of mean queries, over all directions of the keys."""
        total = mpmath.zeros(size)
        for g, k in enumerate(ks):
            for i in range(g * e.group, (g + 1) * e.group):
                for t in turns:
                    row = qs[i][1].T * t * k[0]
                    total += row.T * row
        return total

    spectra = [sorted(mpmath.eigsy(k * k.T, eigvals_only=True)) for k, _ in ks]
    singular = any(values[0] < LEAST * values[-1] for values in spectra)
    shift = means() if centered else mpmath.zeros(size)
    total_trace = trace(left(None)) + trace(shift)

    def explained(a_left: Matrix, a_right: Matrix) -> Number:
        return inner(left(a_right) * a_left, a_left) + inner(shift * a_right, a_right)

    def best(factor: Any, rank: int) -> Number:
        ranks = side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full)
        return e.once(
            ("joint_qk", rank, centered, window, str(metric[0, 0])),
            lambda: alternated(left, right, ranks, explained, total_trace),
        )

    def error(small: Any, factor: Any, _rank: int) -> Number:
        # With an identity block in each head, a singular head may lose a shift of all scores of a
        # query.
        return e_of_scores(
            e, small, qs, ks, turns, half, mean, centered, factor.per_head and singular
        )

    return Objective(error, best, total_trace, bound=False)


def e_of_scores(
    e: Exact,
    small: Any,
    qs: Sequence[tuple[Matrix, Matrix]],
    ks: Sequence[tuple[Matrix, Matrix]],
    turns: Sequence[Matrix],
    half: Matrix,
    mean: Matrix,
    centered: bool,
    but_shifts: bool,
) -> Number:
    """Return the error of the scores of a layer for inputs with this mean and covariance;
    but_shifts: the error of score differences between keys.
    """
    a = e.layer.attention
    weights = {name: exact(small.matrices()[name].weight) for name in "qk"}
    biases = {name: bias_of(small.matrices()[name]) for name in "qk"}

    def head(name: str, i: int) -> tuple[Matrix, Matrix]:
        rows_of = list(range(i * a.qk_size, (i + 1) * a.qk_size))
        head_weight = rows(weights[name], rows_of)
        state = head_weight * mean + rows(biases[name], rows_of)
        return head_weight * half, state if centered else state * 0

    total = mpmath.mpf(0)
    for g, k in enumerate(ks):
        small_k = head("k", g)
        for i in range(g * e.group, (g + 1) * e.group):
            small_q = head("q", i)
            for t in turns:
                total += squares(qs[i][0].T * t * k[0] - small_q[0].T * t * small_k[0])
                if centered:
                    total += squares(qs[i][1].T * t * k[0] - small_q[1].T * t * small_k[0])
                if centered and not but_shifts:
                    total += squares(qs[i][0].T * t * k[1] - small_q[0].T * t * small_k[1])
    return total


def joint_values(e: Exact, metric: Matrix | None, centered: bool) -> Objective:
    """Return the objective `sum_i |W_o,i W_v,i P|^2` with shared A_o and A_v (eq. 184-188)."""
    a = e.layer.attention
    size, d = e.weight("v").cols, e.weight("o").rows
    half = mpmath.eye(size) if metric is None else root(metric)

    def values(weight: Matrix, g: int) -> Matrix:
        return weight[g * a.v_size : (g + 1) * a.v_size, :] * half

    vs = [values(e.weight("v"), g) for g in range(a.n_kv)]

    def left(basis: Matrix | None) -> Matrix:
        total = mpmath.zeros(d)
        for i in range(a.n_q):
            head_values = vs[i // e.group] if basis is None else vs[i // e.group] * basis
            head_outputs = e.out(i) * head_values
            total += head_outputs * head_outputs.T
        return total

    def right(basis: Matrix | None) -> Matrix:
        total = mpmath.zeros(size)
        for i in range(a.n_q):
            head_reads = e.out(i) if basis is None else basis.T * e.out(i)
            head_outputs = head_reads * vs[i // e.group]
            total += head_outputs.T * head_outputs
        return total

    total_trace = trace(left(None))

    def explained(a_left: Matrix, a_right: Matrix) -> Number:
        return inner(left(a_right) * a_left, a_left)

    def best(factor: Any, rank: int) -> Number:
        ranks = side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full)
        return alternated(left, right, ranks, explained, total_trace)

    def error(small: Any, _factor: Any, _rank: int) -> Number:
        weight, out, total = exact(small.attention.v.weight), mpmath.zeros(d, 1), mpmath.mpf(0)
        old, bias = bias_of(e.layer.attention.v), bias_of(small.attention.v)
        mean = e.mean("attn_in") if centered else mpmath.zeros(size, 1)
        for i in range(a.n_q):
            g, value_rows = (
                i // e.group,
                list(range(i // e.group * a.v_size, (i // e.group + 1) * a.v_size)),
            )
            read = e.out(i, small)
            total += squares(e.out(i) * vs[g] - read * values(weight, g))
            if centered:
                out += e.out(i) * (rows(e.weight("v"), value_rows) * mean + rows(old, value_rows))
                out -= read * (rows(weight, value_rows) * mean + rows(bias, value_rows))
        if centered:
            total += squares(out + bias_of(e.layer.attention.o) - bias_of(small.attention.o))
        return total

    return Objective(error, best, total_trace, bound=False)
