"""The ranks of a plan as bars, before grey ones of uniform ranks or of a pinned plan: a plot for
every part of a layer, and below them one of what each rank is more or less than in a pinned plan.

A part that can be taken in several forms has one plot for all of them: the colour says which form a
layer takes, and slots of one form stand side by side.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..numbers import signed
from .base import FORM_COLOURS, GHOST, SERIES, axis_number, figure, layer_axis, share_axis
from .contrast import BLACK

PALE = 0.4  # the opacity of what is not chosen
WIDE, NARROW = 0.9, 0.6  # bars of uniform ranks and of the plan, in layers
GAP = 0.02  # between slots of one form, in layers
# pixels: of the legend, of the layer axis, of a part at most and at least, of all where they can
ABOVE, BELOW, PART, LEAST_PART, ROOM = 24, 36, 46, 23, 160
CHANGES, BESIDE = 50, 0.76  # of the plot of changes; shares of a part's height that it leaves
BETWEEN = 0.22  # the gap above a plot, of its height
APART = 3  # pixels between the end of a change's bar and its number
LEAST_CHANGE = 0.02  # of the full rank: what fills half of the plot of changes at least
NAMED = 4  # parts whose changes the legend has room for
LOW, SMALL, MEDIUM = 30, 9, 12  # pixels: of a low plot, and numbers in it and in a higher one
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

    @property
    def middle(self) -> float:
        begin, width = self.span(WIDE)
        return self.layer + begin + width / 2


@dataclass(frozen=True)
class RankBars:
    """Bars by part.

    behind: the ranks that the uniform policy gives, or those of the pinned plan; by_hand: the slots
    "layer.component" set by hand, hatched; steps: the least step of a component's rank, which lets
    the selected bar be dragged; other: whose ranks these are where they are not those of the policy
    that is chosen: they are drawn pale. pinned: whether the plan behind is the pinned one: then
    what the ranks are more or less is drawn below them.
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
    spans: dict[str, list[Any]] = {}
    for i, (part, bars) in enumerate(drawn.parts.items()):
        for trace in [*ghosts(drawn.behind.get(part, ()), drawn.pinned), *of_plan(drawn, bars)]:
            named = all(trace["name"] != other["name"] for other in data)
            data.append({"showlegend": named, "yaxis": f"y{axis_number(i)}"} | trace)
        for bar in bars:
            spans[bar.component] = [f"y{axis_number(i)}", *bar.span(1.0)]
    count = len(drawn.parts)
    if drawn.pinned:
        data += [trace | {"yaxis": f"y{axis_number(count)}"} for trace in changes(drawn)]
    axes, height = axes_of(drawn)
    layers = 1 + max((bar.layer for bars in drawn.parts.values() for bar in bars), default=-1)
    meta: dict[str, Any] = {"mark": "bar", "axes": spans}
    if drawn.steps:
        meta["steps"] = {name: [step] for name, step in drawn.steps.items()}
    return figure(
        data,
        ABOVE + height + BELOW,
        f"bars{len(axes)}",
        barmode="overlay",
        xaxis=layer_axis(
            layers,
            zeroline=False,
            anchor=f"y{axis_number(len(axes) - 1)}",
            range=[-0.5, layers - 0.5],
        ),
        margin={"t": ABOVE, "r": 12, "b": BELOW, "l": 72},
        meta=meta,
        **axes,
    )


def axes_of(drawn: RankBars) -> tuple[dict[str, dict[str, Any]], int]:
    """The y axes from above, of the ranks of every part and then of the changes, and the height of
    all in pixels.
    """
    part = part_height(drawn)
    rows = [(part, part_axis(name, part)) for name in drawn.parts]
    if drawn.pinned:
        rows.append((CHANGES, change_axis(drawn)))
    total = sum(high for high, _ in rows) + sum(BETWEEN * high for high, _ in rows[1:])
    axes, below = {}, 0.0
    for i, (high, axis) in enumerate(rows):
        top = below + (BETWEEN * high if i else 0)
        below = top + high
        domain = [max(0.0, 1 - below / total), 1 - top / total]
        axes[f"yaxis{axis_number(i)}"] = axis | {"domain": domain}
    return axes, round(total)


