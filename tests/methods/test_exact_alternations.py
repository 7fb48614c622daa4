"""LatentLLM's alternating solvers on hard inputs, compared with sixty digits.

The last step of each alternation is a fixed point.
"""

import mpmath
import pytest
import torch
from exact_objectives import Matrix, Number, bias_of
from exact_optima import exact_layer
from sixty_digits import (
    DIGITS,
    exact,
    inner,
    leading,
    left_after,
    lost,
    moment,
    squares,
    stacked,
    symmetric_tails,
    trace,
)

from lrcore.methods import latentllm
from lrcore.methods.latentllm import mlp, sparse

SHARE, ROUNDING = 1e-5, 1e-11
KINDS = ("well_conditioned", "rank_deficient", "massive", "near_duplicates", "zero", "bfloat16")


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


def not_above(error: Number, best: Number, total: Number) -> None:
    assert error <= (1 + SHARE) * best + ROUNDING * total, [
        mpmath.nstr(number, 8) for number in (error, best, total)
    ]


# ---- low rank plus sparse (eq. 231-237)


def largest(m: Matrix, entries: int) -> Matrix:
    """Return the matrix with all but the largest entries zero."""
    positions = [(i, j) for i in range(m.rows) for j in range(m.cols)]
    selected = sorted(positions, key=lambda at: abs(m[at]), reverse=True)[:entries]
    out = m * 0
    for at in selected:
        out[at] = m[at]
    return out


def exact_sparse(weight: Matrix, gram: Matrix, rank: int, entries: int) -> Number:
    """Return the loss of B A and D after the rounds."""
    scale = [mpmath.sqrt(gram[j, j]) for j in range(gram.rows)]
    by = mpmath.diag(scale)
    back = mpmath.diag([1 / s if s else 0 for s in scale])
    unit = back * gram * back
    length = 1 / max(mpmath.eigsy(unit, eigvals_only=True))
    sparse_term = weight * 0

    def low_rank() -> Matrix:
        gap = weight - sparse_term
        basis = leading(gap * gram * gap.T, rank)
        return basis * basis.T * gap

    for _ in range(sparse.ROUNDS):
        scaled, goal = sparse_term * by, (weight - low_rank()) * by
        for _ in range(sparse.STEPS):
            scaled = largest(scaled - length * (scaled - goal) * unit, entries)
        sparse_term = scaled * back
    return lost(weight - sparse_term - low_rank(), gram)


@pytest.mark.parametrize("kind", KINDS)
def test_low_rank_plus_sparse_is_as_good_as_exact_rounds(kind) -> None:
    e = exact_layer("gqa", kind)
    options = latentllm.LatentLLMOptions(attention="local", sparse=0.2)
    factor = latentllm.factor(e.layer, e.case.moments, options)["q"]
    gram, dense = e.second("attn_in"), e.weight("q")
    small = factor.truncate(e.layer, 3).attention.q
    error = lost(dense - exact(small.weight), gram)
    not_above(error, exact_sparse(dense, gram, 3, factor.entries), lost(dense, gram))


# ---- up and down of a ReLU MLP jointly (eq. 19-22, appendix H)


def exact_fit(dense: Matrix, bias: Matrix, gram: Matrix, x: Matrix, target: Matrix, rank: int):
    """Return the minimizer of `mean |W^ x + b^ - target|^2 + |(W^ - W) C^{1/2}|^2` at a rank, with
    a free bias.
    """
    column = mpmath.ones(x.rows, 1)
    x_mean, offset = (column.T * x).T / x.rows, (column.T * target).T / x.rows
    away, gap = x - column * x_mean.T, target - column * offset.T
    metric = moment(away) + mlp.PRIOR * gram
    level = mlp.DAMPING * mpmath.diag([metric[i, i] for i in range(metric.rows)])
    level += 1e-15 * trace(metric) / metric.rows * mpmath.eye(metric.rows)
    step = (gap - away * dense.T).T * away / x.rows
    effective = dense + step * mpmath.inverse(metric + level)
    basis = leading(effective * metric * effective.T, rank)
    down = basis.T * effective
    return basis, down, offset - basis * (down * x_mean)


def applied(solved, x: Matrix) -> Matrix:
    basis, down, bias = solved
    return x * down.T * basis.T + mpmath.ones(x.rows, 1) * bias.T


