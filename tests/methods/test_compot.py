"""Dictionaries and sparse codes: the optimal steps of the alternation, its losses and its size."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from toy_layer import toy

import lrcore
from lrcore.layers.forms import SparseCodes, dense
from lrcore.layers.layer import LowRank
from lrcore.layers.statistics import TAPS
from lrcore.methods import codes as sparse
from lrcore.methods import compot, svd_llm
from lrcore.models.layers import read_layer

KINDS = [(3, 3, "none", True, False), (4, 2, "rotary", False, True)]
LEAST_SQUARES = compot.CompotOptions(dictionary="least_squares")


def solved(case, options: compot.CompotOptions = compot.DEFAULT) -> dict:
    return compot.factor(case.layer, case.moments, options)


def whitened(case, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `W L` and L, with `L L^T` the second moment of the input."""
    lower = torch.linalg.cholesky(case.moments.second(TAPS[name]))
    return case.layer.matrices()[name].weight @ lower, lower


def coded(case, factor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes C [out, k] and the dictionary D [in, k] at a rank, with atoms of norm 1."""
    pair = factor.truncate(case.layer, rank).matrices()[factor.names[0]]
    assert isinstance(pair, LowRank)
    assert isinstance(pair.up, SparseCodes)
    _, lower = whitened(case, factor.names[0])
    atoms = (pair.down @ lower).mT
    scale = atoms.norm(dim=0)
    return dense(pair.up) * scale, atoms / scale


def loss(case, factor, rank: int) -> float:
    product, _ = whitened(case, factor.names[0])
    codes, atoms = coded(case, factor, rank)
    return float((product - codes @ atoms.mT).square().sum())


@pytest.mark.parametrize("kind", KINDS)
def test_atoms_are_orthonormal_and_codes_the_best_of_all_choices(kind: tuple) -> None:
    """Compare each row with the least-squares fit on every set of atoms."""
    case, rank = toy(*kind), 2
    for name, factor in solved(case).items():
        product, _ = whitened(case, name)
        codes, atoms = coded(case, factor, rank)
        assert codes.shape[1] == 2 * rank
        eye = torch.eye(2 * rank, dtype=atoms.dtype)
        assert torch.allclose(atoms.mT @ atoms, eye, atol=1e-7)
        for row, code in zip(product, codes, strict=True):
            choices = (atoms[:, list(chosen)] for chosen in combinations(range(2 * rank), rank))
            least = min(
                float((row - basis @ torch.linalg.lstsq(basis, row).solution).square().sum())
                for basis in choices
            )
            assert int((code != 0).sum()) == rank
            assert float((row - atoms @ code).square().sum()) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_dictionary_step_is_the_orthogonal_factor(kind: tuple) -> None:
    """`D = U V^T` of `(W L)^T C = U S V^T` (Procrustes)."""
    case = toy(*kind)
    for name, factor in solved(case).items():
        product, lower = whitened(case, name)
        weight = case.layer.matrices()[name].weight
        codes, _ = sparse.largest_in_rows(factor.left[:, :8] * factor.values[:8], 4)
        *_, down = sparse.alternate(factor.left * factor.values, codes, weight, 4, 0)
        u, _, vt = torch.linalg.svd(product.mT @ codes, full_matrices=False)
        assert torch.allclose((down @ lower).mT, u @ vt, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_never_rises_and_is_below_the_truncated_svd_of_the_same_entries(kind: tuple) -> None:
    case = toy(*kind)
    for name, few in solved(case, compot.CompotOptions(rounds=0)).items():
        squares = few.values.square()
        for rank in few.cost.ranks()[:-1]:
            factors = [replace(few, coding=replace(few.coding, rounds=n)) for n in (0, 1, 2, 20)]
            losses = [loss(case, factor, rank) for factor in factors]
            assert all(after <= before * (1 + 1e-9) for before, after in pairwise(losses))
            assert losses[0] < float(squares[rank:].sum()), name
            coding = replace(factors[-1].coding, is_orthogonal=False)
            fitted = loss_of_fit(case, replace(factors[-1], coding=coding), rank)
            assert fitted < losses[-1]


def loss_of_fit(case, factor, rank: int) -> float:
    """Return the loss with the dictionary fitted to the codes; its atoms have other norms."""
    product, lower = whitened(case, factor.names[0])
    small = factor.truncate(case.layer, rank).matrices()[factor.names[0]]
    return float((product - small.weight @ lower).square().sum())


@pytest.mark.parametrize("kind", KINDS)
def test_fitted_dictionary_is_the_least_squares_solution(kind: tuple) -> None:
    case, rank = toy(*kind), 3
    for name, factor in solved(case, LEAST_SQUARES).items():
        pair = factor.truncate(case.layer, rank).matrices()[name]
        weight = case.layer.matrices()[name].weight
        best = torch.linalg.lstsq(dense(pair.up), weight).solution
        assert torch.allclose(pair.down, best, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_entries_as_atoms_are_the_truncated_svd(kind: tuple) -> None:
    case, rank = toy(*kind), 4
    low_rank = svd_llm.factor(case.layer, case.moments)
    for name, factor in solved(case).items():
        weight = case.layer.matrices()[name].weight
        start = factor.left[:, :rank]
        codes, _, down = sparse.alternate(factor.left * factor.values, start, weight, rank, 3)
        expected = low_rank[name].truncate(case.layer, rank).matrices()[name].weight
        assert torch.allclose(codes @ down, expected, atol=1e-6)


def test_planted_dictionary_is_recovered() -> None:
    """A matrix that has such a form, with any sparse codes, keeps a small part of its loss."""
    g = torch.Generator().manual_seed(0)
    case = toy(*KINDS[0])
    basis = torch.linalg.qr(torch.randn(24, 12, generator=g, dtype=torch.float64)).Q
    codes, _ = sparse.largest_in_rows(torch.randn(40, 12, generator=g, dtype=torch.float64), 2)
    lower = torch.linalg.cholesky(case.moments.second("mlp_in"))
    weight = torch.linalg.solve_triangular(lower, codes @ basis.mT, upper=False, left=False)
    mlp = replace(case.layer.mlp, up=replace(case.layer.mlp.up, weight=weight))
    case = replace(case, layer=replace(case.layer, mlp=mlp))
    options = compot.CompotOptions(atoms=6, rounds=300)
    factor = solved(case, options)["up"]
    low_rank = float(factor.values[2:].square().sum())
    assert loss_of_fit(case, factor, 2) < 0.2 * low_rank


def test_there_are_no_more_atoms_than_singular_values() -> None:
    """Beyond, a rank adds a number to each row of the codes, but no atom."""
    case = toy(*KINDS[0])
    for name, factor in solved(case, compot.CompotOptions(atoms=4, rounds=1)).items():
        for rank in factor.cost.ranks()[:-1]:
            small = factor.truncate(case.layer, rank).matrices()[name]
            assert small.rank == min(4 * rank, factor.cost.full)
            assert small.parameters == factor.cost.parameters(rank)


def test_compressed_model_stays_sparse_on_disk_and_within_the_budget(
    tiny_llama_bias, story_file, tmp_path
) -> None:
    model = lrcore.load(str(tiny_llama_bias))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method="compot", ratio=0.4)
    small = lrcore.compress(model, recipe)
    assert small.account.removed_params >= 0.4
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    tokens = torch.arange(3, 35).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(back.network(tokens).logits, small.network(tokens).logits)
    up = read_layer(back.network, 1).matrices()["up"].up
    assert isinstance(up, SparseCodes)
    assert back.size == small.size
    files = sum(file.stat().st_size for file in (tmp_path / "small").glob("*.safetensors"))
    assert 0 < files - small.size.stored < 20_000  # the headers


def test_budget_of_bytes_is_refused(tiny_llama, story_file) -> None:
    recipe = lrcore.Recipe(
        data=str(story_file), samples=4, seq_len=32, method="compot", budget="bytes",
        policy="probed", ratio=0.4,
    )  # fmt: skip
    with pytest.raises(lrcore.InputError, match="keep sparse matrices"):
        lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
