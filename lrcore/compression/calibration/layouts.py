"""Layouts of the files of statistics: names, shapes and dtypes of the tensors of a layer.

A symmetric matrix is packed: the upper half of the covariance, a quarter of the bytes of the second
moment in float64. Rounding to float32 is relative to each number, so it is small compared to the
errors of the float32 products in the sums. This requires that the means are subtracted first: for a
channel with a mean of 1,000 sigma, `E[x^2]` in float32 keeps one digit of the variance.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...layers.experts import OF_EXPERTS, expert_tap
from ...layers.layer import ACROSS, Layer
from ...layers.statistics import (
    DIRECTION_CHANGES,
    OUTPUT_CURVATURES,
    SECOND,
    STATISTICS,
    Need,
)
from ...models.layers import layer_shapes
from ...models.stream import layer_needs
from .curvature import OUTPUTS
from .working_memory import extent, input_width, tap_widths

EXACT = frozenset({"F64"})
PACKED = frozenset({"F32", "F64"})  # by the dtype of the model; F64 in the workers' shares
SLOPES = frozenset({"F32"})
STATES = frozenset({"F64", "F32", "F16", "BF16"})  # of the model
VECTORS = ("taylor", "param_first", "param_second", "param_mix")  # per row or column of a matrix
BLOCK_ROWS = 32  # rows of a packed block, including entries below the diagonal


@dataclass(frozen=True)
class StatisticForm:
    """A tensor of a file.

    shape: None for a size that does not follow from the layer. dtypes: the allowed ones, by their
    names in safetensors.
    """

    shape: tuple[int | None, ...]
    dtypes: frozenset[str] = EXACT

    def fits(self, shape: Sequence[int], dtype: str) -> bool:
        """Return whether a tensor has this form."""
        return (
            dtype in self.dtypes
            and len(shape) == len(self.shape)
            and all(size in (None, n) for size, n in zip(self.shape, shape, strict=True))
        )


Layout = Mapping[Need, StatisticForm]


def activation_layout(network: PreTrainedModel, index: int, needs: Collection[Need]) -> Layout:
    """Return the layout of the statistics that `LayerStream.run` collects from a layer.

    It covers the residual stream and the taps whose widths follow from the shapes of the layer.
    """
    layer = layer_shapes(network, index)
    widths = _all_tap_widths(layer, {tap for tap, _ in needs})
    layout: dict[Need, StatisticForm] = {}
    for tap, statistic in layer_needs(layer, needs):
        if statistic in DIRECTION_CHANGES:
            layout[tap, statistic] = StatisticForm(())
        elif tap in widths:
            layout |= _forms(tap, statistic, widths[tap])
    return layout


def _all_tap_widths(layer: Layer, taps: Collection[str]) -> dict[str, int]:
    """Return the width of each tap, including the taps of the router."""
    widths = tap_widths(layer, taps)
    if layer.experts is not None and not set(OF_EXPERTS).isdisjoint(taps):
        mlps = layer.experts.mlps
        widths |= {"mlp_in": input_width(mlps[0].up), "routing": len(mlps), "routed": len(mlps)}
    return widths


def _forms(tap: str, statistic: str, width: int) -> dict[Need, StatisticForm]:
    """Return the forms of the tensors that store a statistic of a tap."""
    if statistic == SECOND:
        matrix = StatisticForm((packed_length(width),), PACKED)
        return {(tap, SECOND): matrix, (tap, "square"): StatisticForm((width,))}
    if statistic in STATISTICS:
        return {(tap, statistic): StatisticForm((width,))}
    if statistic == "sample":
        return {(tap, statistic): StatisticForm((None, width), STATES)}
    return {}


def gradient_layout(network: PreTrainedModel, index: int, statistics: Collection[str]) -> Layout:
    """Return the layout of the statistics of gradients of a dense layer."""
    layer, layout = layer_shapes(network, index), dict[Need, StatisticForm]()
    for name, projection in layer.matrices().items():
        d_out, d_in = extent(projection)
        forms = {"fisher": StatisticForm((d_in,)), "slope": StatisticForm((d_out, d_in), SLOPES)}
        if name in ACROSS:
            vector = StatisticForm(((d_out, d_in)[1 - ACROSS[name]],))
            forms |= dict.fromkeys(VECTORS, vector)
        if name in OUTPUTS:
            forms["curvature"] = StatisticForm((d_out, d_out))
        layout |= {
            (name, statistic): form for statistic, form in forms.items() if statistic in statistics
        }
    for name, width in output_widths(layer).items():
        for statistic in set(OUTPUT_CURVATURES) & set(statistics):
            layout[name, statistic] = StatisticForm((packed_length(width),), PACKED)
    return layout


def output_widths(layer: Layer) -> dict[str, int]:
    """Return the number of outputs of each projection, and of each expert's as "up:3"."""
    widths = {name: extent(projection)[0] for name, projection in layer.matrices().items()}
    mlps = () if layer.experts is None else layer.experts.mlps
    return widths | {
        expert_tap(name, number): extent(projection)[0]
        for number, mlp in enumerate(mlps)
        for name, projection in mlp.matrices().items()
    }


# --- packed matrices ---


def pack(second: Tensor, mean: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return second moments [n, n] as one row of about n^2 / 2 numbers.

    mean [n]: the outer product is subtracted first, unless it is None.
    """
    parts = []
    for start, end in _blocks(second.shape[0]):
        rows = second[start:end, start:]
        if mean is not None:
            rows = rows - torch.outer(mean[start:end], mean[start:])
        parts.append(rows.to(dtype).flatten())
    return torch.cat(parts)


def unpack(numbers: Tensor, mean: Tensor | None, size: int) -> Tensor:
    """Return the second moments [size, size], float64, that `pack` has packed."""
    second = numbers.new_empty(size, size, dtype=torch.float64)
    offset = 0
    for start, end in _blocks(size):
        count = (end - start) * (size - start)
        rows = second[start:end, start:]
        rows.copy_(numbers[offset : offset + count].view(end - start, size - start))
        if mean is not None:
            rows += torch.outer(mean[start:end], mean[start:])
        second[end:, start:end] = rows[:, end - start :].mT
        offset += count
    return second


def packed_length(size: int) -> int:
    """Return how many numbers a packed matrix [size, size] has."""
    return sum((end - start) * (size - start) for start, end in _blocks(size))


def packed_size(length: int) -> int:
    """Return the size of the smallest matrix with a `packed_length` of at least `length`."""
    return bisect_left(range(length), length, key=packed_length)


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK_ROWS, size)) for start in range(0, size, BLOCK_ROWS)]
