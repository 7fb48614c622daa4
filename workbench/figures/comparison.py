"""Figure of excess loss against size, one panel per base model, with the Pareto front."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .base import CUT, GHOST, SERIES, SYMBOLS, axis_suffix, figure, labeled_ticks

DASHES = ("solid", "dash", "dot", "dashdot")
MIN_LABEL_DISTANCE = 0.03  # of the width of a panel: closer labels overlap
HEIGHT, GAP = 330, 110  # pixels: panel, and gap between panels
LEFT = 72  # margin of the axis, pixels
MAX_LABELED = 60
TICKS = [digit * 10.0**power for power in range(-6, 2) for digit in (1, 2, 5)]


@dataclass(frozen=True)
class Point:
    """A measured run, or the dense model (method "dense", run "").

    x: size or time. description: recipe of the run. run: id. excess: increase in loss relative to
    the dense model, nats/token. error: its standard error, if known. policy: policy, possibly with
    further steps. label: ratio.
    """

    name: str
    method: str
    x: float
    perplexity: float
    description: str
    run: str
    excess: float = 0.0
    error: float | None = None
    policy: str = ""
    label: str = ""

    @property
    def line(self) -> str:
        """Name of the line that joins the point."""
        return f"{self.method} · {self.policy}" if self.policy else self.method


@dataclass(frozen=True)
class Panel:
    """Runs of a base model, and the base model, evaluated by one protocol."""

    model: str
    protocol: str
    points: Sequence[Point]

    @property
    def runs(self) -> list[Point]:
        return [point for point in self.points if point.run]

    @property
    def floor(self) -> float:
        """Excess loss for runs that are not worse than the dense model: a log axis has no 0."""
        return min((p.excess for p in self.runs if p.excess > 0), default=2e-3) / 2

    def heights(self, points: Sequence[Point]) -> list[float]:
        """Return the excess losses that are drawn, at least `floor`."""
        return [max(point.excess, self.floor) for point in points]


def dominating(point: Point, points: Sequence[Point]) -> Point | None:
    """Return the best point that dominates this point, or None.

    It is not larger, has no higher perplexity, and is better in size or perplexity.
    """
    candidates = [
        candidate
        for candidate in points
        if candidate.x <= point.x
        and candidate.perplexity <= point.perplexity
        and (candidate.x, candidate.perplexity) != (point.x, point.perplexity)
    ]
    return min(candidates, key=lambda candidate: candidate.perplexity, default=None)


def pareto(panels: Sequence[Panel], axis: str, chosen: Sequence[str] = ()) -> str:
    """Return the figure of excess loss, on a log axis, against the quantity of the x axis.

    Each method and policy has a line with labels for the ratios. Chosen runs have rings.
    """
    height = max(len(panels), 1) * (HEIGHT + GAP) - GAP
    methods = sorted({point.method for panel in panels for point in panel.runs})
    lines = sorted({point.line for panel in panels for point in panel.runs})
    named_policies = {point.policy for panel in panels for point in panel.runs}
    policies = sorted(named_policies, key=lambda name: (name != "uniform", name))
    layout: dict[str, Any] = {"annotations": []}
    data: list[dict[str, Any]] = []
    labeled: set[str] = set()
    for i, panel in enumerate(panels):
        top, number = 1 - i * (HEIGHT + GAP) / height, axis_suffix(i)
        domain = [max(0.0, top - HEIGHT / height), top]
        layout[f"xaxis{number}"] = {"title": {"text": axis}, "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = loss_axis(panel, domain) | {"anchor": f"x{number}"}
        layout["annotations"].append(title(panel, top))
        for trace in [ring(panel, chosen), *front(panel), *dense(panel)]:
            data.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        labels = ratios(panel)
        for line in sorted({point.line for point in panel.runs}):
            line_points = sorted((p for p in panel.runs if p.line == line), key=lambda p: p.x)
            style = looks(
                lines.index(line),
                methods.index(line_points[0].method),
                policies.index(line_points[0].policy),
            )
            axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
            data.append(joined(panel, line, line_points, labels) | style | axes)
    for trace in data:  # one legend entry for all panels
        trace["legendgroup"] = trace["name"]
        trace["showlegend"] = trace.get("showlegend", True) and trace["name"] not in labeled
        labeled.add(trace["name"])
    margin = {"t": 120, "r": 16, "b": 50, "l": LEFT}
    # above the title of the first panel
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1 + 40 / height, "yanchor": "bottom"}
    total_height = margin["t"] + height + margin["b"]
    return figure(data, total_height, f"pareto{axis}{len(panels)}", margin=margin, **layout)


def loss_axis(panel: Panel, domain: list[float]) -> dict[str, Any]:
    heights = panel.heights(panel.runs) or [1e-3, 1.0]
    return {
        "type": "log",
        "domain": domain,
        "range": [math.log10(min(heights) / 1.8), math.log10(max(heights) * 1.8)],
        "title": {"text": "excess loss (nats/token)", "standoff": 14},
        "tickfont": {"size": 11},
        **labeled_ticks(TICKS),
    }


def title(panel: Panel, top: float) -> dict[str, Any]:
    """Return the title of a panel: model and protocol, in short lines for a narrow page."""
    data, _, windows = panel.protocol.partition(" · ")
    text_source = f" · {data}" if data else ""
    return {
        "name": "title",
        "text": f"<b>{escape(panel.model)}</b>{escape(text_source)}<br>{escape(windows)}",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "xshift": 16 - LEFT,  # a narrow page has no space to the right of the axis
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "font": {"size": 11},
    }


def looks(line: int, method: int, policy: int) -> dict[str, Any]:
    """Return the color of a line, the symbol of its method and the line style of its policy."""
    color, symbol = SERIES[line % len(SERIES)], SYMBOLS[method % len(SYMBOLS)]
    return {
        "marker": {"size": 9, "color": color, "symbol": symbol},
        "line": {"color": color, "width": 1.5, "dash": DASHES[policy % len(DASHES)]},
    }


def ratios(panel: Panel) -> dict[str, str]:
    """Return the labels of points, by run id.

    If points with equal labels are nearly above each other, only the highest has a label.
    """
    if len(panel.runs) > MAX_LABELED:
        return {}
    positions = [point.x for point in panel.points]
    distance = MIN_LABEL_DISTANCE * (max(positions) - min(positions))
    labeled: list[tuple[str, float]] = []
    labels: dict[str, str] = {}
    for point in sorted(panel.runs, key=lambda run: -run.excess):
        if not any(point.label == label and abs(point.x - x) <= distance for label, x in labeled):
            labeled.append((point.label, point.x))
            labels[point.run] = point.label
    return labels


def joined(
    panel: Panel, line: str, points: Sequence[Point], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the line of a method and policy, with error bars. labels: see `ratios`."""
    heights = panel.heights(points)
    # error bars on a log axis must end above 0
    below = [min(p.error or 0, 0.9 * y) for p, y in zip(points, heights, strict=True)]
    above = [p.error or 0 for p in points]
    return {
        "type": "scatter",
        "mode": "lines+markers+text" if labels else "lines+markers",
        "name": line,
        "x": [point.x for point in points],
        "y": heights,
        "text": [labels.get(point.run, "") for point in points],
        "textfont": {"size": 11},
        "textposition": "top center",
        "error_y": {"symmetric": False, "array": above, "arrayminus": below, "thickness": 1},
        "customdata": [
            [
                escape(p.name),
                escape(p.description),
                p.run,
                f"{p.excess:+.4f}",
                f"{p.perplexity:.4f}",
            ]
            for p in points
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.4~g}<br>excess loss %{customdata[3]}"
        "<br>perplexity %{customdata[4]}<br>%{customdata[1]}<extra></extra>",
    }


