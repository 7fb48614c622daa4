"""Colors, default layout and axes of all figures."""

import math
from collections.abc import Sequence
from typing import Any

from lrcore.system.as_json import json_text

from ..base.numbers import MINUS, THIN

AWARE, RAW, GHOST, CUT = "#3987c9", "#e08a2e", "rgba(140,145,155,0.42)", "#c2417c"
# Paul Tol's bright set: suitable for color-blind readers, visible on white and near-black.
SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#bb6633")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "pentagon", "cross", "hexagon")
# by form of a part
FORM_COLORS = {"": AWARE, "narrowed": AWARE, "pairs": RAW, "latent": "#2f9e7c"}
# by bits of a slot, 0: not quantized; light enough for black numbers
BIT_COLORS = {0: "#8c95a4", 8: AWARE, 4: "#2f9e7c", 3: "#d9a520", 2: "#e2764f"}
CLEAR = "rgba(0,0,0,0)"
MAX_POINTS = 500

# Ten colors, evenly spaced from 0 to 1; other colors are interpolated
VIRIDIS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 73, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (110, 206, 88),
    (181, 222, 43),
    (253, 231, 37),
)
BLACK, WHITE, GRAY = "#000000", "#ffffff", "#767676"  # readable on white and on black
EQUAL_CONTRAST = 0.179  # relative luminance with a contrast of 4.6:1 to black and to white


def figure(data: list[dict], height: int, zoom_key: str, **layout: Any) -> str:
    """Return a Plotly figure as JSON.

    height: in pixels. zoom_key: redraws with the same key keep the zoom.
    """
    defaults = {
        "height": height,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "uirevision": zoom_key,
        "separators": f".{THIN}",
        "margin": {"t": 28, "r": 12, "b": 40, "l": 72},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "bgcolor": CLEAR},
        "modebar": {"bgcolor": CLEAR, "orientation": "h"},
    }
    return json_text({"data": data, "layout": defaults | layout}, default=float, nulls=True)


def captioned(figure_json: str, caption: str) -> str:
    """Return the JSON of a figure with a caption; "" for "".

    The caption is inserted as text, because parsing a large figure would delay slider moves.
    """
    return f'{{"caption": {json_text(caption)}, {figure_json[1:]}' if figure_json else ""


def faint(color: str, opacity: float) -> str:
    """Return a color "#rrggbb" with an opacity."""
    return f"rgba({','.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))},{opacity})"


def layer_axis(layers: int, **options: Any) -> dict[str, Any]:
    """Return the x axis of layers, with a tick per layer for up to 32 layers."""
    return {"title": {"text": "layer", "standoff": 4}, "dtick": 1 if layers <= 32 else 4, **options}


def stacked_axis(name: str, i: int, count: int, gap: float) -> dict[str, Any]:
    """Return the y axis of the i-th of `count` stacked plots, for shares in [0, 1].

    gap: between two plots, as a share of the total height.
    """
    top = 1 - i / count
    return share_axis(name) | {"domain": [max(0, top - 1 / count + gap), top]}


def share_axis(name: str) -> dict[str, Any]:
    """Return the y axis for shares in [0, 1]."""
    return {
        "range": [0, 1.05],
        "tickformat": ".0%",
        "nticks": 3,
        "title": {"text": name, "standoff": 14},
    }


def log_ticks(low: float, high: float, most: int = 8) -> dict[str, Any]:
    """Return the ticks of a log axis from `low` > 0 to `high`.

    They are 1, 2 and 5 times the powers of ten if at most `most` of these lie in the range, else
    the powers of ten. Plotly would label the tick at 50 as "5".
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    if sum(low <= tick <= high for tick in ticks) > most:
        ticks = [10.0**power for power in powers]
    return labeled_ticks(ticks)


def labeled_ticks(ticks: Sequence[float]) -> dict[str, Any]:
    """Return the ticks of an axis with their complete values as labels."""
    return {"tickvals": ticks, "ticktext": [tick_label(tick) for tick in ticks]}


def tick_label(tick: float) -> str:
    """Return 1, 2 or 5 times a power of ten, as a number or with an exponent."""
    if 1e-4 <= tick < 1e5:
        return f"{tick:g}"
    digit, exponent = f"{tick:.0e}".split("e")
    power = f"10<sup>{int(exponent)}</sup>".replace("-", MINUS)
    return power if digit == "1" else f"{digit}·{power}"


def axis_suffix(i: int) -> str:
    """Return the suffix of "y" and "yaxis" for the i-th axis in Plotly; "" for the first."""
    return str(i + 1) if i else ""


def thinned_indices(count: int, limit: int = MAX_POINTS) -> list[int]:
    """Return the indices to draw: all, or about `limit`.

    Half of the indices are evenly spaced, half geometrically, so that a steep start has its shape.
    """
    if count <= limit:
        return list(range(count))
    half = limit // 2
    even = {round(i * (count - 1) / (half - 1)) for i in range(half)}
    steep = {round(math.exp(i * math.log(count) / (half - 1))) - 1 for i in range(half)}
    return sorted(i for i in even | steep if 0 <= i < count)


def viridis(share: float) -> tuple[float, ...]:
    """Return red, green and blue in [0, 255] for a position `share` in [0, 1] of the scale."""
    position = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(position), len(VIRIDIS) - 2)
    return tuple(
        a + (position - low) * (b - a) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    )


def luminance(color: tuple[float, ...]) -> float:
    """Return the relative luminance of WCAG 2, in [0, 1]."""
    channels = [channel / 255 for channel in color]
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(share: float) -> str:
    """Return black or white, with a contrast of at least 4.5:1 to a color of the scale."""
    return BLACK if luminance(viridis(share)) > EQUAL_CONTRAST else WHITE
