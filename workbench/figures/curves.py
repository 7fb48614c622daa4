"""Lines over the rank: singular values, and the energy that a rank loses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import AWARE, CUT, MOST_POINTS, RAW, figure, thinned

HEIGHT = 270  # pixels
LEAST = 1e-6  # of the energy
MOST_DECADES = 2.5  # with ticks between the powers of ten
TWO_LINES = ({"color": AWARE, "width": 2}, {"color": RAW, "width": 2})


@dataclass(frozen=True)
class Curves:
    """Lines over the rank, (label, values), with a line at the rank `cut`.

    note: beside that line; share: the values are shares in [0, 1]; keep: names what is drawn, so
    that the zoom survives a redraw of the same; lines: the look of each; scale: a colour bar in the
    place of their names; most: points of a line.
    """

    title: str
    series: Sequence[tuple[str, Sequence[float]]]
    cut: int | None = None
    note: str = ""
    log: bool = False
    share: bool = False
    keep: str = ""
    lines: Sequence[Mapping[str, Any]] = TWO_LINES
    scale: Mapping[str, Any] | None = None
    most: int = MOST_POINTS


def curves(drawn: Curves) -> str:
    data = [curve(drawn, i) for i in range(len(drawn.series))]
    if drawn.scale is not None:
        data.append(dict(drawn.scale))
    yaxis = {
        "title": {"text": drawn.title, "standoff": 12},
        "type": "log" if drawn.log else "linear",
        "exponentformat": "power",
        "rangemode": "tozero",
    }
    if drawn.share:
        yaxis |= {"tickformat": "~%"}
    if drawn.log:
        yaxis |= log_axis(drawn)
    # a range of its own: the note beside the line would widen it, on a narrow page to below zero
    ranks = max(len(values) for _, values in drawn.series)
    return figure(
        data,
        HEIGHT,
        f"{drawn.keep}{drawn.log}",
        xaxis={"title": {"text": "rank"}, "zeroline": False, "range": [1, max(2, ranks)]},
        yaxis=yaxis,
        **cut_line(drawn),
    )


def log_axis(drawn: Curves) -> dict[str, Any]:
    """Ticks and range of a log axis: a tick per power of ten, more where there are few, and no
    share below `LEAST`: to lose it is to lose nothing.
    """
    known = [float(one) for _, values in drawn.series for one in values if one > 0]
    if not known:
        return {}
    low, high = math.log10(min(known)), math.log10(max(known))
    if drawn.share:
        return {"dtick": 1, "range": [max(low, math.log10(LEAST)), 0.1]}
    return {"dtick": "D2" if high - low < MOST_DECADES else 1}


def curve(drawn: Curves, number: int) -> dict[str, Any]:
    """The line of one series."""
    label, values = drawn.series[number]
    digits = "%{y:.3%}" if drawn.share else "%{y:.6~g}"
    points = drawable(values, drawn.log, drawn.most)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": [i + 1 for i in points],
        "y": [float(values[i]) for i in points],
        "line": drawn.lines[number],
        "showlegend": drawn.scale is None,
        "hovertemplate": f"rank %{{x}}<br>{digits}<extra>{label}</extra>",
    }


def drawable(values: Sequence[float], log: bool, most: int) -> list[int]:
    """Indices of the points to draw. A log axis has no 0: what nothing is lost beyond is left
    out.
    """
    return [i for i in thinned(len(values), most) if values[i] > 0 or not log]


def cut_line(drawn: Curves) -> dict[str, Any]:
    """The shape and the annotation of the line at the rank on show; nothing where there is none.

    The curves fall: what is said stands beneath them at a low rank, above them at a high one.
    """
    if drawn.cut is None:
        return {}
    line = {"color": CUT, "width": 2, "dash": "dash"}
    cut = {"type": "line", "x0": drawn.cut, "x1": drawn.cut, "y0": 0, "y1": 1, "yref": "paper"}
    left = drawn.cut > 0.6 * max(len(values) for _, values in drawn.series)
    note = {
        "x": drawn.cut,
        "y": 0.98 if left else 0.04,
        "yref": "paper",
        "yanchor": "top" if left else "bottom",
        "text": drawn.note,
        "showarrow": False,
        "font": {"color": CUT},
        "xanchor": "right" if left else "left",
        "xshift": -5 if left else 5,
    }
    return {"shapes": [{**cut, "line": line, "name": "cut"}], "annotations": [note]}


def energy_lost(values: np.ndarray) -> np.ndarray:
    """Share of the sum of squares that each rank from 1 on leaves out. values [n], in falling order
    -> [n], in [0, 1], the last 0.
    """
    squares = np.asarray(values, dtype=np.float64) ** 2
    total = squares.sum()
    after = np.append(np.cumsum(squares[::-1])[::-1][1:], 0.0)
    return after / total if total > 0 else np.zeros_like(squares)


def lost_at(lost: np.ndarray, rank: int) -> str:
    """What a rank loses at least, in percent; also where two decimals do not show it."""
    share = float(lost[min(rank, len(lost)) - 1])
    if share == 0:
        return "loses nothing"
    return f"loses at least {share:.2%}" if share >= 1e-4 else f"loses at least {100 * share:.1g}%"
