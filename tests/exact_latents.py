"""Objectives of methods that replace keys and values by latents, with 60 digits."""

from typing import Any

import mpmath
from exact_objectives import (
    Exact,
    Matrix,
    Number,
    Objective,
    bias_of,
    matrices,
)
from exact_scores import (
    column_scores,
    head_moments,
    turned_squares,
)
from sixty_digits import (
    columns,
    exact,
    inner,
    moment,
    root,
    rows,
    squares,
    stacked,
    symmetric_tails,
    trace,
)


def care(e: Exact, options: Any) -> dict[str, Objective]:
    gram = None
    if options.whitening != "identity":
        second = e.second("attn_in")
        level = trace(second) / second.rows
        alpha = mpmath.mpf(options.shrinkage)
        gram = (1 - alpha) * second + alpha * level * mpmath.eye(second.rows)
        gram = gram * gram if options.whitening == "covariance" else gram
    if options.joint:
        return {"kv": matrices(e, ("k", "v"), gram)}
    if options.group:
        return {name: grouped(e, name, options.group, gram) for name in "kv"}
    return {name: matrices(e, (name,), gram) for name in "kv"}


def grouped(e: Exact, name: str, group: int, gram: Matrix) -> Objective:
    """Return the objective of Palu: groups of kv heads with separate factors of the same rank."""
    a, dense = e.layer.attention, e.weight(name)
    groups, size = a.n_kv // group, dense.rows // (a.n_kv // group)
    parts = [dense[g * size : (g + 1) * size, :] for g in range(groups)]
    tails = [symmetric_tails(part * gram * part.T) for part in parts]

    def error(small: Any, _factor: Any, _rank: int) -> Number:
        gap = dense - exact(small.matrices()[name].weight)
        return inner(gap * gram, gap)

    def best(_factor: Any, rank: int) -> Number:
        return mpmath.fsum(group_tails[rank // groups] for group_tails in tails)

    return Objective(error, best, mpmath.fsum(group_tails[0] for group_tails in tails))


def mha2mla(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objective of the selected rotary pairs, `sum_i (E |q_i,j|^2 E |k_j|^2)^{1/2}`, and
    of the other weights.
    """
    a = e.layer.attention
    half = a.qk_size // 2
    ranked = None
    if a.position == "rotary" and options.pairs == "norm":
        qs, ks = (
            [
                [mpmath.sqrt(head_squares[j] + head_squares[j + half]) for j in range(half)]
                for head_squares in all_squares
            ]
            for all_squares in (turned_squares(e, "q"), turned_squares(e, "k"))
        )
        ranked = column_scores(e, qs, ks, pairs=False)

    def rest_of(factor: Any) -> Matrix:
        turning = {
            g * a.qk_size + j + side
            for g, head_pairs in enumerate(factor.pairs.tolist())
            for j in head_pairs
            for side in (0, half)
        }
        still = [i for i in range(e.weight("k").rows) if i not in turning]
        parts = [rows(e.weight("k"), still)] if still else []
        return stacked([*parts, *([] if options.split else [e.weight("v")])])

    def turning_loss(factor: Any) -> Number:
        if ranked is None:
            return mpmath.mpf(0)
        kept_pairs = factor.pairs.tolist()
        return mpmath.fsum(
            score
            for g, head_scores in enumerate(ranked)
            for j, score in enumerate(head_scores)
            if j not in kept_pairs[g]
        )

    def best(factor: Any, rank: int) -> Number:
        residual = rest_of(factor)
        minimum = symmetric_tails(residual.T * residual)[rank]
        if ranked is None:
            return minimum
        count = len(factor.pairs[0])
        return minimum + mpmath.fsum(
            mpmath.fsum(sorted(head_scores)[: half - count]) for head_scores in ranked
        )

    def error(small: Any, factor: Any, _rank: int) -> Number:
        names = "k" if options.split else "kv"
        gaps = (e.weight(name) - exact(small.matrices()[name].weight) for name in names)
        return mpmath.fsum(squares(gap) for gap in gaps) + turning_loss(factor)

    total = squares(e.weight("k")) + squares(e.weight("v"))
    if options.split:
        objectives = {"v": matrices(e, ("v",), None)}
        return objectives | ({"k": Objective(error, best, total)} if options.rotary < 1 else {})
    return {"kv": Objective(error, best, total)}


def transmla(e: Exact, options: Any) -> dict[str, Objective]:
    """Return the objective of RoRoPE: the axes of largest variance of each group of frequencies,
    real and imaginary parts together. Then `E |[K_nope / a; V] - R R^T [K_nope / a; V]|^2` with a
    from the factor, because the axes without positions are not unique for equal variances.
    """
    a = e.layer.attention
    k, v = e.states("k"), e.states("v")
    turning, minimum = mpmath.mpf(0), mpmath.mpf(0)
    gram, half = moment(k), a.qk_size // 2
    if a.position == "rotary":
        kept_count = min(a.n_kv * options.fold, max(1, round(options.rotary * options.fold)))
        for start in range(0, half, options.fold):
            side_rows = [
                [h * a.qk_size + j + side for h in range(a.n_kv) for j in range(start, start + f)]
                for side, f in ((0, options.fold), (half, options.fold))
            ]
            side_grams = [
                rows(columns(gram, row_indices), row_indices) for row_indices in side_rows
            ]
            tail = symmetric_tails(side_grams[0] + side_grams[1])
            turning, minimum = turning + tail[0], minimum + tail[kept_count]

    def split(factor: Any) -> tuple[Matrix, Matrix, Number]:
        """Return the rotating axes, the keys without them, and the balance."""
        axes = exact(factor.axes) if len(factor.axes) else mpmath.zeros(1, k.cols)
        values = squares(exact(factor.ups[1][:, 0]))
        keys = squares(exact(factor.ups[0][:, 0]))
        ratio = mpmath.sqrt(keys / (1 - values)) if options.balance and values < 0.999 else 1
        return axes, k - k * axes.T * axes, ratio

    def away(factor: Any) -> Number:
        axes, _, _ = split(factor)
        return turning - inner(axes * gram, axes) if a.position == "rotary" else mpmath.mpf(0)

    def joint_states(factor: Any) -> Matrix:
        _, unrotated_keys, ratio = split(factor)
        return stacked([unrotated_keys.T / ratio, v.T])

    def best(factor: Any, rank: int) -> Number:
        states = joint_states(factor)
        return minimum + symmetric_tails(states * states.T / k.rows)[rank]

    def error(_small: Any, factor: Any, rank: int) -> Number:
        _, _, ratio = split(factor)
        latent = exact(factor.down[:rank]) * e.seen("attn_in").T
        if factor.offset is not None:
            latent = latent + exact(factor.offset[:rank]) * mpmath.ones(1, k.rows)
        up = stacked([exact(factor.ups[0][:, :rank]) / ratio, exact(factor.ups[1][:, :rank])])
        return away(factor) + squares(joint_states(factor) - up * latent) / k.rows

    return {"kv": Objective(error, best, turning + trace(gram) + trace(moment(v)))}


def measured_latent(e: Exact, name: str) -> Objective:
    """Return the objective `|L^T (W - W^) C^{1/2}|^2` with L L^T the second moments of the
    multiplier of a state.
    """
    a, gram = e.layer.attention, e.covariance("attn_in")
    grams = []
    for g in range(a.n_kv):
        query_heads = range(g * e.group, (g + 1) * e.group)
        if name == "v":
            parts = [e.out(i).T * e.out(i) for i in query_heads]
        elif a.position != "rotary":
            parts = [head_moments(e, "q")[i] for i in query_heads]
        else:
            query_squares, half = [turned_squares(e, "q")[i] for i in query_heads], a.qk_size // 2
            parts = [
                mpmath.diag(
                    [(head_squares[j] + head_squares[j + half]) / 2 for j in range(half)] * 2
                )
                for head_squares in query_squares
            ]
        grams.append(sum(parts[1:], parts[0]))
    measure = mpmath.zeros(e.weight(name).rows)
    for g, part in enumerate(grams):
        for i in range(part.rows):
            for j in range(part.rows):
                measure[g * part.rows + i, g * part.rows + j] = part[i, j]
    half_gram = root(gram)
    dense = e.weight(name)
    minima = symmetric_tails(half_gram * dense.T * measure * dense * half_gram)

    def error(small: Any, _factor: Any, _rank: int) -> Number:
        projection = small.matrices()[name]
        gap = dense - exact(projection.weight)
        shift = gap * e.mean("attn_in") + bias_of(e.layer.matrices()[name]) - bias_of(projection)
        return inner(measure * gap * gram, gap) + inner(measure * shift, shift)

    return Objective(error, lambda _f, rank: minima[rank], minima[0])
