"""Linear algebra, compared with slow exact references, and on singular matrices."""

import gc
import weakref

import pytest
import torch

from lrcore.layers.elimination import elimination_order
from lrcore.layers.linalg import (
    COLUMNS,
    MIN_DAMPING,
    ROWS_AT_ONCE,
    Lower,
    balanced,
    cholesky,
    damped,
    eigh_descending,
    inverse_of,
    inverse_root,
    invert_lower_,
    leverage_complement,
    roots,
    sampling_damping,
    singular_values,
    state_gram,
    times_lower,
    triangular_factor,
    whitened_svd,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_root_squares_to_the_matrix_and_its_inverse_inverts_it() -> None:
    x = random(3, 50, 7)
    m = x.mT @ x
    root, inverse = roots(m)
    assert torch.allclose(root @ root, m)
    assert torch.allclose(
        root @ inverse, torch.eye(7, dtype=torch.float64).expand(3, 7, 7), atol=1e-10
    )


@pytest.mark.parametrize("case", ["zero", "few tokens", "dead direction", "duplicate", "constant"])
def test_roots_of_singular_matrices_are_pseudo_inverses(case: str) -> None:
    x = random(30, 6)
    if case == "zero":
        x = x * 0
    if case == "few tokens":
        x = x[:3]
    if case == "dead direction":
        x[:, 2] = 0
    if case == "duplicate":
        x[:, 4] = x[:, 1]
    if case == "constant":
        x = torch.ones_like(x)
    m = x.T @ x
    root, inverse = roots(m)
    assert torch.equal(inverse_root(m), inverse)
    assert torch.isfinite(inverse).all()
    expected = torch.linalg.pinv(m, rtol=1e-10, hermitian=True)
    assert torch.allclose(
        inverse @ inverse, expected, atol=1e-6 * max(1.0, float(expected.abs().max()))
    )
    assert torch.allclose(root @ root, m, atol=1e-10 * max(1.0, float(m.abs().max())))


def test_state_gram_with_biases_equals_the_mean_over_samples() -> None:
    x, weight, bias = random(200, 5) + 1, random(2, 3, 5, seed=1), random(2, 3, seed=2)
    y = torch.einsum("nd,hsd->nhs", x, weight) + bias
    expected = torch.einsum("nhs,nht->hst", y, y) / len(x)
    assert torch.allclose(state_gram(weight, bias, x.T @ x / len(x), x.mean(0)), expected)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)])
