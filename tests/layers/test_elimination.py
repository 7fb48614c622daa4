"""Greedy elimination of columns, compared with single steps on full matrices."""

import pytest
import torch

from lrcore.layers import elimination
from lrcore.layers.elimination import ELIMINATED, elimination_order, inverse_of_, panels, shrunk_
from lrcore.layers.linalg import cholesky


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def single_step_order(weight: torch.Tensor, gram: torch.Tensor) -> list[int]:
    """Return the order of greedy elimination, one column at a time."""
    weight, inverse = weight.clone(), torch.cholesky_inverse(cholesky(gram))
    alive, removed = set(range(weight.shape[1])), []
    while alive:
        scores = (weight**2).sum(0) / inverse.diagonal()
        j = min(alive, key=lambda column: float(scores[column]))
        step = inverse[j] / inverse[j, j]
        weight = weight - weight[:, j : j + 1] * step
        inverse = inverse - torch.outer(step, inverse[j])
        alive.remove(j)
        removed.append(j)
    return removed[::-1]


@pytest.mark.parametrize("n", [5, ELIMINATED - 1, ELIMINATED, 2 * ELIMINATED + 9])
def test_elimination_in_blocks_equals_single_steps(n: int) -> None:
    x = random(3 * n, n, seed=n) * torch.linspace(0.05, 1, n, dtype=torch.float64)
    weight, gram = random(7, n, seed=1), x.mT @ x / (3 * n)
    assert elimination_order(weight, gram).tolist() == single_step_order(weight, gram)


def test_elimination_keeps_one_of_each_pair_of_near_duplicates() -> None:
    half = 520  # 1,040 columns: several columns per step would remove both columns of a pair
    x, twin = random(2 * half, half), random(2 * half, half, seed=1)
    x = torch.cat((x, x + 1e-3 * twin), dim=1)
    order = elimination_order(random(16, half, seed=2).repeat(1, 2), x.mT @ x / (2 * half))
    assert set((order[:half] % half).tolist()) == set(range(half))


@pytest.mark.parametrize("size", [40, 64, 100])
def test_panel_size_does_not_change_the_order(size: int, monkeypatch) -> None:
    x = random(500, 230, seed=3) * torch.linspace(0.05, 1, 230, dtype=torch.float64)
    weight, gram = random(7, 230, seed=1), x.mT @ x / 500
    in_one_block = elimination_order(weight, gram)
    monkeypatch.setattr(elimination, "PANEL", size)
    monkeypatch.setattr(elimination, "ELIMINATED", 16)
    assert torch.equal(elimination_order(weight, gram), in_one_block)


def test_shrunk_matrices_reuse_their_memory(monkeypatch) -> None:
    monkeypatch.setattr(elimination, "PANEL", 8)
    matrices = random(2, 30, 30)
    matrices += matrices.mT.clone()
    columns = torch.tensor([0, 3, 4, 7, 8, 9, 15, 16, 17, 18, 20, 25, 26, 27, 29])
    expected = matrices[:, columns][:, :, columns]
    for start, end in panels(30):  # entries above the panels are invalid
        matrices[:, start:end, end:] = torch.nan
    small = shrunk_(matrices, columns)
    assert small.data_ptr() == matrices.data_ptr()
    for start, end in panels(len(columns)):
        assert torch.equal(small[:, start:end, :end], expected[:, start:end, :end])


def test_inverse_overwrites_the_lower_panels_of_the_factor(monkeypatch) -> None:
    monkeypatch.setattr(elimination, "PANEL", 8)
    x = random(60, 21)
    gram = x.mT @ x / 60
    lower = cholesky(gram)
    literal = torch.linalg.inv(lower @ lower.mT)
    got = inverse_of_(lower)
    assert got is lower
    for start, end in panels(21):
        assert torch.allclose(got[start:end, :end], literal[start:end, :end], rtol=1e-6)
