"""Every head of one slot side by side: small plots on the same axes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import CUT, axis_number, figure
from .curves import TWO_LINES, Curves, drawable

PANEL = 100  # pixels of a head's plot
FEW_POINTS = 60  # of a line in it
LEAST = 1e-8  # of the greatest value: what is smaller leaves a log axis
Values = Sequence[tuple[str, np.ndarray]]


def head_grid(heads: Sequence[Values], drawn: Curves) -> str:
    """One small plot per head, all on the same axes, four or eight beside each other.

    heads: for each the lines by label; drawn: title, cut and axes.
    """
    across = 4 if len(heads) <= 16 else 8
    down = math.ceil(len(heads) / across)
    high = PANEL * down + 90
    ranks = max(len(values) for lines in heads for _, values in lines)
    bounds = range_of([values for lines in heads for _, values in lines], drawn.log)
    axes: dict[str, Any] = {}
    for i in range(len(heads)):
        row, column = divmod(i, across)
        edges = column == 0, i + across >= len(heads)
        place = grid_place(row, column, across, down)
        axes |= panel_axes(i, place, edges, drawn)
        axes[f"xaxis{axis_number(i)}"]["range"] = [1, max(2, ranks)]
        axes[f"yaxis{axis_number(i)}"]["range"] = bounds
    return figure(
        [line for i, lines in enumerate(heads) for line in panel_lines(i, lines, drawn)],
        high,
        f"{drawn.keep}{drawn.log}{len(heads)}",
        shapes=[] if drawn.cut is None else [cut_of(i, drawn.cut) for i in range(len(heads))],
        annotations=[*(name_of(i) for i in range(len(heads))), *titles(drawn.title)],
        margin={"t": 46, "r": 12, "b": 40, "l": 64},
        **axes,
    )


def range_of(lines: Sequence[np.ndarray], log: bool) -> list[float]:
    """The range of the y axis that all panels share; of a log axis its decades."""
    shown = np.concatenate(lines)
    most = float(shown.max())
    if not log or most <= 0:
        return [0.0, 1.05 * most or 1.0]
    low = max(float(shown[shown > 0].min()), LEAST * most)
    return [math.log10(low) - 0.1, math.log10(most) + 0.1]


def titles(y: str) -> list[dict[str, Any]]:
    """What the axes of the whole are."""
    common = {"name": "title", "xref": "paper", "yref": "paper", "showarrow": False}
    below = {"text": "rank", "x": 0.5, "y": 0, "yanchor": "top", "yshift": -22}
    left = {"text": y, "x": 0, "y": 0.5, "xanchor": "center", "xshift": -46, "textangle": -90}
    return [common | below | {"font": {"size": 12}}, common | left | {"font": {"size": 12}}]


def grid_place(row: int, column: int, across: int, down: int) -> tuple[list[float], list[float]]:
    """The domains of a panel on the x and the y axis of the whole."""
    wide, high = 1 / across, 1 / down
    left, top = column * wide, 1 - row * high
    return [left + 0.07 * wide, left + 0.96 * wide], [top - 0.8 * high, top - 0.04 * high]


def panel_axes(
    i: int, place: tuple[list[float], list[float]], edges: tuple[bool, bool], drawn: Curves
) -> dict[str, Any]:
    """The axes of the i-th panel. edges: whether it stands at the left, and at the bottom, where
    the numbers are.
    """
    number = axis_number(i)
    common = {"nticks": 3, "tickfont": {"size": 9}, "zeroline": False}
    y = common | {"domain": place[1], "anchor": f"x{number}", "showticklabels": edges[0]}
    y |= {"type": "log" if drawn.log else "linear", "exponentformat": "power"}
    if drawn.log:
        y["dtick"] = 2 if drawn.share else 1
    if drawn.share:
        y["tickformat"] = "~%"
    x = common | {"domain": place[0], "anchor": f"y{number}", "showticklabels": edges[1]}
    x |= {"nticks": 2, "tickangle": 0}
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def panel_lines(i: int, lines: Values, drawn: Curves) -> list[dict[str, Any]]:
    number, traces = axis_number(i), []
    digits = "%{y:.3%}" if drawn.share else "%{y:.6~g}"
    for (label, values), line in zip(lines, TWO_LINES, strict=True):
        points = drawable(values, drawn.log, FEW_POINTS)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "legendgroup": label,
                "showlegend": i == 0,
                "x": [j + 1 for j in points],
                "y": [float(values[j]) for j in points],
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "line": {**line, "width": 1.5},
                "hovertemplate": f"head {i}<br>rank %{{x}}<br>{digits}<extra>{label}</extra>",
            }
        )
    return traces


def name_of(i: int) -> dict[str, Any]:
    """The head's number in the upper right corner of its panel."""
    number = axis_number(i)
    return {
        "name": "title",
        "text": str(i),
        "xref": f"x{number} domain",
        "yref": f"y{number} domain",
        "x": 0.98,
        "y": 0.98,
        "xanchor": "right",
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": 10},
    }


def cut_of(i: int, rank: int) -> dict[str, Any]:
    number = axis_number(i)
    place = {"x0": rank, "x1": rank, "y0": 0, "y1": 1}
    refs = {"xref": f"x{number}", "yref": f"y{number} domain"}
    line = {"color": CUT, "width": 1.5, "dash": "dash"}
    return {"type": "line", **place, **refs, "line": line, "name": "cut"}
