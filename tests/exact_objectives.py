"""Objectives of slots and their minima with 60 digits, used for the equations of papers in
`exact_references.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mpmath
import torch
from sixty_digits import (
    columns,
    exact,
    inner,
    left_after,
    lost,
    moment,
    root,
    rows,
    squares,
    stacked,
    sums_after,
    symmetric_tails,
    trace,
)
from toy_layer import Toy

from lrcore.layers.layer import Layer, Projection
from lrcore.layers.statistics import TAPS

Matrix = mpmath.matrix
Number = mpmath.mpf
# A refit adds this fraction of the squares of an input as noise, so that errors of float32 products
# are not fitted (`lrcore.layers.linalg.dampings`).
NOISE = 1e-8


@dataclass(frozen=True)
class Objective:
    """Error of a slot and its minimum.

    error: of a layer with this slot at a rank, given the factor of the slot. best: its minimum.
    total: the error of a layer without the slot. bound: whether the minimum is a lower bound; for
    an alternation, a different path can be below it.
    """

    error: Callable[[Layer, Any, int], Number]
    best: Callable[[Any, int], Number]
    total: Number
    bound: bool = True

    def __add__(self, other: "Objective") -> "Objective":
        """Return the sum of two objectives with a common minimizer."""
        return Objective(
            lambda *args: self.error(*args) + other.error(*args),
            lambda *args: self.best(*args) + other.best(*args),
            self.total + other.total,
        )


class Exact:
    """Activations, weights and moments of a toy layer."""

    def __init__(self, case: Toy) -> None:
        self.case, self.layer = case, case.layer
        self._seen = {"attn_in": case.x, "mlp_in": case.x, "attn_out": case.a}
        self._seen["mlp_hidden"] = case.z
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def seen(self, tap: str) -> Matrix:
        """Return the tokens, [N, n]."""
        return self.once(("seen", tap), lambda: exact(self._seen[tap]))

    def second(self, tap: str) -> Matrix:
        return self.once(("second", tap), lambda: moment(self.seen(tap)))

    def mean(self, tap: str) -> Matrix:
        """Return the mean, [n, 1]."""
        x = self.seen(tap)
        return self.once(("mean", tap), lambda: (mpmath.ones(1, x.rows) * x).T / x.rows)

    def covariance(self, tap: str) -> Matrix:
        mean = self.mean(tap)
        return self.once(("covariance", tap), lambda: self.second(tap) - mean * mean.T)

    def weight(self, name: str) -> Matrix:
        return self.once(name, lambda: exact(self.layer.matrices()[name].weight))

    def states(self, name: str, layer: Layer | None = None) -> Matrix:
        """Return the output of a projection of the layer's input before rotary embeddings, [N,
        out].
        """
        if layer is None:
            return self.once(("states", name), lambda: self.states(name, self.layer))
        projection = layer.matrices()[name]
        out = self.seen(TAPS[name]) * exact(projection.weight).T
        return out + mpmath.ones(out.rows, 1) * bias_of(projection).T

    @cached_property
    def group(self) -> int:
        return self.layer.attention.group

    def head(self, m: Matrix, index: int, of: int) -> Matrix:
        """Return the columns of a head."""
        size = m.cols // of
        return m[:, index * size : (index + 1) * size]

    def out(self, index: int, layer: Layer | None = None) -> Matrix:
        """Return the part of the output projection for a query head, [d, s]."""
        weight = self.weight("o") if layer is None else exact(layer.attention.o.weight)
        return self.head(weight, index, self.layer.attention.n_q)


def bias_of(projection: Projection) -> Matrix:
    """Return the bias, [out, 1], or zeros without one."""
    if projection.bias is None:
        return mpmath.zeros(projection.weight.shape[0], 1)
    return exact(projection.bias)


def fixed(values: Sequence[Number]) -> Callable[[Any, int], Number]:
    """Return a function that gives the minimum by rank, from 0 on, constant after the last."""
    return lambda _factor, rank: values[min(rank, len(values) - 1)]


def matrices(
    e: Exact,
    names: Sequence[str],
    gram: Matrix | None,
    mean: Matrix | None = None,
    outputs: Matrix | None = None,
) -> Objective:
    """Return the objective `tr(D G D^T)` of the error D of stacked matrices with the same input; G
    None: the identity. mean: of the input, if it is moved into the bias, which is otherwise
    unchanged. outputs: R for `tr(D^T R D G)`.
    """
    full = stacked([e.weight(name) for name in names])
    side = mpmath.eye(full.rows) if outputs is None else root(outputs)
    dense = side * full
    gram = mpmath.eye(dense.cols) if gram is None else gram
    smaller_gram = dense * gram * dense.T if dense.rows <= dense.cols else None
    if smaller_gram is None:  # use the smaller side
        half = root(gram)
        smaller_gram = half * dense.T * dense * half
    minima = symmetric_tails(smaller_gram)

    def error(small: Layer, _factor: Any, _rank: int) -> Number:
        gap = full - stacked([exact(small.matrices()[name].weight) for name in names])
        moved = stacked(
            [bias_of(e.layer.matrices()[n]) - bias_of(small.matrices()[n]) for n in names]
        )
        shift = moved if mean is None else gap * mean + moved
        return lost(side * gap, gram) + squares(shift)

    return Objective(error, fixed(minima), minima[0])


def scores(e: Exact, centered: bool = False, rank_of: Callable[[int], int] = int) -> Objective:
    """Return the objective of the scores of all pairs of tokens, query heads of a group together;
    centered: without the mean over keys of a query.
    """
    a = e.layer.attention

    def sides(layer: Layer | None, g: int) -> tuple[Matrix, Matrix]:
        k = e.head(e.states("k", layer), g, a.n_kv)
        if centered:
            k = k - mpmath.ones(k.rows, 1) * ((mpmath.ones(1, k.rows) * k) / k.rows)
        query_heads = range(g * e.group, (g + 1) * e.group)
        return stacked([e.head(e.states("q", layer), i, a.n_q) for i in query_heads]), k

    minima = [mpmath.mpf(0)] * (a.qk_size + 1)
    for g in range(a.n_kv):
        q, k = sides(None, g)
        half = root(k.T * k)
        for rank, value in enumerate(symmetric_tails(half * (q.T * q) * half)):
            minima[rank] += value

    def error(small: Layer, _factor: Any, _rank: int) -> Number:
        total = mpmath.mpf(0)
        for g in range(a.n_kv):
            (q, k), (small_q, small_k) = sides(None, g), sides(small, g)
            left, right = side_by_side(q, -small_q), side_by_side(k, small_k)
            total += inner(left.T * left, right.T * right)
        return total

    return Objective(error, lambda _f, rank: minima[rank_of(rank)], minima[0])


def side_by_side(a: Matrix, b: Matrix) -> Matrix:
    return stacked([a.T, b.T]).T


def per_head_outputs(e: Exact, grams: Sequence[Matrix]) -> Objective:
    """Return the objective `sum_i tr(D_i G_g D_i^T)`, `D_i = W_o,i - W^_o,i T_g`; grams: of the
    states of each value head.
    """
    a, minima = e.layer.attention, [mpmath.mpf(0)] * (e.layer.attention.v_size + 1)
    for g, gram in enumerate(grams):
        query_heads = range(g * e.group, (g + 1) * e.group)
        read = sum((e.out(i).T * e.out(i) for i in query_heads), mpmath.zeros(gram.rows))
        half = root(gram)
        for rank, value in enumerate(symmetric_tails(half * read * half)):
            minima[rank] += value

    def error(small: Layer, factor: Any, rank: int) -> Number:
        total = mpmath.mpf(0)
        for i in range(a.n_q):
            maps = exact(factor.v_maps[i // e.group, :rank])
            total += lost(e.out(i) - e.out(i, small) * maps, grams[i // e.group])
        return total

    return Objective(error, fixed(minima), minima[0])


def selection(
    per_head: Sequence[Sequence[Number]], step: int = 1, order: str = "order"
) -> Objective:
    """Return the objective of a selection, the sum of the removed scores; the first entries of
    `factor.order` [heads, n] or [n] are selected.
    """
    minima = [sums_after(head_scores) for head_scores in per_head]

    def error(_small: Layer, factor: Any, rank: int) -> Number:
        ordered = getattr(factor, order)
        ordered = ordered if ordered.dim() == 2 else ordered.unsqueeze(0)
        gone = ordered[:, rank // step :].tolist()
        return mpmath.fsum(
            head_scores[j] for head_scores, js in zip(per_head, gone, strict=True) for j in js
        )

    def best(_factor: Any, rank: int) -> Number:
        return mpmath.fsum(head_minima[rank // step] for head_minima in minima)

    return Objective(error, best, mpmath.fsum(head_minima[0] for head_minima in minima))


def read_by(
    e: Exact,
    name: str,
    select_columns: Callable[[Any, int], Sequence[int]],
    metric: Matrix | None = None,
    centered: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
    refit: bool = True,
) -> Objective:
    """Return the objective of the output or down projection with the columns
    `select_columns(factor, rank)` of its input: compared with least squares, or, without refit,
    with the other columns fixed at their mean.

    metric: of the output; centered: the mean is moved into the bias. groups: the columns that are
    removed together, if columns are removed one group at a time; the minimum for a single removed
    group is then known.
    """
    dense, tap = e.weight(name), TAPS[name]
    gram = e.covariance(tap) if centered else e.second(tap)
    gram = noisy(gram) if refit else gram
    metric = mpmath.eye(dense.rows) if metric is None else metric

    def weighed(gap: Matrix, inputs: Matrix) -> Number:
        return inner(metric * gap * inputs, gap)

    def without(kept_columns: Sequence[int]) -> Number:
        if refit:
            return weighed(dense, left_after(gram, kept_columns))
        gone = [j for j in range(dense.cols) if j not in set(kept_columns)]
        silenced = columns(dense, gone) * rows(mpmath.eye(dense.cols), gone)
        return weighed(silenced, gram)

    def best(factor: Any, rank: int) -> Number:
        kept_columns = select_columns(factor, rank)
        if groups is not None and len(kept_columns) == dense.cols - len(groups[0]):
            return e.once(
                ("one gone", name, refit, centered),
                lambda: min(
                    without([j for j in range(dense.cols) if j not in group]) for group in groups
                ),
            )
        return without(kept_columns)

    def error(small: Layer, factor: Any, rank: int) -> Number:
        kept_columns, projection = select_columns(factor, rank), small.matrices()[name]
        gap = dense - exact(projection.weight) * rows(mpmath.eye(dense.cols), kept_columns)
        shift = bias_of(e.layer.matrices()[name]) - bias_of(projection)
        if centered:
            shift = shift + gap * e.mean(tap)
        return weighed(gap, gram) + inner(metric * shift, shift)

    return Objective(error, best, weighed(dense, gram))


def noisy(gram: Matrix) -> Matrix:
    return gram + NOISE * mpmath.diag([gram[i, i] for i in range(gram.rows)])


def narrowed_refit(e: Exact) -> Objective:
    """Return the objective of the output projection on narrowed head outputs `T a`, compared with
    least squares.
    """
    a, dense = e.layer.attention, e.weight("o")
    gram, mean = e.covariance("attn_out"), e.mean("attn_out")

    def narrow(factor: Any, rank: int) -> Matrix:
        maps = factor.v_maps[:, :rank].repeat_interleave(a.group, 0)
        return exact(torch.block_diag(*maps))

    def best(factor: Any, rank: int) -> Number:
        stacked_outputs = stacked([narrow(factor, rank), dense])
        residual = left_after(stacked_outputs * gram * stacked_outputs.T, range(a.n_q * rank))
        return trace(residual[a.n_q * rank :, a.n_q * rank :])

    def error(small: Layer, factor: Any, rank: int) -> Number:
        o = small.attention.o
        gap = dense - exact(o.weight) * narrow(factor, rank)
        return lost(gap, gram) + squares(gap * mean + bias_of(e.layer.attention.o) - bias_of(o))

    return Objective(error, best, lost(dense, gram))
