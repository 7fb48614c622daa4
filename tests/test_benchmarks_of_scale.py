"""The bounds that making a model of 7 or 8 billion parameters smaller is held against, and the
table that shows them.
"""

import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.insert(0, SCRIPTS)
import scale  # noqa: E402 (its folder is no package)
from bench import operations  # noqa: E402

sys.path.remove(SCRIPTS)


@pytest.mark.parametrize(
    ("shape", "weights"), [("llama-2-7b", 202_375_168), ("llama-3-8b", 218_103_808)]
)
def test_calibrating_counts_projections_and_one_triangle(shape, weights) -> None:
    tokens = scale.SAMPLES * scale.LENGTH
    neurons = {"llama-2-7b": 11008, "llama-3-8b": 14336}[shape]
    counted = scale.calibration_operations(scale.SHAPES[shape])
    assert counted["bfloat16"] == 2 * weights * tokens
    # half of two operations each
    assert counted["float32"] == (3 * 4096 * 4096 + neurons * neurons) * tokens


def test_operations_are_those_of_products_and_decompositions() -> None:
    a, b = torch.eye(6, dtype=torch.float64), torch.ones(6, 2)
    with operations.Operations() as counted:
        _ = a @ a + a  # a sum counts nothing
        torch.mm(a, a, out=torch.empty_like(a))
        torch.linalg.eigh(a)
        torch.linalg.cholesky_ex(a, upper=True)
        torch.linalg.solve_triangular(a, b.double(), upper=True)
        torch.linalg.qr(a, mode="r")
        torch.linalg.svd(a)
        torch.linalg.solve(a, b.double())
        a.float() @ b
    six = 6**3
    products, decompositions = 2 * 2 * six, six * (14 / 3 + 1 / 3 + 4 / 3 + 26 + 2 / 3)
    solved = 6 * 12 + 2 * 6 * 12
    assert counted.by_dtype[torch.float64] == pytest.approx(products + decompositions + solved)
    assert counted.by_dtype[torch.float32] == 2 * 6 * 12


def test_operations_of_a_layer_grow_with_the_cube_of_its_width(monkeypatch) -> None:
    shape, counts = scale.SHAPES["llama-2-7b"], []
    for part in (32, 16):
        monkeypatch.setattr(operations, "PART", part)
        counts.append(operations.of_a_layer(shape, "svd_llm", {}))
    assert counts[0] == pytest.approx(counts[1], rel=0.02)
    # six of 4096 columns, by eigenvectors and products of the smaller side
    assert 20 < counts[1][torch.float64] / 4096**3 < 200


def test_the_table_says_what_share_of_its_bound_a_stage_reaches(tmp_path) -> None:
    rates = dict.fromkeys(scale.DTYPES, 1e3)
    every = {"total": 4.0, "processors": 1.0, "peak": 2 * 10**9, "cache": 10**9, "rates": rates}
    every |= {"machine": "one"}
    calibrated = every | {"seconds": {"calibrate": 4.0}, "operations": {"float32": 1e12}}
    made = every | {
        "seconds": {"calibrate": 0.1, "factorise": 8.0, "compress": 2.0},
        "operations": {"float64": 3e12},
    }
    text = scale.section(tmp_path, "llama-2-7b", 2, {"calibrate": calibrated, "care": made})
    assert "1000 in bfloat16, 1000 in float32" in text
    assert "| calibrate | 4.0 |  | 50% |" in text
    assert "| care |  | 8.0 | 75% | 2.0 | 5.0 |" in text
    assert "uniform ranks; one; GFLOP/s" in text
    text = scale.section(
        tmp_path, "llama-2-7b", 2, {"calibrate": calibrated, "care": made | {"machine": "other"}}
    )
    assert "`calibrate`: one; `care`: other; GFLOP/s" in text
