"""Decompositions of hard matrices, compared with arithmetic in sixty digits."""

import mpmath
import pytest
import torch
from sixty_digits import DIGITS, exact, squares, tails

from lrcore.compression.solve.regression import Regression
from lrcore.layers.elimination import elimination_order
from lrcore.layers.layer import Linear
from lrcore.layers.linalg import cholesky, inverse_of, roots, singular_values, whitened_svd
from lrcore.layers.statistics import Accumulator
from lrcore.methods.attention_scores import joint_scores

N, OUT, TOKENS, RANKS = 8, 6, 40, (1, 3, 5)
SHARE = 1e-6  # largest deviation from the exact result, relative to the total


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def ill_scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.logspace(3, -3, N, dtype=x.dtype)


def massive_activation(x: torch.Tensor) -> torch.Tensor:
    x[0, 2] = 1e4
    return x


def near_duplicates(x: torch.Tensor) -> torch.Tensor:
    x[:, 1] = x[:, 0] + 1e-7 * x[:, 1]
    return x


def few_tokens(x: torch.Tensor) -> torch.Tensor:
    return x[:5]


def large_mean(x: torch.Tensor) -> torch.Tensor:
    return x + 50.0


CASES = {
    f.__name__: f
    for f in (plain, ill_scaled, massive_activation, near_duplicates, few_tokens, large_mean)
}


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


@pytest.fixture(params=CASES)
def rows(request) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return CASES[request.param](torch.randn(TOKENS, N, generator=generator, dtype=torch.float64))


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(OUT, N, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def gram(rows: torch.Tensor) -> torch.Tensor:
    return rows.mT @ rows / len(rows)


def near(result, expected, largest_value) -> bool:
    return abs(mpmath.mpf(result) - expected) <= SHARE * largest_value


def test_low_rank_product_leaves_the_exact_tail(rows, weight) -> None:
    up, _, down = whitened_svd(weight, gram(rows))
    x, w = exact(rows), exact(weight)
    best = tails(x * w.T)
    for rank in RANKS:
        error = x * (w - exact(up[:, :rank]) * exact(down[:rank])).T
        assert near(squares(error), best[rank], best[0]), rank


def test_singular_values_are_exact(rows, weight) -> None:
    result = singular_values(weight, gram(rows))
    x, w = exact(rows) / mpmath.sqrt(len(rows)), exact(weight)
    expected = sorted(mpmath.svd_r(w * x.T, compute_uv=False), reverse=True)
    expected += [mpmath.mpf(0)] * (len(result) - len(expected))  # for few tokens
    for result_value, exact_value in zip(result.tolist(), expected, strict=True):
        assert near(result_value, exact_value, expected[0])


def test_root_squares_to_the_matrix(rows) -> None:
    root, inverse = (exact(result_value) for result_value in roots(gram(rows)))
    largest_value = exact(gram(rows))
    largest = max(abs(value) for value in largest_value)
    for error in (root * root - largest_value, root * inverse * root - root):
        assert max(abs(value) for value in error) <= SHARE * largest


def test_scores_of_a_joint_decomposition_leave_the_exact_tail(rows) -> None:
    """Use the rows as queries, and the same rows rotated as keys."""
    rotated_keys = (
        rows.flip(1) @ torch.linalg.qr(torch.vander(torch.linspace(-1, 1, N).double()))[0]
    )
    _, q_maps, k_maps = joint_scores(gram(rows), gram(rotated_keys))
    queries, keys = exact(rows), exact(rotated_keys)
    best = tails(queries * keys.T)
    for rank in RANKS:
        product = exact(q_maps[:rank]).T * exact(k_maps[:rank])
        error = queries * (mpmath.eye(N) - product) * keys.T
        assert near(squares(error), best[rank], best[0]), rank


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("center", [0.0, 50.0])
def test_covariance_of_16_bit_activations_keeps_its_digits(dtype, center) -> None:
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(TOKENS, N, generator=generator) + center).to(dtype)
    accumulator = Accumulator({("attn_in", "second"), ("attn_in", "mean")})
    for part in x.split(7):
        accumulator.observe("attn_in", part)
        accumulator.observe_block(part, part)
    result = exact(accumulator.moments().centered("attn_in"))
    rows = exact(x)
    mean = mpmath.matrix([[mpmath.fsum(rows[:, j]) / TOKENS for j in range(N)]])
    centered_rows = rows - mpmath.ones(TOKENS, 1) * mean
    expected = centered_rows.T * centered_rows / TOKENS
    largest = max(abs(value) for value in expected)
    assert max(abs(value) for value in result - expected) <= 1e-6 * largest


def test_refit_is_the_exact_ridge_solution(rows, weight) -> None:
    noise = torch.randn(len(rows), OUT, generator=torch.Generator().manual_seed(6)).double()
    targets = rows @ weight.mT + noise
    fit = Regression()
    fit.add(rows, targets)
    result = exact(fit.solve(Linear(weight), ridge=0.3).weight)
    x, y, w = exact(rows), exact(targets), exact(weight)
    xx = x.T * x / len(rows)
    remaining = xx + mpmath.diag([0.3 * xx[i, i] for i in range(N)])
    missing = y.T * x / len(rows) - w * xx
    expected = w + missing * mpmath.inverse(remaining)
    assert squares(x * (result - expected).T) <= SHARE**2 * squares(x * expected.T)


def test_neurons_are_eliminated_in_the_exact_order(weight) -> None:
    """Each step has a unique smallest score, separated by far more than rounding."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(TOKENS, N, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(3, -3, N, dtype=x.dtype)
    second = gram(x)
    remaining, order = list(range(N)), []
    inverse = mpmath.inverse(exact(second + 1e-8 * second.diagonal().diag()))
    w = exact(weight) * 1
    while remaining:  # optimal brain surgeon in single steps
        scores = {
            j: mpmath.fsum(w[i, j] ** 2 for i in range(OUT)) / inverse[j, j] for j in remaining
        }
        smallest = min(scores, key=scores.get)
        w = w - w[:, smallest] * inverse[smallest, :] / inverse[smallest, smallest]
        inverse = (
            inverse - inverse[:, smallest] * inverse[smallest, :] / inverse[smallest, smallest]
        )
        remaining.remove(smallest)
        order.append(smallest)
    assert elimination_order(weight, second).tolist() == order[::-1]


def test_inverse_from_a_cholesky_factor_is_exact() -> None:
    x = torch.randn(TOKENS, N, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    second = gram(x * torch.logspace(2, -2, N, dtype=x.dtype))
    result = exact(inverse_of(cholesky(second, 0.0)))
    expected = mpmath.inverse(exact(second))
    largest = max(abs(value) for value in expected)
    assert max(abs(value) for value in result - expected) <= SHARE * largest
