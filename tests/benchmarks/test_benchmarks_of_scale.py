"""Lower bounds of the time to compress models of 7 and 8 billion parameters, and their table."""

import pytest
import torch

from benchmarks import operations, scale


@pytest.mark.parametrize(
    ("shape", "weights"), [("llama-2-7b", 202_375_168), ("llama-3-8b", 218_103_808)]
)
def test_calibration_counts_projections_and_one_triangle_of_each_product(shape, weights) -> None:
    tokens = scale.SAMPLES * scale.LENGTH
    neurons = {"llama-2-7b": 11008, "llama-3-8b": 14336}[shape]
    counts = scale.calibration_operations(scale.MODEL_SHAPES[shape])
    assert counts["bfloat16"] == 2 * weights * tokens
    # half of two operations each
    assert counts["float32"] == (3 * 4096 * 4096 + neurons * neurons) * tokens


def test_products_and_decompositions_are_counted() -> None:
    a, b = torch.eye(6, dtype=torch.float64), torch.ones(6, 2)
    with operations.Operations() as counted:
        _ = a @ a + a  # sums are not counted
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
    shape, counts = scale.MODEL_SHAPES["llama-2-7b"], []
    for reduction in (32, 16):
        monkeypatch.setattr(operations, "REDUCTION", reduction)
        counts.append(operations.count_layer(shape, "svd_llm", {}))
    assert counts[0] == pytest.approx(counts[1], rel=0.02)
    # six of 4096 columns, by eigenvectors and products of the smaller side
    assert 20 < counts[1][torch.float64] / 4096**3 < 200


def test_the_table_divides_the_bound_by_the_time(tmp_path) -> None:
    rates = dict.fromkeys(scale.DTYPES, 1e3)
    shared = {"total": 4.0, "processors": 1.0, "peak": 2 * 10**9, "cache": 10**9, "rates": rates}
    shared |= {"machine": "first"}
    calibrated = shared | {"seconds": {"calibrate": 4.0}, "operations": {"float32": 1e12}}
    compressed = shared | {
        "seconds": {"calibrate": 0.1, "factorize": 8.0, "compress": 2.0},
        "operations": {"float64": 3e12},
    }
    text = scale.section(tmp_path, "llama-2-7b", 2, {"calibrate": calibrated, "care": compressed})
    assert "1000 in bfloat16, 1000 in float32" in text
    assert "| calibrate | 4.0 |  | 50% |" in text
    assert "| care |  | 8.0 | 75% | 2.0 | 5.0 |" in text
    assert "uniform ranks; first; GFLOP/s" in text
    text = scale.section(
        tmp_path,
        "llama-2-7b",
        2,
        {"calibrate": calibrated, "care": compressed | {"machine": "second"}},
    )
    assert "`calibrate`: first; `care`: second; GFLOP/s" in text
