"""The bound that the calibration of a made-up model of 7 or 8 billion parameters is held against,
and the table that shows it.
"""

import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.insert(0, SCRIPTS)
import scale  # noqa: E402 (its folder is no package)

sys.path.remove(SCRIPTS)

TERA = {torch.bfloat16: 1e3, torch.float32: 1e3, torch.float64: 1e3}  # GFLOP/s


@pytest.mark.parametrize(
    ("shape", "weights"), [("llama-2-7b", 202_375_168), ("llama-3-8b", 218_103_808)]
)
def test_the_bound_of_calibration_counts_projections_and_one_triangle(shape, weights) -> None:
    tokens = scale.SAMPLES * scale.LENGTH
    neurons = {"llama-2-7b": 11008, "llama-3-8b": 14336}[shape]
    products = 3 * 4096 * 4096 + neurons * neurons  # half of two FLOPs each
    expected = tokens * (2 * weights + products) / 1e12
    assert scale.calibration_bound(shape, TERA) == pytest.approx(expected, rel=1e-12)


def test_the_table_says_what_share_of_the_bound_calibration_reaches(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(scale, "matmul_rate", TERA.get)
    bound = scale.calibration_bound("llama-2-7b", TERA)
    row = {"seconds": {"calibrate": 4 * bound}, "total": 4 * bound, "processors": 1.0}
    rows = {"calibrate": row | {"peak": 2 * 10**9, "cache": 10**9}}
    text = scale.section(tmp_path, "llama-2-7b", 2, rows)
    assert "1000 in bfloat16, 1000 in float32" in text
    assert f"take {2 * bound:,.0f} s, 50% of the time" in text