def relu(m: Matrix) -> Matrix:
    return m.apply(lambda v: max(v, mpmath.mpf(0)))


def exact_joint_ud(e, x: Matrix, rank: int):
    """Return the outputs after the rounds and the dense outputs, for alpha = beta = gamma = 1."""
    column = mpmath.ones(x.rows, 1)
    sides = {
        name: (e.weight(name), bias_of(e.layer.matrices()[name]), e.covariance(tap))
        for name, tap in (("up", "mlp_in"), ("down", "mlp_hidden"))
    }
    z = x * sides["up"][0].T + column * sides["up"][1].T
    a = relu(z)
    y = a * sides["down"][0].T + column * sides["down"][1].T
    up, down = exact_fit(*sides["up"], x, z, rank), exact_fit(*sides["down"], a, y, rank)
    for _ in range(mlp.ROUNDS):
        d = down[0] * down[1]
        system = d.T * d + mpmath.eye(d.cols)
        a = (relu(z) + (y - column * down[2].T) * d) * mpmath.inverse(system)
        linear = applied(up, x)
        for i in range(z.rows):
            for j in range(z.cols):
                low, high = min(linear[i, j], 0), max((linear[i, j] + a[i, j]) / 2, 0)
                costs = [(v - linear[i, j]) ** 2 + (a[i, j] - max(v, 0)) ** 2 for v in (low, high)]
                z[i, j] = low if costs[0] < costs[1] else high
        up, down = exact_fit(*sides["up"], x, z, rank), exact_fit(*sides["down"], a, y, rank)
    return applied(down, relu(applied(up, x))), y


@pytest.mark.parametrize("kind", ["well_conditioned", "near_duplicates", "zero"])
def test_joint_up_and_down_are_as_good_as_exact_rounds(kind) -> None:
    e = exact_layer("mha", kind)
    options = latentllm.LatentLLMOptions(mlp="joint")
    factor = latentllm.factor(e.layer, e.case.moments, options)["joint_ud"]
    small, x = factor.truncate(e.layer, 4).mlp, exact(factor.sample)
    expected, y = exact_joint_ud(e, x, 4)
    column = mpmath.ones(x.rows, 1)
    hidden = relu(x * exact(small.up.weight).T + column * bias_of(small.up).T)
    output = hidden * exact(small.down.weight).T + column * bias_of(small.down).T
    not_above(squares(output - y), squares(expected - y), squares(y))


# ---- V and O by the attention's output (eq. 198-223)


@pytest.mark.parametrize("rank", [3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_output_projection_has_the_lowest_loss_of_its_rank(kind, rank) -> None:
    """Compare with reduced-rank regression of the output on the remaining values."""
    e = exact_layer("gqa", kind)
    options = latentllm.LatentLLMOptions(vo="attention")
    factor = latentllm.factor(e.layer, e.case.moments, options)["joint_vo"]
    a, small = e.layer.attention, factor.truncate(e.layer, rank).attention
    size = a.v_size
    second = exact(e.case.moments.second("weighted_values"))  # of all value heads, per query head
    # the values of each head as a combination of the values of all heads: W^_v = T W_v
    maps = exact(small.v.weight @ torch.linalg.pinv(a.v.weight))
    width, picked, picked_moments = a.n_kv * size, [], []
    for i in range(a.n_q):
        g, rows = i // e.group, mpmath.zeros(size, second.rows)
        mixed = rows * 1
        for r in range(size):
            rows[r, i * width + g * size + r] = 1
            for c in range(width):
                mixed[r, i * width + c] = maps[g * size + r, c]
        picked.append(rows)
        picked_moments.append(mixed)
    moments = stacked([*picked_moments, e.weight("o") * stacked(picked)])
    gram = moments * second * moments.T
    count = a.n_q * size
    values, outputs = gram[:count, :count], gram[count:, count:]
    residual = left_after(gram, range(count))[count:, count:]  # of full-rank least squares
    left_rank, _ = factor_ranks(factor, rank)
    best = trace(residual) + symmetric_tails(outputs - residual)[left_rank]
    read = exact(small.o.weight)
    cross = gram[count:, :count]
    error = trace(outputs) - 2 * inner(read, cross) + inner(read * values, read)
    not_above(error, best, trace(outputs))


def factor_ranks(factor, rank: int) -> tuple[int, int]:
    return latentllm.joint.side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full)
