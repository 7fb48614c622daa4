"""Outliers among the input-weighted weights of a layer: what the policy `owl` reads."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..as_json import json_text
from ..cache import read_as
from ..files import write_text
from ..layer import Layer
from ..statistics import BLOCK, TAPS, Moments

THRESHOLDS = 20
FILE = "outliers.json"  # beside the moments of a calibration: the counts hold for every method


def outlier_ratios(layer: Layer, moments: Moments) -> tuple[float, ...]:
    """Share of all entries of `|W_ij| |x_j|_2`, over all matrices of the layer, that are 1, 2, ...
    THRESHOLDS times their mean or more.

    OWL, section 3.2: its layerwise outlier distribution D_l for M = 1, 2, ... The norm of an input
    is the root of its second moment times the number of tokens, which the ratio to the mean does
    not see. Shares are in [0, 1] and fall; zeros for a layer of zeros.
    """
    scales = {name: moments.square(TAPS[name]).clamp_min(0).sqrt() for name in layer.matrices()}
    total, count = 0.0, 0
    for name, projection in layer.matrices().items():
        for rows in projection.weight.split(BLOCK):
            total += float(rows.abs().sum(0, dtype=torch.float64) @ scales[name])
            count += rows.numel()
    if total == 0:
        return (0.0,) * THRESHOLDS
    below = torch.zeros(THRESHOLDS, dtype=torch.float64)
    for name, projection in layer.matrices().items():
        scale = (scales[name] * (count / total)).float()
        for rows in projection.weight.split(BLOCK):
            below += torch.histc(rows.abs().float() * scale, THRESHOLDS, 0, THRESHOLDS).cpu()
    return tuple((1 - below.cumsum(0) / count).clamp_min(0).tolist())


def read_outliers(folder: Path, layers: int) -> list[tuple[float, ...]]:
    """The ratios of every layer that were counted with these moments; empty where none were."""
    known = read_as(folder / FILE, _ratios) or []
    return known if len(known) == layers else []


def _ratios(kept: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Raises ValueError for what are no ratios."""
    ratios = [tuple(map(float, own)) for own in kept]
    if any(len(own) != THRESHOLDS for own in ratios):
        raise ValueError(len(ratios))
    return ratios


def keep_outliers(folder: Path, ratios: Sequence[tuple[float, ...]]) -> None:
    """Write the ratios of all layers, for whichever method is factorised next."""
    write_text(folder / FILE, json_text(ratios))