def ring(panel: Panel, chosen: Sequence[str]) -> dict[str, Any]:
    """Return rings around the chosen runs, behind the lines."""
    chosen_points = [point for point in panel.runs if point.run in chosen]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "selected",
        "x": [point.x for point in chosen_points],
        "y": panel.heights(chosen_points),
        "marker": {"size": 19, "symbol": "circle-open", "color": CUT, "line": {"width": 2.5}},
        "hoverinfo": "skip",
        "showlegend": bool(chosen_points),
    }


def front(panel: Panel) -> list[dict[str, Any]]:
    """Return the Pareto front of runs, as a staircase; [] for fewer than two runs."""
    if len(panel.runs) < 2:
        return []
    best: list[Point] = []
    for point in sorted(panel.runs, key=lambda p: (p.x, p.perplexity)):
        if not best or point.perplexity < best[-1].perplexity:
            best.append(point)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "x": [point.x for point in best],
            "y": panel.heights(best),
            "line": {"color": GHOST, "width": 7, "shape": "hv"},
            "hoverinfo": "skip",
        }
    ]


def dense(panel: Panel) -> list[dict[str, Any]]:
    """Return a vertical line for the dense model, because a log axis has no 0."""
    low, high = loss_axis(panel, [0, 1])["range"]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "dense",
            "x": [point.x, point.x],
            "y": [10**low, 10**high],
            "line": {"color": "#888888", "width": 1.5, "dash": "dot"},
            "hovertemplate": f"dense<br>%{{x:.4~g}}<br>perplexity {point.perplexity:.4f}"
            "<extra></extra>",
        }
        for point in panel.points
        if not point.run
    ]