@pytest.mark.parametrize("tokens", [3, 100])
def test_whitened_svd_leaves_the_tail_of_the_whitened_singular_values(
    shape: tuple, tokens: int
) -> None:
    weight, x = random(*shape), random(tokens, shape[1], seed=1)
    up, values, down = whitened_svd(weight, x.T @ x / tokens)
    s = torch.linalg.svdvals(weight @ x.T / tokens**0.5)
    s = torch.cat((s, s.new_zeros(len(values))))[: len(values)]
    for rank in range(len(values)):
        error = ((x @ (weight - up[:, :rank] @ down[:rank]).T) ** 2).sum() / tokens
        assert float(error) == pytest.approx(
            float((s[rank:] ** 2).sum()), abs=1e-9 * float((s**2).sum())
        )


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (24, 24)])
@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-9, 0.0])  # smallest / largest singular value
def test_svd_of_the_gram_matrix_equals_the_svd_of_the_matrix(shape, smallest) -> None:
    left_vectors, _, right = torch.linalg.svd(random(*shape), full_matrices=False)
    exact = torch.logspace(0, -4, 24, dtype=torch.float64)
    exact[-1] = smallest
    exact = exact.sort(descending=True).values
    weight = left_vectors * exact @ right
    up, values, down = whitened_svd(weight, None)
    assert torch.allclose(values, exact, rtol=1e-6, atol=1e-15)
    assert torch.allclose(up.mT @ up, torch.eye(24, dtype=torch.float64), atol=1e-6)
    for rank in (1, 8, 23, 24):
        gap = (weight - up[:, :rank] @ down[:rank]).square().sum()
        assert float(gap - exact[rank:].square().sum()) < 1e-12 * float(exact[0])
    assert torch.allclose(singular_values(weight), exact, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("off", [0.0, 0.3, 0.7, 0.98, 1.12])
def test_left_vectors_are_orthonormal_for_ill_conditioned_triangles(off) -> None:
    """Use a triangular factor with a unit diagonal and a condition number up to 4e8."""
    factor = torch.eye(24, dtype=torch.float64) - off * torch.ones(24, 24).double().triu(1)
    weight = torch.linalg.qr(random(60, 24))[0] @ factor
    up, _, down = whitened_svd(weight, torch.eye(24, dtype=torch.float64))
    assert torch.allclose(up.mT @ up, torch.eye(24, dtype=torch.float64), atol=1e-7)
    assert torch.allclose(up @ down, weight, atol=1e-12)


@pytest.mark.parametrize("rank", [24, 20])
def test_triangular_factor_of_a_tall_matrix_has_the_same_products(rank) -> None:
    tall = random(60, rank) @ random(rank, 24, seed=1)
    factor = triangular_factor(tall)
    assert torch.equal(factor, factor.triu())
    assert torch.allclose(factor.mT @ factor, tall.mT @ tall, atol=1e-10)
    second = random(24, 24, seed=2)
    second = second @ second.mT
    exact = torch.linalg.svdvals(tall @ roots(second)[0])
    assert torch.allclose(singular_values(tall, second), exact, atol=3e-7 * float(exact[0]))


def test_balanced_keeps_the_product_and_equalizes_the_norms() -> None:
    up, down = random(5, 3) * 100, random(3, 4, seed=1) / 100
    even_up, even_down = balanced(up, down)
    assert torch.allclose(even_up @ even_down, up @ down)
    assert torch.allclose(even_up.norm(dim=0), even_down.norm(dim=1))
    assert torch.equal(balanced(up * 0, down)[0], up * 0)


def test_cholesky_increases_the_damping_until_it_succeeds() -> None:
    x = random(2, 5)
    lower = cholesky(x.T @ x)
    assert torch.allclose(lower @ lower.T, x.T @ x, atol=1e-6 * float((x.T @ x).abs().max()))
    assert torch.isfinite(cholesky(torch.zeros(4, 4))).all()
    with pytest.raises(torch.linalg.LinAlgError):
        cholesky(torch.full((3, 3), torch.nan))


def test_failed_cholesky_does_not_keep_the_matrix_alive() -> None:
    class Marked(torch.Tensor):
        pass

    gone = []

    def fails() -> None:
        m = torch.full((3, 3), torch.nan).as_subclass(Marked)
        gone.append(weakref.ref(m))
        with pytest.raises(torch.linalg.LinAlgError):
            cholesky(m)

    fails()
    gc.collect()
    assert gone[0]() is None


def test_leverage_complement_is_accurate_for_leverages_near_one() -> None:
    x = random(40, 6)
    gram = x.T @ x
    literal = (gram @ torch.linalg.inv(gram + 0.5 * torch.eye(6))).diagonal()
    assert torch.allclose(1 - leverage_complement(gram, 0.5), literal)
    many = leverage_complement(
        gram * 1e12, 1.0
    )  # one minus the leverage is 1e-14 here: a difference would lose all digits
    assert torch.allclose(many, torch.linalg.inv(gram).diagonal() * 1e-12, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 5, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE - 7])
