"""The Compare tab's figure: perplexity over size, with the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import GHOST, SERIES, SYMBOLS, figure


@dataclass(frozen=True)
class Point:
    """A measured run, or the dense model (method "dense", run "").

    x: its size or time; perplexity; note: what made it; run: its id.
    """

    name: str
    method: str
    x: float
    perplexity: float
    note: str
    run: str


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


def front(points: Sequence[Point]) -> dict[str, Any]:
    """The line through the points that none dominates."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.perplexity)):
        if not best or point.perplexity < best[-1].perplexity:
            best.append(point)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "x": [point.x for point in best],
        "y": [point.perplexity for point in best],
        "line": {"color": GHOST, "width": 2, "dash": "dot"},
        "hoverinfo": "skip",
    }


def scatter(points: Sequence[Point], axis: str) -> str:
    """Perplexity over what the axis names, one colour and symbol per method."""
    methods = sorted({point.method for point in points if point.method != "dense"})
    data = [front(points)] if len(points) > 2 else []
    for i, method in enumerate(["dense", *methods]):
        own = [point for point in points if point.method == method]
        if not own:
            continue
        dense, place = method == "dense", (i - 1) % len(SERIES)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": method,
                "x": [point.x for point in own],
                "y": [point.perplexity for point in own],
                "customdata": [[point.name, point.note, point.run] for point in own],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.4~g}<br>perplexity "
                "%{y:.4f}<br>%{customdata[1]}<extra></extra>",
                "marker": {
                    "size": 14 if dense else 10,
                    "color": "#888888" if dense else SERIES[place],
                    "symbol": "star" if dense else SYMBOLS[place],
                },
            }
        )
    yaxis = {"title": {"text": "perplexity (lower is better)", "standoff": 14}}
    return figure(data, 360, "scatter" + axis, xaxis={"title": {"text": axis}}, yaxis=yaxis)
