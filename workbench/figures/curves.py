"""Figures of singular values and of lost energy by rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import AWARE, CUT, MAX_POINTS, RAW, figure, log_ticks, thinned_indices

HEIGHT = 270  # pixels
MIN_SHARE = 1e-6  # lower limit of the axis of lost energy
TWO_LINES = ({"color": AWARE, "width": 2}, {"color": RAW, "width": 2})


@dataclass(frozen=True)
class Curves:
    """Lines (label, values) by rank, with a vertical line at the rank `cut`.

    cut_label: label of that line. is_share: whether the values are shares in [0, 1]. zoom_key: see
    `figure`. lines: style of each line. color_bar: a trace with a color bar instead of a legend.
    max_points: points per line.
    """

    title: str
    series: Sequence[tuple[str, Sequence[float]]]
    cut: int | None = None
    cut_label: str = ""
    is_log: bool = False
    is_share: bool = False
    zoom_key: str = ""
    lines: Sequence[Mapping[str, Any]] = TWO_LINES
    color_bar: Mapping[str, Any] | None = None
    max_points: int = MAX_POINTS


def curves(plot: Curves) -> str:
    data = [curve(plot, i) for i in range(len(plot.series))]
    if plot.color_bar is not None:
        data.append(dict(plot.color_bar))
    yaxis = {
        "title": {"text": plot.title, "standoff": 12},
        "type": "log" if plot.is_log else "linear",
        "exponentformat": "power",
        "rangemode": "tozero",
    }
    if plot.is_share:
        yaxis |= {"tickformat": "~%"}
    if plot.is_log:
        yaxis |= log_axis(plot)
    # explicit range: the label of the cut would extend it, on a narrow page below zero
    ranks = max(len(values) for _, values in plot.series)
    return figure(
        data,
        HEIGHT,
        f"{plot.zoom_key}{plot.is_log}",
        xaxis={"title": {"text": "rank"}, "zeroline": False, "range": [1, max(2, ranks)]},
        yaxis=yaxis,
        **cut_line(plot),
    )


def log_axis(plot: Curves) -> dict[str, Any]:
    """Return ticks and range of a log axis.

    Ticks as in `log_ticks`; shares have a tick per power of ten. Shares below `MIN_SHARE` are
    outside the range.
    """
    positive = [float(value) for _, values in plot.series for value in values if value > 0]
    if not positive:
        return {}
    low, high = min(positive), max(positive)
    if plot.is_share:
        return {"dtick": 1, "range": [math.log10(max(low, MIN_SHARE)), 0.1]}
    return log_ticks(low, high)


def curve(plot: Curves, number: int) -> dict[str, Any]:
    """Return the line of a series."""
    label, values = plot.series[number]
    digits = "%{y:.3%}" if plot.is_share else "%{y:.6~g}"
    points = drawable(values, plot.is_log, plot.max_points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": [i + 1 for i in points],
        "y": [float(values[i]) for i in points],
        "line": plot.lines[number],
        "showlegend": plot.color_bar is None,
        "hovertemplate": f"rank %{{x}}<br>{digits}<extra>{label}</extra>",
    }


def drawable(values: Sequence[float], log: bool, limit: int) -> list[int]:
    """Return the indices of the points to draw. On a log axis, zeros are omitted."""
    return [i for i in thinned_indices(len(values), limit) if values[i] > 0 or not log]


def cut_line(plot: Curves) -> dict[str, Any]:
    """Return the line at the rank of the displayed plan with its label; {} without a rank.

    The curves fall, so the label is below them at a low rank and above them at a high rank.
    """
    if plot.cut is None:
        return {}
    line = {"color": CUT, "width": 2, "dash": "dash"}
    cut = {"type": "line", "x0": plot.cut, "x1": plot.cut, "y0": 0, "y1": 1, "yref": "paper"}
    is_right = plot.cut > 0.6 * max(len(values) for _, values in plot.series)
    annotation = {
        "x": plot.cut,
        "y": 0.98 if is_right else 0.04,
        "yref": "paper",
        "yanchor": "top" if is_right else "bottom",
        "text": plot.cut_label,
        "showarrow": False,
        "font": {"color": CUT},
        "xanchor": "right" if is_right else "left",
        "xshift": -5 if is_right else 5,
    }
    return {"shapes": [{**cut, "line": line, "name": "cut"}], "annotations": [annotation]}


def energy_lost(values: np.ndarray) -> np.ndarray:
    """Return the share of the sum of squares lost by each rank from 1.

    values [n], in descending order -> [n], in [0, 1]; the last share is 0.
    """
    squares = np.asarray(values, dtype=np.float64) ** 2
    total = squares.sum()
    remaining = np.append(np.cumsum(squares[::-1])[::-1][1:], 0.0)
    return remaining / total if total > 0 else np.zeros_like(squares)


def lost_at(lost: np.ndarray, rank: int) -> str:
    """Return the minimum loss of a rank as text; small losses have more decimals."""
    share = float(lost[min(rank, len(lost)) - 1])
    if share == 0:
        return "loses 0%"
    return f"loses at least {share:.2%}" if share >= 1e-4 else f"loses at least {100 * share:.1g}%"
