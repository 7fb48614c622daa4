"""Figure of all heads of a slot, as small plots with common axes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import CUT, axis_suffix, figure, log_ticks
from .curves import TWO_LINES, Curves, drawable

PANEL = 100  # pixels per plot
MAX_LINE_POINTS = 60
MAX_TICKS = 4  # labels of a panel between the powers of ten
MIN_RELATIVE = 1e-8  # lower limit of a log axis, relative to the maximum
Values = Sequence[tuple[str, np.ndarray]]


def head_grid(heads: Sequence[Values], plot: Curves) -> str:
    """Return a figure with one small plot per head, in four or eight columns.

    heads: the lines of each head, by label. plot: title, cut and axes.
    """
    columns = 4 if len(heads) <= 16 else 8
    rows = math.ceil(len(heads) / columns)
    height = PANEL * rows + 90
    ranks = max(len(values) for lines in heads for _, values in lines)
    bounds = range_of([values for lines in heads for _, values in lines], plot.is_log)
    axes: dict[str, Any] = {}
    for i in range(len(heads)):
        row, column = divmod(i, columns)
        edges = column == 0, i + columns >= len(heads)
        domains = panel_domains(row, column, columns, rows)
        axes |= panel_axes(i, domains, edges, plot, bounds)
        axes[f"xaxis{axis_suffix(i)}"]["range"] = [1, max(2, ranks)]
    return figure(
        [line for i, lines in enumerate(heads) for line in panel_lines(i, lines, plot)],
        height,
        f"{plot.zoom_key}{plot.is_log}{len(heads)}",
        shapes=[] if plot.cut is None else [cut_line(i, plot.cut) for i in range(len(heads))],
        annotations=[*(head_label(i) for i in range(len(heads))), *titles(plot.title)],
        margin={"t": 46, "r": 12, "b": 40, "l": 64},
        **axes,
    )


def range_of(lines: Sequence[np.ndarray], log: bool) -> list[float]:
    """Return the common range of the y axes; for a log axis, in decades."""
    values = np.concatenate(lines)
    maximum = float(values.max())
    if not log or maximum <= 0:
        return [0.0, 1.05 * maximum or 1.0]
    low = max(float(values[values > 0].min()), MIN_RELATIVE * maximum)
    return [math.log10(low) - 0.1, math.log10(maximum) + 0.1]


def titles(y: str) -> list[dict[str, Any]]:
    """Return the titles of the axes."""
    common = {"name": "title", "xref": "paper", "yref": "paper", "showarrow": False}
    x_title = {"text": "rank", "x": 0.5, "y": 0, "yanchor": "top", "yshift": -22}
    y_title = {"text": y, "x": 0, "y": 0.5, "xanchor": "center", "xshift": -46, "textangle": -90}
    return [common | x_title | {"font": {"size": 12}}, common | y_title | {"font": {"size": 12}}]


def panel_domains(
    row: int, column: int, columns: int, rows: int
) -> tuple[list[float], list[float]]:
    """Return the domains of a panel on the x axis and on the y axis."""
    width, height = 1 / columns, 1 / rows
    x_start, top = column * width, 1 - row * height
    return [x_start + 0.07 * width, x_start + 0.96 * width], [
        top - 0.8 * height,
        top - 0.04 * height,
    ]


def panel_axes(
    i: int,
    domains: tuple[list[float], list[float]],
    edges: tuple[bool, bool],
    plot: Curves,
    bounds: list[float],
) -> dict[str, Any]:
    """Return the axes of the i-th panel.

    edges: whether the panel is at the left edge, and at the bottom edge, with tick labels. bounds:
    see `range_of`.
    """
    number = axis_suffix(i)
    common = {"nticks": 3, "tickfont": {"size": 9}, "zeroline": False}
    y = common | {"domain": domains[1], "anchor": f"x{number}", "showticklabels": edges[0]}
    y |= {"type": "log" if plot.is_log else "linear", "exponentformat": "power", "range": bounds}
    if plot.is_share:
        y["tickformat"] = "~%"
    if plot.is_log and plot.is_share:
        y["dtick"] = 2
    elif plot.is_log:
        y |= log_ticks(10 ** bounds[0], 10 ** bounds[1], MAX_TICKS)
    x = common | {"domain": domains[0], "anchor": f"y{number}", "showticklabels": edges[1]}
    x |= {"nticks": 2, "tickangle": 0}
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def panel_lines(i: int, lines: Values, plot: Curves) -> list[dict[str, Any]]:
    number, traces = axis_suffix(i), []
    digits = "%{y:.3%}" if plot.is_share else "%{y:.6~g}"
    for (label, values), line in zip(lines, TWO_LINES, strict=True):
        points = drawable(values, plot.is_log, MAX_LINE_POINTS)
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


def head_label(i: int) -> dict[str, Any]:
    """Return the number of a head, in the upper right corner of its panel."""
    number = axis_suffix(i)
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


def cut_line(i: int, rank: int) -> dict[str, Any]:
    number = axis_suffix(i)
    position = {"x0": rank, "x1": rank, "y0": 0, "y1": 1}
    refs = {"xref": f"x{number}", "yref": f"y{number} domain"}
    line = {"color": CUT, "width": 1.5, "dash": "dash"}
    return {"type": "line", **position, **refs, "line": line, "name": "cut"}
