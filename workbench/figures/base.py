"""What all figures share: colours, the layout they start from, axes over layers."""

import math
from typing import Any

import lrcore

from ..numbers import THIN

AWARE, RAW, GHOST, CUT = "#3987c9", "#e08a2e", "rgba(140,145,155,0.42)", "#c2417c"
# Paul Tol's bright set: told apart by colour-blind eyes, visible on white and on near-black.
SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#bb6633")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "pentagon", "cross", "hexagon")
# of the forms of a part
FORM_COLOURS = {"": AWARE, "narrowed": AWARE, "pairs": RAW, "latent": "#2f9e7c"}
CLEAR = "rgba(0,0,0,0)"
MOST_POINTS = 500


def figure(data: list[dict], height: int, keep: str, **layout: Any) -> str:
    """The JSON of a plotly figure.

    height: in pixels; keep: the zoom survives redraws as long as this stays the same.
    """
    base = {
        "height": height,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "uirevision": keep,
        "separators": f".{THIN}",
        "margin": {"t": 28, "r": 12, "b": 40, "l": 72},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "bgcolor": CLEAR},
        "modebar": {"bgcolor": CLEAR, "orientation": "h"},
    }
    return lrcore.json_text({"data": data, "layout": base | layout}, default=float, nulls=True)


def captioned(drawn: str, caption: str) -> str:
    """A figure's JSON with its caption; "" stays empty. It is put before the rest as text, for
    reading a large figure again would be felt at every move of a slider.
    """
    return f'{{"caption": {lrcore.json_text(caption)}, {drawn[1:]}' if drawn else ""


def faint(colour: str, opacity: float) -> str:
    """A colour of these constants, "#rrggbb", that lets through what is behind it."""
    return f"rgba({','.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))},{opacity})"


def layer_axis(layers: int, **more: Any) -> dict[str, Any]:
    """The x axis over layers: every number where there is room for it."""
    return {"title": {"text": "layer", "standoff": 4}, "dtick": 1 if layers <= 32 else 4, **more}


def stacked_axis(name: str, i: int, count: int, gap: float) -> dict[str, Any]:
    """The y axis of the i-th of `count` plots that stand one above the other, a share in [0, 1].

    gap: between two of them, of the whole height.
    """
    high = 1 - i / count
    return share_axis(name) | {"domain": [max(0, high - 1 / count + gap), high]}


def share_axis(name: str) -> dict[str, Any]:
    """The y axis of a plot of shares in [0, 1]."""
    return {
        "range": [0, 1.05],
        "tickformat": ".0%",
        "nticks": 3,
        "title": {"text": name, "standoff": 14},
    }


def axis_number(i: int) -> str:
    """What plotly appends to "y" and "yaxis" for the i-th axis: nothing for the first."""
    return str(i + 1) if i else ""


def thinned(count: int, most: int = MOST_POINTS) -> list[int]:
    """Indices to draw: all, or about `most`, half of them spread evenly and half geometrically (the
    steep start keeps its shape).
    """
    if count <= most:
        return list(range(count))
    half = most // 2
    even = {round(i * (count - 1) / (half - 1)) for i in range(half)}
    steep = {round(math.exp(i * math.log(count) / (half - 1))) - 1 for i in range(half)}
    return sorted(i for i in even | steep if 0 <= i < count)