def part_height(drawn: RankBars) -> float:
    """The height in pixels of the plot of one part."""
    part: float = min(PART, max(LEAST_PART, ROOM // max(len(drawn.parts), 1)))
    return part * (BESIDE if drawn.pinned else 1)


def part_axis(name: str, high: float) -> dict[str, Any]:
    """The y axis of a part; of a low plot it has the name alone, where 50 % is."""
    if high < LOW:
        return share_axis("") | {"tickvals": [0.5], "ticktext": [name]}
    return share_axis(name) | {"tickvals": [0, 0.5]}  # the numbers of two plots would meet


def change_axis(drawn: RankBars) -> dict[str, Any]:
    """The y axis of the changes, with 0 in the middle."""
    most = most_change(drawn)
    own = {"range": [-most, most], "tickvals": [0], "ticktext": ["0"], "zeroline": True}
    return share_axis("Δ rank") | own


def most_change(drawn: RankBars) -> float:
    """Where the axis of the changes ends: the numbers stand beyond the bars."""
    full = {(b.layer, b.component): b.full for bars in drawn.parts.values() for b in bars}
    shares = [abs(by) / max(full[slot], 1) for slot, by in drawn.change.items()]
    return 2 * max([LEAST_CHANGE, *shares])


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
    """The bars of a part's components, with their ranks inside, or above where they are low."""
    traces = []
    for own in by_component(bars):
        one = own[0]
        hatched = ["/" if f"{bar.layer}.{bar.component}" in drawn.by_hand else "" for bar in own]
        form = f" ({one.form})" if one.form else ""
        trace = placed(own, NARROW if one.count == 1 else WIDE) | {
            "marker": {"color": FORM_COLOURS[one.form], "pattern": {"shape": hatched, "size": 6}},
            "opacity": PALE if drawn.other else 1,
            "name": drawn.name(one.form),
            "legendgroup": one.form or "this",
            "customdata": [[bar.layer, bar.component, bar.rank, bar.full] for bar in own],
            "hoverinfo": "all",
            "hovertemplate": f"layer %{{x}} · {one.component}{form}<br>rank %{{customdata[2]}} of "
            "%{customdata[3]} (%{y:.1%})<extra></extra>",
        }
        traces.append(trace)
    return [*traces, *numbered(drawn, bars)] if fits(bars) else traces


def numbered(drawn: RankBars, bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """The ranks in the bars, and above those that are lower than a number."""
    high = part_height(drawn)
    size = SMALL if high < LOW else MEDIUM
    low = [bar for bar in bars if bar.share * high <= size]
    rest = [bar for bar in bars if bar.share * high > size]
    # on what is pale, in the colour of the page's text
    ink = {} if drawn.other else {"color": BLACK}
    return [
        words(
            [(bar.middle, share * bar.share, str(bar.rank)) for bar in some],
            {"textposition": where, "textfont": {"size": size} | colour},
        )
        for some, share, where, colour in (
            (rest, 0.5, "middle center", ink),
            (low, 1.0, "top center", {}),
        )
    ]


def words(said: Sequence[tuple[float, float, str]], how: dict[str, Any]) -> dict[str, Any]:
    """A trace of texts at x and y. Those of plotly's bars are measured one after the other, for
    which the browser lays out the page each time: a quarter of what drawing the bars took.
    """
    x, y, text = ([one[i] for one in said] for i in range(3))
    where = {"x": x, "y": y, "text": text, "mode": "text", "type": "scatter"}
    return where | {"name": "", "showlegend": False, "hoverinfo": "skip", "cliponaxis": False} | how


def fits(bars: Sequence[Bar]) -> bool:
    """Whether a number fits on every bar of a part."""
    return (1 + max(bar.layer for bar in bars)) * bars[0].count <= MOST_NUMBERS


def changes(drawn: RankBars) -> list[dict[str, Any]]:
    """What the ranks are more or less than in the pinned plan, as shares of the full rank: the
    parts of a layer side by side, each in a colour of its own, or in that of its form.
    """
    traces, numbers, change, count = [], [], drawn.change, len(drawn.parts)
    for i, (part, bars) in enumerate(drawn.parts.items()):
        for own in by_component(bars):
            wide = WIDE / count
            begin, width = own[0].span(wide)
            offset = (i + 0.5) * wide - WIDE / 2 + begin
            by = [change[bar.layer, bar.component] for bar in own]
            shares = [more / max(bar.full, 1) for more, bar in zip(by, own, strict=True)]
            form = own[0].form
            trace = placed(own, wide) | {
                "y": shares,
                "offset": offset,
                "width": 0.9 * width,
                "marker": {"color": FORM_COLOURS[form] if form else SERIES[i % len(SERIES)]},
                "name": f"Δ {own[0].component}",
                "showlegend": count <= NAMED and not form,
                "customdata": [[bar.layer, bar.component, bar.rank, bar.full] for bar in own],
                "hovertext": [signed(more) for more in by],
                "hovertemplate": f"layer %{{x}} · {part}{f' ({form})' if form else ''}<br>rank "
                "%{customdata[2]} of %{customdata[3]}: %{hovertext} against the pinned plan"
                "<extra></extra>",
            }
            traces.append(trace)
            middles = [bar.layer + offset + 0.45 * width for bar in own]
            numbers += zip(middles, shares, by, strict=True)
    if len(change) > MOST_NUMBERS:
        return traces
    return [*traces, numbers_of_changes(numbers, 2 * most_change(drawn) * APART / CHANGES)]


def numbers_of_changes(numbers: Sequence[tuple[float, float, int]], apart: float) -> dict[str, Any]:
    """What was added or taken away, `apart` from the end of each bar; nothing where a rank is the
    same.
    """
    said = [(x, y + math.copysign(apart, y), signed(more)) for x, y, more in numbers if more]
    where = ["top center" if y > 0 else "bottom center" for _, y, _ in said]
    return words(said, {"textposition": where, "textfont": {"size": 10}})
