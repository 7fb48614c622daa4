"""Several layers of one component in one plot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .base import CUT, SERIES
from .contrast import viridis
from .curves import Curves

NAMED = len(SERIES)  # layers that are told apart by name; more by a colour scale
FEW_POINTS = 120  # of one of many lines


def of_layers(drawn: Curves, layers: Mapping[int, np.ndarray], chosen: int) -> Curves:
    """The curves of these layers in the place of those of `drawn`, the chosen one in front and
    thicker; many have the colours of a scale, and the chosen one that of what is selected.
    """
    first, last = min(layers), max(layers)
    scaled = len(layers) > NAMED
    named = dict(zip(sorted(layers), SERIES, strict=False))
    series, lines = [], []
    for layer in sorted(layers, key=lambda layer: layer == chosen):
        colour = rgb((layer - first) / (last - first)) if scaled else named[layer]
        colour = CUT if scaled and layer == chosen else colour
        series.append((f"layer {layer}", layers[layer]))
        lines.append({"color": colour, "width": 4 if layer == chosen else 1.5})
    own = replace(drawn, series=series, lines=lines)
    return replace(own, scale=layer_scale(first, last), most=FEW_POINTS) if scaled else own


def layer_scale(first: int, last: int) -> dict[str, Any]:
    """A trace without points whose colour bar names the layers."""
    bar = {"title": {"text": "layer", "side": "right"}, "thickness": 10, "outlinewidth": 0}
    colours = {"color": [first], "colorscale": "Viridis", "cmin": first, "cmax": last}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "marker": colours | {"showscale": True, "colorbar": bar},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def rgb(share: float) -> str:
    """A colour of the scale Viridis; share in [0, 1]."""
    return f"rgb({','.join(str(round(part)) for part in viridis(share))})"
