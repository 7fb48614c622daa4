"""Figure of predicted perplexity against the budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10
from typing import Any

from lrcore.compression.pipeline.choose_plan import CurvePoint

from ..base import numbers
from .base import AWARE, GHOST, RAW, SERIES, faint, figure

BAND = 0.18  # opacity of the 90 % interval
HOVER = (
    f"%{{customdata[2]}}<br>perplexity %{{customdata[1]:{numbers.PERPLEXITY}}}, "
    "%{y:.2%} above dense"
)
MIN_RISE, MAX_RISE = 1e-4, 10.0  # limits of the axis: relative increase in perplexity
DENSE = "rgb(128,133,143)"  # visible on white and near-black
MAX_RATIO = 0.95  # highest ratio of the axis
HEIGHT = 200  # pixels
MAX_NAMED = 3  # curves of other methods in the legend
MOST_SIZES = 6  # ticks of an axis of sizes


@dataclass(frozen=True)
class MeasuredPoint:
    """A run of the same model and method.

    name: policy and name of the run. ratio: share removed. dense: perplexity of the dense model on
    the same windows. is_displayed_policy: whether the run has the displayed policy.
    """

    name: str
    ratio: float
    perplexity: float
    dense: float
    is_displayed_policy: bool

    @property
    def rise(self) -> float:
        """Relative increase to the dense model, within the limits of the axis."""
        return min(max(self.perplexity / self.dense - 1, MIN_RISE), MAX_RISE)


@dataclass(frozen=True)
class BudgetCurves:
    """Curves of the figure.

    chosen: curve of the displayed method and policy; name: its name. dense: perplexity of the dense
    model. uniform: curve of uniform ranks, by name. other_methods: curves of other methods with the
    same policy, by name. current: ratio and predicted perplexity of the displayed plan; None
    without a prediction. measured: runs, evaluated by one protocol. megabytes: of the dense model
    if the budget counts bytes, so that the axis shows sizes; otherwise None.
    """

    chosen: Sequence[CurvePoint]
    name: str
    dense: float
    uniform: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    other_methods: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    current: tuple[float, float] | None = None
    measured: Sequence[MeasuredPoint] = ()
    megabytes: float | None = None

    def rise(self, perplexity: float) -> float:
        """Return the relative increase to the dense model, within the limits of the axis."""
        return min(max(perplexity / self.dense - 1, MIN_RISE), MAX_RISE)

    def data_of(self, ratio: float, perplexity: float) -> list[Any]:
        """Return the data of a point: ratio, perplexity, and the size or the share removed."""
        if self.megabytes is None:
            return [ratio, perplexity, f"{numbers.percent(ratio, 0)} removed"]
        return [ratio, perplexity, numbers.megabytes(self.megabytes * (1 - ratio))]


def budget_curves(plot: BudgetCurves) -> str:
    """Return lines of the increase in perplexity, on a log axis, over the share removed.

    Points with an increase above MAX_RISE are omitted.
    """
    data = [line(plot, name, points, GHOST) for name, points in plot.uniform.items()]
    for i, (name, points) in enumerate(plot.other_methods.items()):
        color = SERIES[1 + i % (len(SERIES) - 1)]  # the first color resembles the displayed plan
        curve = line(plot, name, points, color) | {
            "showlegend": len(plot.other_methods) <= MAX_NAMED
        }
        data += [*band(plot, points, color, BAND / 2), curve]
    data += [*band(plot, plot.chosen, AWARE, BAND), chosen(plot), dense(plot)]
    if plot.measured:
        data.append(measured(plot))
    if plot.current is not None:
        data.append(mark(plot, *plot.current))
    return figure(
        data,
        HEIGHT,
        "budget-curves",
        xaxis=size_axis(plot),
        yaxis={
            "title": {"text": "perplexity<br>above dense"},
            "type": "log",
            "tickvals": [1e-4, 1e-3, 1e-2, 1e-1, 1, 10],
            "ticktext": ["dense", "", "1%", "", "100%", ""],
            "range": [log10(MIN_RISE) - 0.1, log10(MAX_RISE) + 0.1],
        },
        hovermode="closest",
        margin={"t": 24, "r": 12, "b": 36, "l": 72},
    )


def size_axis(plot: BudgetCurves) -> dict[str, Any]:
    """Return the x axis: the share removed, labeled with sizes if the budget counts bytes."""
    axis: dict[str, Any] = {"range": [0, MAX_RATIO]}
    if plot.megabytes is None:
        return axis | {"title": {"text": "share removed", "standoff": 4}, "tickformat": ".0%"}
    power = 10.0 ** floor(log10(plot.megabytes))
    steps = (digit * power for digit in (0.1, 0.2, 0.5, 1, 2))
    step = next(step for step in steps if plot.megabytes / step <= MOST_SIZES)
    sizes = [step * i for i in range(1, MOST_SIZES + 1) if step * i < plot.megabytes]
    return axis | {
        "title": {"text": "size of the model", "standoff": 4},
        "tickvals": [1 - size / plot.megabytes for size in sizes],
        "ticktext": [numbers.megabytes(size) for size in sizes],
    }


def line(plot: BudgetCurves, name: str, points: Sequence[CurvePoint], color: str) -> dict[str, Any]:
    """Return a thin curve of another method or policy."""
    visible = [point for point in points if point.perplexity < (1 + MAX_RISE) * plot.dense]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "showlegend": False,
        "x": [point.ratio for point in visible],
        "y": [plot.rise(point.perplexity) for point in visible],
        "customdata": [plot.data_of(point.ratio, point.perplexity) for point in visible],
        "line": {"color": color, "width": 1.5},
        "hovertemplate": f"{HOVER}<extra>{name}</extra>",
    }


def band(
    plot: BudgetCurves, points: Sequence[CurvePoint], color: str, opacity: float
) -> list[dict[str, Any]]:
    """Return the 90 % interval of a curve, if known."""
    bounds = [
        (p.ratio, plot.rise(p.low), plot.rise(p.high))
        for p in points
        if p.low is not None and p.high is not None and p.perplexity < (1 + MAX_RISE) * plot.dense
    ]
    if not bounds:
        return []
    ratios = [ratio for ratio, *_ in bounds]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "90 % interval",
            "showlegend": points is plot.chosen,
            "x": [*ratios, *reversed(ratios)],
            "y": [low for _, low, _ in bounds] + [high for *_, high in reversed(bounds)],
            "fill": "toself",
            "fillcolor": faint(color, opacity),
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    ]


def dense(plot: BudgetCurves) -> dict[str, Any]:
    """Return a line for the dense model, at the lower end of the axis."""
    label = f"dense: {numbers.perplexity(plot.dense)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": [0, MAX_RATIO],
        "y": [MIN_RISE, MIN_RISE],
        "line": {"color": DENSE, "width": 2, "dash": "dot"},
        "hovertemplate": f"{label}<extra></extra>",
    }


def chosen(plot: BudgetCurves) -> dict[str, Any]:
    return line(plot, plot.name, plot.chosen, AWARE) | {
        "mode": "lines+markers",
        "showlegend": True,
        "line": {"color": AWARE, "width": 3},
        "marker": {"size": 8, "color": AWARE},
    }


def mark(plot: BudgetCurves, ratio: float, perplexity: float) -> dict[str, Any]:
    """Return the marker of the displayed plan."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "this plan",
        "x": [ratio],
        "y": [plot.rise(perplexity)],
        "customdata": [plot.data_of(ratio, perplexity)],
        "marker": {"size": 14, "symbol": "diamond", "color": AWARE, "line": {"width": 2}},
        "hovertemplate": f"{HOVER}<extra>this plan</extra>",
    }


def measured(plot: BudgetCurves) -> dict[str, Any]:
    """Return the markers of runs, filled for the displayed policy."""
    points = plot.measured
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured runs",
        "x": [point.ratio for point in points],
        "y": [point.rise for point in points],
        "customdata": [
            [*plot.data_of(point.ratio, point.perplexity), escape(point.name)] for point in points
        ],
        "marker": {
            "size": 9,
            "color": RAW,
            "symbol": [
                "circle" if point.is_displayed_policy else "circle-open" for point in points
            ],
            "line": {"width": 1.5, "color": RAW},
        },
        "hovertemplate": f"{HOVER}<extra>%{{customdata[3]}}</extra>",
    }
