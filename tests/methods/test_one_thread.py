"""Thread limits of LAPACK: small decompositions use one thread, as several wait for each other."""

import pytest
import torch
from mkl_threads import thread_count
from test_contract import EVERY, ROWS
from test_truncate_decomposes_nothing import Decompositions
from toy_layer import KINDS, toy

from lrcore.methods import error_bounds as bounds
from lrcore.methods import modegpt
from lrcore.system.threads import mkl

pytestmark = pytest.mark.skipif(mkl() is None, reason="torch has no MKL here")
# Cholesky factorizations consist of products of blocks, which use all threads.
PRODUCTS = {"linalg_cholesky_ex", "cholesky_ex"}


@pytest.fixture(autouse=True)
def default_thread_count():
    """Reset the number of threads, which an earlier test may have changed."""
    before = mkl().MKL_Set_Num_Threads_Local(0)
    yield
    mkl().MKL_Set_Num_Threads_Local(before)


class Threads(Decompositions):
    """Record all decompositions that may use several threads, by operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = len(self.seen)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if thread_count() == 1:
            del self.seen[before:]
        return result

    @property
    def several(self) -> set[str]:
        return {operation for operation, _ in self.seen} - PRODUCTS


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("method", "kind"), [case for case in EVERY if case.values[1] in (KINDS[0], KINDS[-1])]
)
def test_methods_decompose_with_one_thread(method: tuple[str, dict], kind: tuple) -> None:
    case, row = toy(*kind), ROWS[method[0]]
    with Threads() as counted:
        for factor in row.factor(case.layer, case.moments, row.choose(method[1])).values():
            factor.truncate(case.layer, factor.cost.ranks()[1])
    assert not counted.several


def test_bounds_decompose_with_one_thread() -> None:
    for kind in KINDS:
        case = toy(*kind)
        factors = modegpt.factor(case.layer, case.moments)
        with Threads() as counted:
            for name, factor in factors.items():
                rank = factor.cost.ranks()[0]
                bounds.BOUNDS[name](case.layer, case.moments, factor, rank)
        assert not counted.several, kind


def test_decompositions_without_a_limit_are_recorded() -> None:
    with Threads() as counted:
        torch.linalg.svdvals(torch.eye(3))
        torch.linalg.cholesky(torch.eye(3))
    assert counted.several == {"linalg_svd"}
