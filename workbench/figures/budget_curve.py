"""Predicted perplexity over the whole range of budgets, with the budget on show marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import log10
from typing import Any

import lrcore

from .. import numbers
from .base import AWARE, GHOST, RAW, SERIES, faint, figure

BAND = 0.18  # the opacity of where actual values should lie
HOVER = (
    f"%{{x:.0%}} removed<br>perplexity %{{customdata[1]:{numbers.PERPLEXITY}}}, "
    "%{y:.2%} above dense"
)
FLOOR, MOST = 1e-4, 10.0  # rises of the perplexity that are drawn, as shares of the dense model's
DENSE = "rgb(128,133,143)"  # seen on white and on near-black
WIDE = 0.95  # the greatest share removed that is drawn
HEIGHT = 150  # pixels
NAMED = 3  # curves of others that the legend has room for


@dataclass(frozen=True)
class MeasuredPoint:
    """A run of the same model and method. name: its policy and its own name; ratio: the share
    removed; dense: perplexity of the dense model on the same windows; own: whether by the policy
    on show.
    """

    name: str
    ratio: float
    perplexity: float
    dense: float
    own: bool

    @property
    def rise(self) -> float:
        """Above the dense model's on the same windows, within what is drawn."""
        return min(max(self.perplexity / self.dense - 1, FLOOR), MOST)


@dataclass(frozen=True)
class BudgetCurves:
    """chosen: the curve of the plan's method and policy; name: what it is called; uniform: that of
    uniform ranks; others: those of other methods by the same policy, by name; dense: perplexity of
    the dense model; now: ratio and predicted perplexity of the plan on show; measured: runs, all
    by one protocol.
    """

    chosen: Sequence[lrcore.CurvePoint]
    name: str
    dense: float
    uniform: Mapping[str, Sequence[lrcore.CurvePoint]] = field(default_factory=dict)
    others: Mapping[str, Sequence[lrcore.CurvePoint]] = field(default_factory=dict)
    now: tuple[float, float] | None = None
    measured: Sequence[MeasuredPoint] = ()

    def rise(self, perplexity: float) -> float:
        """Above the dense model's, within what is drawn: a log axis has no 0."""
        return min(max(perplexity / self.dense - 1, FLOOR), MOST)


def budget_curves(drawn: BudgetCurves) -> str:
    """Lines over the share removed, the rise of the perplexity on a log axis, which ends with the
    dense model's; what lies beyond MOST is left out.
    """
    data = [line(drawn, name, points, GHOST) for name, points in drawn.uniform.items()]
    for i, (name, points) in enumerate(drawn.others.items()):
        colour = SERIES[1 + i % (len(SERIES) - 1)]  # the first is near that of the plan on show
        own = line(drawn, name, points, colour) | {"showlegend": len(drawn.others) <= NAMED}
        data += [*band(drawn, points, colour, BAND / 2), own]
    data += [*band(drawn, drawn.chosen, AWARE, BAND), chosen(drawn), dense(drawn)]
    if drawn.measured:
        data.append(measured(drawn.measured))
    if drawn.now is not None:
        data.append(mark(drawn, *drawn.now))
    return figure(
        data,
        HEIGHT,
        "budget-curves",
        xaxis={
            "title": {"text": "share removed", "standoff": 4},
            "tickformat": ".0%",
            "range": [0, WIDE],
        },
        yaxis={
            "title": {"text": "perplexity<br>above dense"},
            "type": "log",
            "tickvals": [1e-4, 1e-3, 1e-2, 1e-1, 1, 10],
            "ticktext": ["dense", "", "1%", "", "100%", ""],
            "range": [log10(FLOOR) - 0.1, log10(MOST) + 0.1],
        },
        hovermode="closest",
        margin={"t": 24, "r": 12, "b": 36, "l": 72},
    )


def line(
    drawn: BudgetCurves, name: str, points: Sequence[lrcore.CurvePoint], colour: str
) -> dict[str, Any]:
    """A thin curve of another method or policy."""
    shown = [point for point in points if point.perplexity < (1 + MOST) * drawn.dense]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "showlegend": False,
        "x": [point.ratio for point in shown],
        "y": [drawn.rise(point.perplexity) for point in shown],
        "customdata": [[point.ratio, point.perplexity] for point in shown],
        "line": {"color": colour, "width": 1.5},
        "hovertemplate": f"{HOVER}<extra>{name}</extra>",
    }


def band(
    drawn: BudgetCurves, points: Sequence[lrcore.CurvePoint], colour: str, opacity: float
) -> list[dict[str, Any]]:
    """Where nine of ten actual values of a curve should lie; nothing where that is not known."""
    known = [
        (p.ratio, drawn.rise(p.low), drawn.rise(p.high))
        for p in points
        if p.low is not None and p.high is not None and p.perplexity < (1 + MOST) * drawn.dense
    ]
    if not known:
        return []
    ratios = [ratio for ratio, *_ in known]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "nine of ten cases",
            "showlegend": points is drawn.chosen,
            "x": [*ratios, *reversed(ratios)],
            "y": [low for _, low, _ in known] + [high for *_, high in reversed(known)],
            "fill": "toself",
            "fillcolor": faint(colour, opacity),
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    ]


def dense(drawn: BudgetCurves) -> dict[str, Any]:
    """The perplexity of the dense model, across all budgets: where the axis begins."""
    named = f"dense: {numbers.perplexity(drawn.dense)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": named,
        "x": [0, WIDE],
        "y": [FLOOR, FLOOR],
        "line": {"color": DENSE, "width": 2, "dash": "dot"},
        "hovertemplate": f"{named}<extra></extra>",
    }


def chosen(drawn: BudgetCurves) -> dict[str, Any]:
    return line(drawn, drawn.name, drawn.chosen, AWARE) | {
        "mode": "lines+markers",
        "showlegend": True,
        "line": {"color": AWARE, "width": 3},
        "marker": {"size": 8, "color": AWARE},
    }


def mark(drawn: BudgetCurves, ratio: float, perplexity: float) -> dict[str, Any]:
    """The plan on show."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "this plan",
        "x": [ratio],
        "y": [drawn.rise(perplexity)],
        "customdata": [[ratio, perplexity]],
        "marker": {"size": 14, "symbol": "diamond", "color": AWARE, "line": {"width": 2}},
        "hovertemplate": f"{HOVER}<extra>this plan</extra>",
    }


def measured(points: Sequence[MeasuredPoint]) -> dict[str, Any]:
    """Runs, filled where they are by the policy on show."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured runs",
        "x": [point.ratio for point in points],
        "y": [point.rise for point in points],
        "customdata": [[point.ratio, point.perplexity, escape(point.name)] for point in points],
        "marker": {
            "size": 9,
            "color": RAW,
            "symbol": ["circle" if point.own else "circle-open" for point in points],
            "line": {"width": 1.5, "color": RAW},
        },
        "hovertemplate": f"{HOVER}<extra>%{{customdata[2]}}</extra>",
    }
