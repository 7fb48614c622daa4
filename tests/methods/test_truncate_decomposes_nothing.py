"""Decompositions in `truncate`, which must be cheap.

A slider, a probe and the live figure call it repeatedly; `factor` decomposes once.
"""

import pytest
import torch
from latentllm_reference import MHA, exact_alternation
from test_contract import EVERY, solve
from torch.utils._python_dispatch import TorchDispatchMode
from toy_layer import HEAD, KINDS, toy

from lrcore.methods import latentllm, truncate
from lrcore.methods.latentllm import hosvd, joint, subspace

DECOMPOSITIONS = ("_eig", "svd", "linalg_qr", "geqrf", "cholesky", "lu_factor", "lstsq", "inv_ex")
DECOMPOSITIONS += ("solve_ex", "ldl", "pinv")
PRODUCTS = ("cholesky_solve", "cholesky_inverse")
# LU finds the columns that span a space of a single rank.
PIVOTS = {"joint_qk": {"linalg_lu_factor_ex"}, "joint_vo": {"linalg_lu_factor_ex"}}
# Options with a separate problem per rank: docs/methods.md, "Per rank".
PROBLEMS_PER_RANK = {("vo", "attention"): {"joint_vo"}, ("sparse", 0.1): {"v", "o", "up", "down"}}
PROBLEMS_PER_RANK["sparse", 0.1] |= {"gate"}
PROBLEMS_PER_RANK["forms", "codes"] = {"joint_gate_up", "up"}


class Decompositions(TorchDispatchMode):
    """Record all decompositions as (operation, rows)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if any(decomposition in name for decomposition in DECOMPOSITIONS) and name not in PRODUCTS:
            self.seen.append((name.strip("_"), min(args[0].shape[-2:])))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def narrow(monkeypatch):
    """Limit decompositions in subspaces to the size of a head, as small relative to the toy layer
    as the usual limit in a model.
    """
    for module in (subspace, hosvd):
        monkeypatch.setattr(module, "SMALL", HEAD)


@pytest.mark.parametrize(
    ("method", "kind"),
    [case for case in EVERY if case.values[1] in (KINDS[0], KINDS[-1])],
)
def test_truncate_makes_no_large_decompositions(
    method: tuple[str, dict], kind: tuple, narrow, monkeypatch
) -> None:
    monkeypatch.setattr(hosvd, "ROUNDS", 1)
    case, factors = solve(method, kind)
    allowed = set().union(*(PROBLEMS_PER_RANK.get(option, set()) for option in method[1].items()))
    for name, factor in factors.items():
        if name in allowed or method[0] == "compot":  # alternates at each rank
            continue
        ranks = factor.cost.ranks()
        for rank in {ranks[len(ranks) // 3], ranks[-2]}:
            with Decompositions() as counted:
                truncate(case.layer, factors, {name: rank})
            large = {operation for operation, rows in counted.seen if rows > HEAD}
            assert large <= PIVOTS.get(name, set()), (name, rank, counted.seen)


def test_all_decompositions_are_recorded() -> None:
    m = torch.eye(12) + 0.1
    solvers = [torch.linalg.eigh, torch.linalg.svd, torch.linalg.svdvals, torch.linalg.qr]
    solvers += [torch.linalg.cholesky, torch.linalg.lu_factor, torch.linalg.inv, torch.linalg.pinv]
    solvers += [torch.linalg.eigvalsh, torch.svd, lambda m: torch.linalg.lstsq(m, m)]
    solvers += [lambda m: torch.linalg.solve(m, m)]
    for solver in solvers:
        with Decompositions() as counted:
            solver(m)
        assert counted.seen, solver
        assert counted.seen[0][1] == 12
    with Decompositions() as counted:
        torch.linalg.solve_triangular(m, m, upper=True)
        torch.cholesky_solve(m, m)
    assert not counted.seen


@pytest.mark.parametrize("kind", [MHA, (4, 2, "rotary", True, True)])
@pytest.mark.parametrize("name", ["joint_qk", "joint_vo"])
def test_rounds_are_as_good_as_eigendecompositions(kind, name, narrow) -> None:
    case = toy(*kind)
    options = latentllm.LatentLLMOptions(vo="joint")
    p = latentllm.factor(case.layer, case.moments, options)[name].pair
    for rank in range(1, p.left_side.full, 3):
        ranks = joint.side_ranks(rank, p.left_side.full, p.right_side.full)
        bases = hosvd.alternate(p, *ranks)
        for basis in bases:
            eye = torch.eye(basis.shape[1], dtype=basis.dtype)
            assert torch.allclose(basis.mT @ basis, eye, atol=1e-12)
        exact = hosvd.loss(p, *exact_alternation(p, *ranks))
        assert hosvd.loss(p, *bases) <= exact * (1 + 1e-6)


def test_subspace_of_a_singular_matrix_stays_orthonormal(narrow) -> None:
    """Dead inputs, or fewer tokens than dimensions, leave directions with value zero."""
    for rank_of_m in (0, 3, 14):
        g = torch.Generator().manual_seed(rank_of_m)
        root = torch.randn(20, max(rank_of_m, 1), generator=g, dtype=torch.float64)
        m = root @ root.mT * (rank_of_m > 0)
        basis = torch.eye(20, 12, dtype=torch.float64)
        for _ in range(4):
            basis = subspace.refine_basis(m, basis)
            eye = torch.eye(12, dtype=torch.float64)
            assert torch.allclose(basis.mT @ basis, eye, atol=1e-12)
