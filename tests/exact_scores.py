"""Scores of columns, neurons and matrices with 60 digits."""

from collections.abc import Sequence

import mpmath
from exact_objectives import (
    Exact,
    Matrix,
    Number,
    bias_of,
)
from sixty_digits import (
    moment,
    squares,
)

from lrcore.layers.layer import ACROSS
from lrcore.layers.statistics import TAPS

NAMES = ("q", "k", "v", "o", "gate", "up", "down")


def names_of(e: Exact) -> list[str]:
    return [name for name in NAMES if name in e.layer.matrices()]


def head_moments(e: Exact, name: str, diagonal: bool = False) -> list[Matrix]:
    """Return `E[s s^T]` of the states of each head; diagonal: with uncorrelated inputs."""
    a = e.layer.attention
    count = a.n_q if name == "q" else a.n_kv
    if diagonal:
        second, weight = e.second("attn_in"), e.weight(name).T
        of_inputs = mpmath.diag([second[i, i] for i in range(second.rows)])
        heads = (e.head(weight, i, count) for i in range(count))
        return [head.T * of_inputs * head for head in heads]
    return [moment(e.head(e.states(name), i, count)) for i in range(count)]


def column_scores(
    e: Exact, q: Sequence[Sequence[Number]], k: Sequence[Sequence[Number]], pairs: bool
) -> list[list[Number]]:
    """Return `sum_i q_j k_j` over the query heads of a key head, and over the two columns of a
    pair.
    """
    scores = []
    for g, key_squares in enumerate(k):
        group = range(g * e.group, (g + 1) * e.group)
        single = [
            mpmath.fsum(q[i][j] * key_squares[j] for i in group) for j in range(len(key_squares))
        ]
        half = len(single) // 2
        scores.append(
            [x + y for x, y in zip(single[:half], single[half:], strict=True)] if pairs else single
        )
    return scores


def diagonal(m: Matrix) -> list[Number]:
    return [m[i, i] for i in range(m.rows)]


def magnitudes(e: Exact, name: str, count: int) -> list[list[Number]]:
    """Return sums over the rows of each head, with biases."""
    weight, bias = e.weight(name), bias_of(e.layer.matrices()[name])
    sums = [mpmath.fsum(abs(v) for v in weight[i, :]) + abs(bias[i]) for i in range(weight.rows)]
    size = weight.rows // count
    return [sums[i * size : (i + 1) * size] for i in range(count)]


def vectors(e: Exact, name: str, kind: str) -> list[Number]:
    """Return the sum of magnitudes of each row of a matrix, or of each column of o and down; wanda:
    multiplied by the root mean square of its input.
    """
    weight = e.weight(name) if ACROSS[name] == 1 else e.weight(name).T
    sums = [mpmath.fsum(abs(v) for v in weight[i, :]) for i in range(weight.rows)]
    if kind == "abs":
        return sums
    second = e.second(TAPS[name])
    return [value * mpmath.sqrt(second[j, j]) for j, value in enumerate(sums)]


def neurons(e: Exact, kind: str) -> list[Number]:
    """Return scores of the neurons of the MLP."""
    if kind == "a3":  # E[z_j^2] |w_j|^2
        second, down = e.second("mlp_hidden"), e.weight("down")
        return [second[j, j] * squares(down[:, j]) for j in range(down.cols)]
    names = ("down",) if kind == "wanda" else ("gate", "up", "down")
    matrix_scores = [vectors(e, name, kind) for name in names if name in e.layer.matrices()]
    return [mpmath.fsum(parts) for parts in zip(*matrix_scores, strict=True)]


def turned_squares(e: Exact, name: str) -> list[list[Number]]:
    """Return `E[s_j^2]` of queries or keys after rotary embeddings, with token t at position t."""
    a = e.layer.attention
    count, states = (a.n_q if name == "q" else a.n_kv), e.states(name)
    squares_by_head = []
    for i in range(count):
        head = e.head(states, i, count)
        if a.frequencies is not None:
            head = rotated_states(head, [mpmath.mpf(f) for f in a.frequencies.tolist()])
        squares_by_head.append(diagonal(moment(head)))
    return squares_by_head


def rotated_states(states: Matrix, frequencies: Sequence[Number]) -> Matrix:
    """Apply rotary embeddings at positions 0, 1, 2, ... to the states of a head."""
    half, out = len(frequencies), states * 1
    for t in range(states.rows):
        for j, frequency in enumerate(frequencies):
            cos, sin = mpmath.cos(t * frequency), mpmath.sin(t * frequency)
            out[t, j] = states[t, j] * cos - states[t, j + half] * sin
            out[t, j + half] = states[t, j + half] * cos + states[t, j] * sin
    return out