def test_triangular_matrix_is_inverted_by_halves(n: int) -> None:
    x = random(n + 20, n, seed=n)
    gram = x.mT @ x / n
    lower = cholesky(gram)
    literal = torch.linalg.inv(lower @ lower.mT)
    assert torch.allclose(inverse_of(lower.clone()), literal, rtol=1e-6, atol=1e-9)
    root = invert_lower_(lower.clone())
    assert torch.equal(root, root.tril())
    assert torch.allclose(root @ lower, torch.eye(n, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("n", [1, 7, 8, 65])
def test_product_with_a_triangular_matrix_skips_the_zeros(n: int) -> None:
    m, lower = random(3, n), random(n, n, seed=1).tril()
    assert torch.allclose(times_lower(m, lower), m @ lower)


def test_damping_does_not_change_its_argument() -> None:
    x = random(5, 9)  # singular: damped more than once
    gram = x.mT @ x
    before = gram.clone()
    for solve in (cholesky, lambda m: damped(m, 0.1), lambda m: leverage_complement(m, 0.5)):
        solve(gram)
        assert torch.equal(gram, before)
    elimination_order(random(3, 9), gram)
    assert torch.equal(gram, before)


def test_eigenvalues_are_descending_and_nonnegative() -> None:
    x = random(3, 6)
    values, vectors = eigh_descending(x.T @ x)
    assert (values >= 0).all()
    assert (values.diff() <= 0).all()
    assert torch.allclose((vectors * values) @ vectors.T, x.T @ x, atol=1e-10)


def test_damping_does_not_affect_small_channels_next_to_massive_ones() -> None:
    """The factor with a massive input equals that of inputs of equal size."""
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    scale = torch.tensor([1e4, *[1.0] * 7], dtype=torch.float64)
    same, massive = (cholesky(m.T @ m) for m in (x, x * scale))
    assert torch.allclose(massive / scale.unsqueeze(1), same, rtol=1e-5, atol=1e-6)


def test_zero_damping_gives_the_cholesky_factor() -> None:
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert torch.allclose(cholesky(x.T @ x, 0.0), torch.linalg.cholesky(x.T @ x), rtol=1e-12)


@pytest.mark.parametrize("size", [1, COLUMNS - 1, COLUMNS, 3 * COLUMNS + 5])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_packed_matrix_returns_leading_blocks(size, transposed) -> None:
    matrix = torch.randn(
        size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    lower = (matrix.mT.contiguous().mT if transposed else matrix).tril()
    packed = Lower.of(lower)
    for count in {1, size // 2 + 1, size}:
        assert torch.equal(packed.leading(count), lower[:count, :count])


def test_packing_ignores_entries_above_the_diagonal() -> None:
    full = torch.arange(1.0, 26.0).view(5, 5)
    assert torch.equal(Lower.of(full).leading(5), full.tril())


def test_packing_halves_the_numbers() -> None:
    size = 32 * COLUMNS
    assert Lower.of(torch.zeros(size, size)).numbers.numel() < 0.52 * size**2


def correlated(count: int, seed: int, size: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples [count, size] of a Gaussian with a decaying spectrum and its covariance."""
    generator = torch.Generator().manual_seed(7)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
    values = 0.9 ** torch.arange(size)
    root = basis * values.sqrt() * size**0.5
    noise = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).double()
    return noise @ root.mT, root @ root.mT


def correlations(m: torch.Tensor) -> torch.Tensor:
    scale = m.diagonal().rsqrt()
    return m * scale * scale.unsqueeze(1)


@pytest.mark.parametrize("tokens", [20, 50, 400])
def test_shrunk_correlations_are_closest_to_the_true_correlations(tokens: int) -> None:
    """Averaged over draws, no fixed shrinkage is much closer than the estimated one."""
    grid, errors, estimated = torch.linspace(0, 0.9, 31).double(), 0, 0
    for seed in range(20):
        samples, covariance = correlated(tokens, seed)
        moment = samples.mT @ samples / tokens
        sampled, true = correlations(moment), correlations(covariance)
        eye = torch.eye(len(true), dtype=torch.float64)

        def error(share, sampled=sampled, true=true, eye=eye):
            return ((1 - share) * sampled + share * eye - true).square().sum()

        errors = errors + torch.stack([error(share) for share in grid])
        strength = sampling_damping(moment, tokens)
        estimated = estimated + error(strength / (1 + strength))
    assert estimated < 1.1 * errors.min()


def test_damping_decreases_with_tokens_and_ignores_scales_and_dead_inputs() -> None:
    samples, _ = correlated(500, 0)
    moment = samples.mT @ samples / 500
    strengths = [sampling_damping(moment, tokens) for tokens in (5, 500, 50_000, 10**12)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[-1] == MIN_DAMPING
    scale = torch.logspace(-4, 4, len(moment)).double()
    scaled = moment * scale * scale.unsqueeze(1)
    assert sampling_damping(scaled, 500) == pytest.approx(strengths[1], rel=1e-9)
    with_dead = torch.zeros(len(moment) + 300, len(moment) + 300, dtype=torch.float64)
    with_dead[: len(moment), : len(moment)] = moment
    assert sampling_damping(with_dead, 500) == pytest.approx(strengths[1], rel=1e-9)
    assert sampling_damping(torch.zeros(5, 5), 500) == MIN_DAMPING
