"""The ranks of a plan as bars, before grey ones of uniform ranks or of a pinned plan: a plot for
every part of a layer.

A part that can be taken in several forms has one plot for all of them: the colour says which form a
layer takes, and slots of one form stand side by side.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .base import FORM_COLOURS, GHOST, axis_number, figure, layer_axis, stacked_axis

PALE = 0.4  # the opacity of what is not chosen
WIDE, NARROW = 0.9, 0.6  # bars of uniform ranks and of the plan, in layers
GAP = 0.02  # between slots of one form, in layers
# pixels: of legend and layer axis, of a part at most and at least, of all parts where they can
HEAD, PART, LEAST_PART, ROOM = 68, 64, 42, 310
MOST_NUMBERS = 24  # bars into which their ranks fit as numbers


@dataclass(frozen=True)
class Bar:
    """One slot of a plan. form: "" where its part has one only; place: which of `count` slots of
    its layer's part it is.
    """

    layer: int
    component: str
    rank: int
    full: int
    form: str = ""
    place: int = 0
    count: int = 1

    @property
    def share(self) -> float:
        return self.rank / max(self.full, 1)

    def span(self, width: float) -> tuple[float, float]:
        """Where it begins, from the middle of its layer, and how wide it is."""
        own = width / self.count
        return self.place * own - width / 2, own


@dataclass(frozen=True)
class RankBars:
    """Bars by part.

    behind: the ranks that the uniform policy gives, or those of the pinned plan; by_hand: the slots
    "layer.component" set by hand, hatched; steps: the least step of a component's rank, which lets
    the selected bar be dragged; other: whose ranks these are where they are not those of the policy
    that is chosen: they are drawn pale. pinned: whether the plan behind is the pinned one: then the
    ranks are written with what they are more or less.
    """

    parts: Mapping[str, Sequence[Bar]]
    behind: Mapping[str, Sequence[Bar]]
    by_hand: Collection[str] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    other: str = ""
    pinned: bool = False

    @property
    def change(self) -> dict[tuple[int, str], int]:
        """What each slot has more than in the pinned plan; empty where none is pinned."""
        if not self.pinned:
            return {}
        before = {(b.layer, b.component): b.rank for bars in self.behind.values() for b in bars}
        own = [bar for bars in self.parts.values() for bar in bars]
        return {(b.layer, b.component): b.rank - before[b.layer, b.component] for b in own}

    def name(self, form: str) -> str:
        """What the legend calls bars of a form."""
        own = self.other or "this allocation"
        return f"{own}: {form}" if form else own


def rank_bars(drawn: RankBars) -> str:
    """One plot per part: share of the full rank kept in each layer."""
    data: list[dict[str, Any]] = []
    axes, spans, count = {}, {}, len(drawn.parts)
    for i, (part, bars) in enumerate(drawn.parts.items()):
        for trace in [*ghosts(drawn.behind.get(part, ()), drawn.pinned), *of_plan(drawn, bars)]:
            named = all(trace["name"] != other["name"] for other in data)
            data.append(trace | {"yaxis": f"y{axis_number(i)}", "showlegend": named})
        axes[f"yaxis{axis_number(i)}"] = part_axis(part, i, count)
        for bar in bars:
            spans[bar.component] = [f"y{axis_number(i)}", *bar.span(1.0)]
    layers = 1 + max((bar.layer for bars in drawn.parts.values() for bar in bars), default=-1)
    meta: dict[str, Any] = {"mark": "bar", "axes": spans}
    if drawn.steps:
        meta["steps"] = {name: [step] for name, step in drawn.steps.items()}
    return figure(
        data,
        HEAD + count * min(PART, max(LEAST_PART, ROOM // max(count, 1))),
        f"bars{count}",
        barmode="overlay",
        xaxis=layer_axis(layers, zeroline=False, anchor=f"y{count if count > 1 else ''}"),
        meta=meta,
        **axes,
    )


def part_axis(part: str, i: int, count: int) -> dict[str, Any]:
    """The y axis of the i-th of `count` parts; of many, without the numbers that would meet."""
    axis = stacked_axis(part, i, count, 0.22 / count)
    return axis if count * PART <= ROOM else axis | {"tickvals": [0, 0.5]}


def by_component(bars: Sequence[Bar]) -> list[list[Bar]]:
    """The bars of every component: those of one trace."""
    own: dict[str, list[Bar]] = {}
    for bar in bars:
        own.setdefault(bar.component, []).append(bar)
    return list(own.values())


def placed(bars: Sequence[Bar], width: float) -> dict[str, Any]:
    """A trace of one component's bars."""
    begin, own = bars[0].span(width)
    return {
        "type": "bar",
        "x": [bar.layer for bar in bars],
        "y": [bar.share for bar in bars],
        "offset": begin,
        "width": own if bars[0].count == 1 else own - GAP,
    }


def ghosts(bars: Sequence[Bar], pinned: bool = False) -> list[dict[str, Any]]:
    name = "pinned" if pinned else "uniform"
    grey = {"marker": {"color": GHOST}, "name": name, "legendgroup": "behind"}
    return [placed(own, WIDE) | grey | {"hoverinfo": "skip"} for own in by_component(bars)]


def of_plan(drawn: RankBars, bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """The bars of a part's components, with their ranks inside where they fit."""
    traces, change = [], drawn.change
    for own in by_component(bars):
        one, more = own[0], [f"{change[bar.layer, bar.component]:+d}" for bar in own if change]
        hatched = ["/" if f"{bar.layer}.{bar.component}" in drawn.by_hand else "" for bar in own]
        colour = FORM_COLOURS[one.form]
        form = f" ({one.form})" if one.form else ""
        trace = placed(own, NARROW if one.count == 1 else WIDE) | {
            "marker": {"color": colour, "pattern": {"shape": hatched, "size": 6}},
            "opacity": PALE if drawn.other else 1,
            "name": drawn.name(one.form),
            "legendgroup": one.form or "this",
            "customdata": [[bar.layer, bar.component, bar.rank, bar.full] for bar in own],
            "hoverinfo": "all",
            "hovertext": [f"<br>{by} against the pinned plan" for by in more],
            "hovertemplate": f"layer %{{x}} · {one.component}{form}<br>rank %{{customdata[2]}} of "
            f"%{{customdata[3]}} (%{{y:.1%}}){'%{hovertext}' if more else ''}<extra></extra>",
        }
        if (1 + max(bar.layer for bar in bars)) * one.count <= MOST_NUMBERS:
            numbers = [str(bar.rank) for bar in own]
            if change:
                numbers = [f"{rank} ({by})" for rank, by in zip(numbers, more, strict=True)]
            trace |= {"text": numbers, "textposition": "inside"}
            trace |= {"insidetextanchor": "end", "textangle": 0}
        traces.append(trace)
    return traces
