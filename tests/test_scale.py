"""Sizes and times in docs/scale.md that follow from shapes and the storage of moments."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lrcore.compression.calibration.layouts import packed_length
from lrcore.layers.statistics import SAMPLE

TEXT = (Path(__file__).parents[1] / "docs/scale.md").read_text(encoding="utf-8")
HEAD, KEY_HEADS = 128, 8
TOKENS = 128 * 2048
SECOND = 1e9  # bytes per second between a worker and the shared folder
MINUTE = 60 * SECOND


@dataclass(frozen=True)
class Shape:
    """Shape of a Llama 3 in 16 bits."""

    layers: int
    width: int
    neurons: int

    @property
    def layer(self) -> int:
        """Bytes of the weights of a layer."""
        d = self.width
        return 2 * (2 * d * d + 2 * d * KEY_HEADS * HEAD + 3 * d * self.neurons)

    @property
    def sides(self) -> tuple[int, ...]:
        """Sizes of the four second moments."""
        return self.width, self.width, self.width, self.neurons

    @property
    def stored(self) -> int:
        """Bytes of the moments of a layer on disk, with the rows of activations."""
        return 4 * sum(map(packed_length, self.sides)) + 2 * SAMPLE * self.width


MODEL_SHAPES = [Shape(32, 4096, 14336), Shape(80, 8192, 28672), Shape(126, 16384, 53248)]


def row(name: str) -> list[str]:
    """Return the cells of the row of numbers with this name."""
    (line,) = (line for line in TEXT.splitlines() if re.match(rf"\| {name} \| [0-9]", line))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def assert_rounded(cells: list[str], values: list[float]) -> None:
    """Compare each cell with its value rounded to the digits of the cell."""
    for cell, value in zip(cells, values, strict=True):
        digits = len(cell.partition(".")[2])
        assert float(cell) == pytest.approx(value, abs=0.5001 * 10**-digits), cells


def test_sizes_follow_from_shapes() -> None:
    sizes = {
        "weights of all decoder layers, GB": [s.layers * s.layer / 1e9 for s in MODEL_SHAPES],
        "weights of a decoder layer, GB": [s.layer / 1e9 for s in MODEL_SHAPES],
        "moments of a layer in memory, GB": [
            (8 * sum(n * n for n in s.sides) + 2 * SAMPLE * s.width) / 1e9 for s in MODEL_SHAPES
        ],
        "moments of a layer on disk, GB": [s.stored / 1e9 for s in MODEL_SHAPES],
        "moments of all layers on disk, TB": [s.layers * s.stored / 1e12 for s in MODEL_SHAPES],
        "hidden states of all windows, GB": [2 * TOKENS * s.width / 1e9 for s in MODEL_SHAPES],
    }
    for name, values in sizes.items():
        assert_rounded(row(name), values)


def test_transfer_times_of_the_shared_folder_follow_from_sizes() -> None:
    """Each worker reads the weights and writes a share in float64; merging reads all shares."""
    large, joined = MODEL_SHAPES[1:], []
    weights = [s.layers * s.layer for s in large for _ in (8, 64)]
    moments = [s.layers * s.stored for s in large for _ in (8, 64)]
    transfers = zip(weights, moments, strict=True)
    read = row("calibration: weights and moments of a share")
    assert_rounded(read, [(weight_bytes + 2 * share) / MINUTE for weight_bytes, share in transfers])
    for workers, share in zip((8, 64, 8, 64), moments, strict=True):
        joined.append((2 * share + share / workers) / MINUTE)
    assert_rounded(row("merging of moments"), joined)
