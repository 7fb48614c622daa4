"""Solvers on moments of 16-bit activations, compared with sixty digits of mpmath.

The moments are those of a calibration, with products in float32, so errors can be as large as the
rounding of these sums. Massive activations, large means and duplicates would overflow sums in
float16 and cancel in differences.
"""

import mpmath
import pytest
import torch
from sixty_digits import DIGITS, exact, squares, tails

from lrcore.compression.solve.regression import Regression
from lrcore.layers.layer import Linear
from lrcore.layers.linalg import leverage_complement, roots, singular_values, whitened_svd
from lrcore.layers.statistics import Accumulator
from lrcore.methods.attention_scores import joint_scores

N, OUT, TOKENS, RANKS = 8, 6, 40, (1, 3, 5)
SHARE = 1e-5  # of the total: a few roundings of float32
DTYPES = (torch.float16, torch.bfloat16)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def ill_scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.logspace(2, -2, N)


def massive_activation(x: torch.Tensor) -> torch.Tensor:
    x[0, 2] = 3e4  # its square overflows float16
    return x


def duplicates(x: torch.Tensor) -> torch.Tensor:
    x[:, 1] = x[:, 0] * (1 + 1e-5)  # equal in 16 bits
    return x


def degenerate(x: torch.Tensor) -> torch.Tensor:
    x[:, 3] = 0
    return x[:5]


def large_mean(x: torch.Tensor) -> torch.Tensor:
    return x + 50.0


CASES = (plain, ill_scaled, massive_activation, duplicates, degenerate, large_mean)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def rows(request, case) -> torch.Tensor:
    """Return activations [tokens, N] of a dtype."""
    x = torch.randn(TOKENS, N, generator=torch.Generator().manual_seed(3))
    return case(x).to(request.param)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(OUT, N, generator=torch.Generator().manual_seed(4)).half()


def second(rows: torch.Tensor) -> torch.Tensor:
    """Return the second moment [N, N] as in a calibration, in batches."""
    accumulator = Accumulator({("attn_in", "second")})
    for part in rows.split(7):
        accumulator.observe("attn_in", part)
        accumulator.observe_block(part, part)
    return accumulator.moments().second("attn_in").double()


def test_low_rank_product_leaves_the_minimal_loss(rows, weight) -> None:
    up, values, down = whitened_svd(weight.double(), second(rows))
    assert torch.isfinite(values).all()
    x, w = exact(rows), exact(weight)
    best = tails(x * w.T)
    for rank in RANKS:
        error = squares(x * (w - exact(up[:, :rank]) * exact(down[:rank])).T)
        optimum = best[min(rank, len(best) - 1)]
        assert abs(error - optimum) <= SHARE * best[0], rank


def test_spectra_equal_the_exact_spectra(rows, weight) -> None:
    values = singular_values(weight.double(), second(rows))
    expected = tails(exact(rows) / mpmath.sqrt(len(rows)) * exact(weight).T)
    squared = [float(value) ** 2 for value in values]
    for rank in range(len(squared)):
        optimum = expected[min(rank, len(expected) - 1)]
        assert abs(sum(squared[rank:]) - optimum) <= SHARE * expected[0], rank


def test_joint_scores_leave_the_minimal_loss(rows) -> None:
    turn = torch.linalg.qr(torch.vander(torch.linspace(-1, 1, N)))[0]
    key_rows = (rows.flip(1).float() @ turn).to(rows.dtype)
    _, q_maps, k_maps = joint_scores(second(rows), second(key_rows))
    queries, keys = exact(rows), exact(key_rows)
    best = tails(queries * keys.T)
    for rank in RANKS:
        product = exact(q_maps[:rank]).T * exact(k_maps[:rank])
        error = squares(queries * (mpmath.eye(N) - product) * keys.T)
        assert abs(error - best[min(rank, len(best) - 1)]) <= SHARE * best[0], rank


def test_root_squares_to_the_second_moment(rows) -> None:
    root = exact(roots(second(rows))[0])
    x = exact(rows)
    expected = x.T * x / len(rows)
    largest = max(abs(value) for value in expected)
    assert max(abs(value) for value in root * root - expected) <= SHARE * largest


def test_leverages_equal_those_of_the_activations(rows) -> None:
    gram = second(rows)
    ridge = 1e-3 * float(gram.diagonal().mean())  # above the rounding errors of float32 moments
    x = exact(rows)
    inverse = mpmath.inverse(x.T * x / len(rows) + ridge * mpmath.eye(N))
    for j, leverage in enumerate(leverage_complement(gram, ridge)):
        assert abs(float(leverage) - ridge * inverse[j, j]) <= 1e-2


def test_refit_is_the_ridge_solution(rows, weight) -> None:
    noise = torch.randn(len(rows), OUT, generator=torch.Generator().manual_seed(6))
    targets = (rows.float() @ weight.float().mT + noise).to(torch.float32)
    fit = Regression()
    fit.add(rows, targets)
    solution = exact(fit.solve(Linear(weight.float()), ridge=0.3).weight)
    x, y, w = exact(rows), exact(targets), exact(weight)
    xx = x.T * x / len(rows)
    # a dead channel has no ridge, so its column of the weight is unchanged
    live = [i for i in range(N) if xx[i, i] > 0]
    missing = y.T * x / len(rows) - w * xx
    damped = xx + mpmath.diag([0.3 * xx[i, i] for i in range(N)])
    inner = mpmath.matrix([[damped[i, j] for j in live] for i in live])
    gap = mpmath.matrix([[missing[o, j] for j in live] for o in range(OUT)])
    solved, expected = gap * mpmath.inverse(inner), w * 1
    for position, j in enumerate(live):
        for o in range(OUT):
            expected[o, j] += solved[o, position]
    assert squares(x * (solution - expected).T) <= SHARE * squares(x * expected.T)
