"""Outliers among the weights of a layer, scaled by their inputs, for the policy `owl`."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ...layers.layer import Layer
from ...layers.statistics import BLOCK, TAPS, Moments
from ...system.as_json import json_text
from ...system.cache import read_as
from ...system.files import write_text

THRESHOLDS = 20
FILE = "outliers.json"  # in the folder of a calibration: the ratios are the same for all methods


def outlier_ratios(layer: Layer, moments: Moments) -> tuple[float, ...]:
    """Return the share of entries of `|W_ij| |x_j|_2` that are at least M times their mean.

    M = 1 .. THRESHOLDS; entries and mean are over all matrices of the layer. This is the layerwise
    outlier distribution D_l of OWL, section 3.2. The norm of an input is the root of the second
    moment times the number of tokens, which cancels in the ratio to the mean. The shares are in
    [0, 1] and descending; zeros for a layer of zeros.
    """
    matrices = layer.matrices()
    scales = {name: moments.square(TAPS[name]).clamp_min(0).sqrt() for name in matrices}
    # sums stay on the device until the end: a GPU would wait for each number that is read
    device = next((projection.weight.device for projection in matrices.values()), None)
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for name, projection in matrices.items():
        for rows in projection.weight.split(BLOCK):
            total += rows.abs().sum(0, dtype=torch.float64) @ scales[name]
            count += rows.numel()
    if not total:
        return (0.0,) * THRESHOLDS
    below = total.new_zeros(THRESHOLDS)
    for name, projection in matrices.items():
        scale = (scales[name] * (count / total)).float()
        for rows in projection.weight.split(BLOCK):
            below += torch.histc(rows.abs().float() * scale, THRESHOLDS, 0, THRESHOLDS)
    return tuple((1 - below.cumsum(0) / count).clamp_min(0).tolist())


def read_outliers(folder: Path, layers: int) -> list[tuple[float, ...]]:
    """Return the ratios of each layer from a calibration's folder; empty if not stored."""
    ratios = read_as(folder / FILE, _parse_ratios) or []
    return ratios if len(ratios) == layers else []


def _parse_ratios(values: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the ratios of a JSON file. Raises ValueError for invalid contents."""
    ratios = [tuple(map(float, layer_ratios)) for layer_ratios in values]
    if any(len(layer_ratios) != THRESHOLDS for layer_ratios in ratios):
        raise ValueError(len(ratios))
    return ratios


def write_outliers(folder: Path, ratios: Sequence[tuple[float, ...]]) -> None:
    """Write the ratios of all layers to a calibration's folder."""
    write_text(folder / FILE, json_text(ratios))
