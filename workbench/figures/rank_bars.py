"""Figure of ranks as bars, in front of uniform ranks or of a pinned plan.

Each part of a layer has a plot. If a part has several forms, colors show the form, and the slots of
a form are next to each other. If a plan has bits, colors show the bits instead. With a pinned
plan, a further plot has the changes in rank.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import words
from ..base.numbers import signed
from .base import (
    BIT_COLORS,
    BLACK,
    FORM_COLORS,
    GHOST,
    SERIES,
    axis_suffix,
    figure,
    layer_axis,
    share_axis,
)

PALE_OPACITY = 0.4  # of the plan of another policy
REFERENCE_WIDTH, PLAN_WIDTH = 0.9, 0.6  # of bars, in layers
SLOT_GAP = 0.02  # between slots of a form, in layers
LEGEND_HEIGHT, AXIS_HEIGHT = 24, 36  # pixels
MAX_PART_HEIGHT, MIN_PART_HEIGHT, TOTAL_HEIGHT = 46, 23, 160  # pixels of the plots of parts
CHANGES_HEIGHT = 50  # pixels of the plot of changes
PART_SCALE = 0.76  # factor on the height of parts above a plot of changes
PLOT_GAP = 0.22  # gap above a plot, as a share of its height
NUMBER_DISTANCE = 3  # pixels between a bar and its number in the plot of changes
MIN_CHANGE = 0.02  # minimum range of the plot of changes, as a share of the full rank
MAX_NAMED_PARTS = 4  # parts in the legend of changes
LOW_PLOT, SMALL_FONT, MEDIUM_FONT = 30, 9, 12  # pixels; plots below LOW_PLOT have the small font
MAX_NUMBERS = 24  # bars that have numbers
LEGEND_RANK = 1000  # Plotly's default; entries of many bits are before those of few bits


@dataclass(frozen=True)
class Bar:
    """A slot of a plan.

    form: "" for a part with a single form. position: index among the `count` slots of the part in
    its layer. bits: of rounded numbers; 0 if the slot is not rounded, None if the plan has no bits.
    loss: what this rank loses, and what the rank behind it would lose; "" if unknown.
    """

    layer: int
    component: str
    rank: int
    full: int
    form: str = ""
    position: int = 0
    count: int = 1
    bits: int | None = None
    loss: str = ""

    @property
    def share(self) -> float:
        return self.rank / max(self.full, 1)

    def span(self, width: float) -> tuple[float, float]:
        """Return the start, relative to the middle of the layer, and the width of the bar."""
        bar_width = width / self.count
        return self.position * bar_width - width / 2, bar_width

    @property
    def middle(self) -> float:
        begin, width = self.span(REFERENCE_WIDTH)
        return self.layer + begin + width / 2


@dataclass(frozen=True)
class RankBars:
    """Bars by part.

    reference: ranks of the uniform policy, or of the pinned plan. manual: slots "layer.component"
    set manually, which are hatched. steps: smallest change of a rank by component; the browser
    needs it to drag a bar, and no bar can be dragged without steps. other_policy: label of the plan
    if it is not from the chosen policy; such a plan is pale. is_pinned: whether `reference` is the
    pinned plan; the changes from it have a separate plot.
    """

    parts: Mapping[str, Sequence[Bar]]
    reference: Mapping[str, Sequence[Bar]]
    manual: Collection[str] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    other_policy: str = ""
    is_pinned: bool = False

    @property
    def change(self) -> dict[tuple[int, str], int]:
        """Change in rank of each slot relative to the pinned plan; {} without a pinned plan."""
        if not self.is_pinned:
            return {}
        before = {(b.layer, b.component): b.rank for bars in self.reference.values() for b in bars}
        plan_bars = [bar for bars in self.parts.values() for bar in bars]
        return {(b.layer, b.component): b.rank - before[b.layer, b.component] for b in plan_bars}

    def name(self, bar: Bar) -> str:
        """Return the legend label of the bits or the form of a bar."""
        label = self.other_policy or "this allocation"
        if bar.bits is not None:
            return words.allocation.bits(bar.bits)
        return f"{label}: {bar.form}" if bar.form else label


def rank_bars(plot: RankBars) -> str:
    """Return the figure, with one plot of relative ranks per part."""
    data: list[dict[str, Any]] = []
    # for the browser: axis, start and width of the bars of each component, in layers
    spans: dict[str, list[Any]] = {}
    for i, (part, bars) in enumerate(plot.parts.items()):
        for trace in [*ghosts(plot.reference.get(part, ()), plot.is_pinned), *of_plan(plot, bars)]:
            in_legend = all(trace["name"] != previous["name"] for previous in data)
            data.append({"showlegend": in_legend, "yaxis": f"y{axis_suffix(i)}"} | trace)
        for bar in bars:
            spans[bar.component] = [f"y{axis_suffix(i)}", *bar.span(1.0)]
    count = len(plot.parts)
    if plot.is_pinned:
        data += [trace | {"yaxis": f"y{axis_suffix(count)}"} for trace in changes(plot)]
    axes, height = axes_of(plot)
    layers = 1 + max((bar.layer for bars in plot.parts.values() for bar in bars), default=-1)
    meta: dict[str, Any] = {"mark": "bar", "axes": spans}
    if plot.steps:
        meta["steps"] = {name: [step] for name, step in plot.steps.items()}
    return figure(
        data,
        LEGEND_HEIGHT + height + AXIS_HEIGHT,
        f"bars{len(axes)}",
        barmode="overlay",
        xaxis=layer_axis(
            layers,
            zeroline=False,
            anchor=f"y{axis_suffix(len(axes) - 1)}",
            range=[-0.5, layers - 0.5],
        ),
        margin={"t": LEGEND_HEIGHT, "r": 12, "b": AXIS_HEIGHT, "l": 72},
        meta=meta,
        **axes,
    )


def axes_of(plot: RankBars) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the y axes from top to bottom, changes last, and the total height in pixels."""
    height_of_part = part_height(plot)
    rows = [(height_of_part, part_axis(name, height_of_part)) for name in plot.parts]
    if plot.is_pinned:
        rows.append((CHANGES_HEIGHT, change_axis(plot)))
    total = sum(height for height, _ in rows) + sum(PLOT_GAP * height for height, _ in rows[1:])
    axes, below = {}, 0.0
    for i, (height, axis) in enumerate(rows):
        top = below + (PLOT_GAP * height if i else 0)
        below = top + height
        domain = [max(0.0, 1 - below / total), 1 - top / total]
        axes[f"yaxis{axis_suffix(i)}"] = axis | {"domain": domain}
    return axes, round(total)


