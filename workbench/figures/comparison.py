"""The Compare tab's figure: excess loss over size, a panel per base model, with its front."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .base import CUT, GHOST, SERIES, SYMBOLS, axis_number, figure

DASHES = ("solid", "dash", "dot", "dashdot")
TOGETHER = 0.03  # of a panel's width: what stands at points no further apart covers each other
HEIGHT, GAP = 330, 110  # pixels of a panel, and between two of them
LEFT = 72  # of the axis
MOST_LABELLED = 60
# of a log axis: Plotly's own write 2 and 5 without their power
TICKS = [digit * 10.0**power for power in range(-6, 2) for digit in (1, 2, 5)]


@dataclass(frozen=True)
class Point:
    """A measured run, or the dense model (method "dense", run "").

    x: its size or time; perplexity; note: what made it; run: its id. excess: loss above the dense
    model's, nats/token; error: its standard error, where known. policy: with what else made it;
    label: its ratio.
    """

    name: str
    method: str
    x: float
    perplexity: float
    note: str
    run: str
    excess: float = 0.0
    error: float | None = None
    policy: str = ""
    label: str = ""

    @property
    def line(self) -> str:
        """Of the points that a line joins."""
        return f"{self.method} · {self.policy}" if self.policy else self.method


@dataclass(frozen=True)
class Panel:
    """The runs of one base model, and the model itself, under one protocol."""

    model: str
    protocol: str
    points: Sequence[Point]

    @property
    def runs(self) -> list[Point]:
        return [point for point in self.points if point.run]

    @property
    def floor(self) -> float:
        """Where what is no worse than the dense model is drawn: a log axis has no 0."""
        return min((p.excess for p in self.runs if p.excess > 0), default=2e-3) / 2

    def heights(self, points: Sequence[Point]) -> list[float]:
        return [max(point.excess, self.floor) for point in points]


def dominating(one: Point, points: Sequence[Point]) -> Point | None:
    """The best of the points that dominate this one: no larger, no higher perplexity, and better
    in one of the two; None where none does.
    """
    candidates = [
        p
        for p in points
        if p.x <= one.x
        and p.perplexity <= one.perplexity
        and (p.x, p.perplexity) != (one.x, one.perplexity)
    ]
    return min(candidates, key=lambda p: p.perplexity, default=None)


def pareto(panels: Sequence[Panel], axis: str, chosen: Sequence[str] = ()) -> str:
    """Excess loss, on a log axis, over what the axis names: a line per method and policy with the
    ratios beside its points, and rings around the chosen runs.
    """
    height = max(len(panels), 1) * (HEIGHT + GAP) - GAP
    methods = sorted({point.method for panel in panels for point in panel.runs})
    named_policies = {point.policy for panel in panels for point in panel.runs}
    policies = sorted(named_policies, key=lambda name: (name != "uniform", name))
    layout: dict[str, Any] = {"annotations": []}
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for i, panel in enumerate(panels):
        top, number = 1 - i * (HEIGHT + GAP) / height, axis_number(i)
        domain = [max(0.0, top - HEIGHT / height), top]
        layout[f"xaxis{number}"] = {"title": {"text": axis}, "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = loss_axis(panel, domain) | {"anchor": f"x{number}"}
        layout["annotations"].append(title(panel, top))
        for trace in [ring(panel, chosen), *front(panel), *dense(panel)]:
            data.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        labels = ratios(panel)
        for line in sorted({point.line for point in panel.runs}):
            own = sorted((p for p in panel.runs if p.line == line), key=lambda p: p.x)
            look = looks(methods.index(own[0].method), policies.index(own[0].policy))
            axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
            data.append(joined(panel, line, own, labels) | look | axes)
    for trace in data:  # a legend entry once, though several panels have the line
        trace["legendgroup"] = trace["name"]
        trace["showlegend"] = trace.get("showlegend", True) and trace["name"] not in named
        named.add(trace["name"])
    margin = {"t": 120, "r": 16, "b": 50, "l": LEFT}
    # above the title of the first panel
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1 + 40 / height, "yanchor": "bottom"}
    whole = margin["t"] + height + margin["b"]
    return figure(data, whole, f"pareto{axis}{len(panels)}", margin=margin, **layout)


def loss_axis(panel: Panel, domain: list[float]) -> dict[str, Any]:
    heights = panel.heights(panel.runs) or [1e-3, 1.0]
    return {
        "type": "log",
        "domain": domain,
        "range": [math.log10(min(heights) / 1.8), math.log10(max(heights) * 1.8)],
        "title": {"text": "excess loss (nats/token)", "standoff": 14},
        "tickvals": TICKS,
        "ticktext": [f"{tick:g}" for tick in TICKS],
        "tickfont": {"size": 11},
    }


def title(panel: Panel, top: float) -> dict[str, Any]:
    """The model and what it was measured on, above its panel; short lines for a narrow page."""
    on, _, windows = panel.protocol.partition(" · ")
    return {
        "name": "title",
        "text": f"<b>{escape(panel.model)}</b>{escape(on and f' · {on}')}<br>{escape(windows)}",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "xshift": 16 - LEFT,  # a narrow page has no room to the right of the axis
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "font": {"size": 11},
    }


def looks(method: int, policy: int) -> dict[str, Any]:
    """The colour and symbol of a method, the dashes of a policy."""
    colour, symbol = SERIES[method % len(SERIES)], SYMBOLS[method % len(SYMBOLS)]
    return {
        "marker": {"size": 9, "color": colour, "symbol": symbol},
        "line": {"color": colour, "width": 1.5, "dash": DASHES[policy % len(DASHES)]},
    }


def ratios(panel: Panel) -> dict[str, str]:
    """What stands at the point of a run, by its id. Of points above each other, as methods at one
    size are, the uppermost has the ratio of all that have the same.
    """
    if len(panel.runs) > MOST_LABELLED:
        return {}
    places = [point.x for point in panel.points]
    apart = TOGETHER * (max(places) - min(places))
    said: list[tuple[str, float]] = []
    labels: dict[str, str] = {}
    for point in sorted(panel.runs, key=lambda one: -one.excess):
        if not any(point.label == label and abs(point.x - x) <= apart for label, x in said):
            said.append((point.label, point.x))
            labels[point.run] = point.label
    return labels


def joined(
    panel: Panel, line: str, points: Sequence[Point], labels: Mapping[str, str]
) -> dict[str, Any]:
    """The points of a method and policy, with their errors; labels: as `ratios` gives them."""
    heights = panel.heights(points)
    # on a log axis a bar must end above 0
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
            [escape(p.name), escape(p.note), p.run, f"{p.excess:+.4f}", f"{p.perplexity:.4f}"]
            for p in points
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.4~g}<br>excess loss %{customdata[3]}"
        "<br>perplexity %{customdata[4]}<br>%{customdata[1]}<extra></extra>",
    }


def ring(panel: Panel, chosen: Sequence[str]) -> dict[str, Any]:
    """Rings around the runs that are chosen, under everything else."""
    own = [point for point in panel.runs if point.run in chosen]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "chosen",
        "x": [point.x for point in own],
        "y": panel.heights(own),
        "marker": {"size": 19, "symbol": "circle-open", "color": CUT, "line": {"width": 2.5}},
        "hoverinfo": "skip",
        "showlegend": bool(own),
    }


def front(panel: Panel) -> list[dict[str, Any]]:
    """The line through the runs that none dominates; none for fewer than two runs."""
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
            "name": "best so far",
            "x": [point.x for point in best],
            "y": panel.heights(best),
            "line": {"color": GHOST, "width": 7},
            "hoverinfo": "skip",
        }
    ]


def dense(panel: Panel) -> list[dict[str, Any]]:
    """A line where the dense model is: its excess loss of 0 is on no log axis."""
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