def part_height(plot: RankBars) -> float:
    """Return the height of the plot of a part, in pixels."""
    height: float = min(
        MAX_PART_HEIGHT, max(MIN_PART_HEIGHT, TOTAL_HEIGHT // max(len(plot.parts), 1))
    )
    return height * (PART_SCALE if plot.is_pinned else 1)


def part_axis(name: str, height: float) -> dict[str, Any]:
    """Return the y axis of a part. In a low plot, its only label is the name, at 50 %."""
    if height < LOW_PLOT:
        return share_axis("") | {"tickvals": [0.5], "ticktext": [name]}
    return share_axis(name) | {"tickvals": [0, 0.5]}  # further labels would overlap


def change_axis(plot: RankBars) -> dict[str, Any]:
    """Return the y axis of the changes, with 0 in the middle."""
    limit = most_change(plot)
    options = {"range": [-limit, limit], "tickvals": [0], "ticktext": ["0"], "zeroline": True}
    return share_axis("Δ rank") | options


def most_change(plot: RankBars) -> float:
    """Return the limit of the axis of changes, with space for numbers beyond the bars."""
    full = {(b.layer, b.component): b.full for bars in plot.parts.values() for b in bars}
    shares = [abs(change) / max(full[slot], 1) for slot, change in plot.change.items()]
    return 2 * max([MIN_CHANGE, *shares])


def by_component(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Group bars by component and bits; each group is a trace."""
    groups: dict[tuple[str, int | None], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.component, bar.bits), []).append(bar)
    return list(groups.values())


def color_of(bar: Bar) -> str:
    """Return the color of the bits or the form of a bar."""
    return FORM_COLORS[bar.form] if bar.bits is None else BIT_COLORS[bar.bits]


def placed(bars: Sequence[Bar], width: float) -> dict[str, Any]:
    """Return a trace with position and size of the bars of a component."""
    offset, width_per_bar = bars[0].span(width)
    return {
        "type": "bar",
        "x": [bar.layer for bar in bars],
        "y": [bar.share for bar in bars],
        "offset": offset,
        "width": width_per_bar if bars[0].count == 1 else width_per_bar - SLOT_GAP,
    }


def ghosts(bars: Sequence[Bar], pinned: bool = False) -> list[dict[str, Any]]:
    """Return the gray bars of the reference ranks, behind the bars of the plan."""
    name = "pinned" if pinned else "uniform"
    gray = {"marker": {"color": GHOST}, "name": name, "legendgroup": "behind"}
    return [
        placed(group, REFERENCE_WIDTH) | gray | {"hoverinfo": "skip"}
        for group in by_component(bars)
    ]


def of_plan(plot: RankBars, bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return the bars of a part, with ranks inside, or above low bars."""
    traces = []
    for group in by_component(bars):
        first = group[0]
        hatched = ["/" if f"{bar.layer}.{bar.component}" in plot.manual else "" for bar in group]
        form = f" ({first.form})" if first.form else ""
        bits = "" if first.bits is None else f", {words.allocation.bits(first.bits)}"
        trace = placed(group, PLAN_WIDTH if first.count == 1 else REFERENCE_WIDTH) | {
            "marker": {"color": color_of(first), "pattern": {"shape": hatched, "size": 6}},
            "opacity": PALE_OPACITY if plot.other_policy else 1,
            "name": plot.name(first),
            "legendgroup": plot.name(first),
            "legendrank": LEGEND_RANK - (first.bits or 0),
            "customdata": [
                [bar.layer, bar.component, bar.rank, bar.full, bar.loss] for bar in group
            ],
            "hoverinfo": "all",
            "hovertemplate": f"layer %{{x}} · {first.component}{form}<br>"
            f"rank %{{customdata[2]}} of %{{customdata[3]}} (%{{y:.1%}}){bits}"
            "%{customdata[4]}<extra></extra>",
        }
        traces.append(trace)
    return [*traces, *numbered(plot, bars)] if fits(bars) else traces


def numbered(plot: RankBars, bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return the ranks as text: inside bars, or above bars that are lower than a number."""
    height = part_height(plot)
    size = SMALL_FONT if height < LOW_PLOT else MEDIUM_FONT
    short = [bar for bar in bars if bar.share * height <= size]
    tall = [bar for bar in bars if bar.share * height > size]
    # numbers on pale bars have the text color of the page
    ink = {} if plot.other_policy else {"color": BLACK}
    return [
        text_trace(
            [(bar.middle, share * bar.share, str(bar.rank)) for bar in group],
            {"textposition": position, "textfont": {"size": size} | color},
        )
        for group, share, position, color in (
            (tall, 0.5, "middle center", ink),
            (short, 1.0, "top center", {}),
        )
    ]


def text_trace(labels: Sequence[tuple[float, float, str]], style: dict[str, Any]) -> dict[str, Any]:
    """Return a trace of texts (x, y, text).

    The texts could belong to the bars, but then the browser would lay out the page once per text,
    which took a quarter of the drawing time.
    """
    x, y, text = ([label[i] for label in labels] for i in range(3))
    trace = {"x": x, "y": y, "text": text, "mode": "text", "type": "scatter"}
    return (
        trace | {"name": "", "showlegend": False, "hoverinfo": "skip", "cliponaxis": False} | style
    )


def fits(bars: Sequence[Bar]) -> bool:
    """Return True if numbers fit on all bars of a part."""
    return (1 + max(bar.layer for bar in bars)) * bars[0].count <= MAX_NUMBERS


def changes(plot: RankBars) -> list[dict[str, Any]]:
    """Return the bars of changes relative to the pinned plan, as shares of the full rank.

    The parts of a layer are next to each other, colored by part or by form.
    """
    traces: list[dict[str, Any]] = []
    numbers: list[dict[str, Any]] = []
    change, count = plot.change, len(plot.parts)
    for i, (part, bars) in enumerate(plot.parts.items()):
        for group in by_component(bars):
            part_width = REFERENCE_WIDTH / count
            begin, width = group[0].span(part_width)
            offset = (i + 0.5) * part_width - REFERENCE_WIDTH / 2 + begin
            differences = [change[bar.layer, bar.component] for bar in group]
            shares = [
                difference / max(bar.full, 1)
                for difference, bar in zip(differences, group, strict=True)
            ]
            form = group[0].form
            trace = placed(group, part_width) | {
                "y": shares,
                "offset": offset,
                "width": 0.9 * width,
                "marker": {"color": FORM_COLORS[form] if form else SERIES[i % len(SERIES)]},
                "name": f"Δ {group[0].component}",
                "showlegend": count <= MAX_NAMED_PARTS and not form,
                "customdata": [[bar.layer, bar.component, bar.rank, bar.full] for bar in group],
                "hovertext": [signed(difference) for difference in differences],
                "hovertemplate": f"layer %{{x}} · {part}{f' ({form})' if form else ''}<br>rank "
                "%{customdata[2]} of %{customdata[3]}: %{hovertext} against the pinned plan"
                "<extra></extra>",
            }
            traces.append(trace)
            middles = [bar.layer + offset + 0.45 * width for bar in group]
            numbers += zip(middles, shares, differences, strict=True)
    if len(change) > MAX_NUMBERS:
        return traces
    return [
        *traces,
        numbers_of_changes(numbers, 2 * most_change(plot) * NUMBER_DISTANCE / CHANGES_HEIGHT),
    ]


def numbers_of_changes(
    numbers: Sequence[tuple[float, float, int]], distance: float
) -> dict[str, Any]:
    """Return the changes as text, `distance` from the ends of the bars; zeros are omitted."""
    labels = [
        (x, y + math.copysign(distance, y), signed(difference))
        for x, y, difference in numbers
        if difference
    ]
    positions = ["top center" if y > 0 else "bottom center" for _, y, _ in labels]
    return text_trace(labels, {"textposition": positions, "textfont": {"size": 10}})
