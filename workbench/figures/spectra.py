"""The Spectra tab's figures: a heatmap of rank measures, and singular values over the rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import markup, text
from .base import AWARE, CUT, GHOST, RAW, figure, layer_axis, thinned
from .contrast import GREY, ink


@dataclass(frozen=True)
class Heat:
    """What a heatmap shows, by component and layer.

    values: in the text of the cells, None: infinite; shades: in the colours, as the label `shade`
    says; full: the full rank of a component; influence: Block Influence per layer; number: the
    format of the values; said: what else a cell says.
    """

    measure: str
    shade: str
    number: str
    values: dict[str, list[float | None]]
    shades: dict[str, list[float | None]]
    full: dict[str, int]
    influence: Sequence[float]
    said: Mapping[str, Sequence[str | None]] = field(default_factory=dict)


def heat_figure(table: Any, measure: str, kind: str) -> str:
    """The heatmap of one measure.

    table: as `Analysis.table` gives it. Rank measures are coloured as shares of the full rank, so
    that wide and narrow matrices compare.
    """
    rows = table[table["kind"] == kind]
    label, shade, number = text.MEASURES[measure]
    values, shades, full = {}, {}, {}
    for name, group in rows.groupby("name", sort=False):
        group = group.sort_values("layer")
        own, full[name] = group[measure].tolist(), int(group["full"].iloc[0])
        values[name] = [one if math.isfinite(one) else None for one in own]
        shades[name] = [shade_of(one, measure, full[name]) for one in own]
    influence = rows.drop_duplicates("layer").sort_values("layer")["block_influence"].tolist()
    return heatmap(Heat(label, shade, number, values, shades, full, influence))


def shade_of(value: float, measure: str, full: int) -> float | None:
    """What colours a cell: the share of the full rank, or the logarithm of a condition number."""
    if measure != "condition":
        return value / full
    return math.log10(value) if math.isfinite(value) and value > 0 else None


def heatmap(heat: Heat) -> str:
    """Layers across, components down; Block Influence as bars below."""
    layers = list(range(len(heat.influence)))
    bars = {
        "type": "bar",
        "x": layers,
        "y": list(heat.influence),
        "yaxis": "y2",
        "marker": {"color": GHOST},
        "customdata": [[layer, None] for layer in layers],
        "hovertemplate": "layer %{x}<br>Block Influence %{y:.5f}<extra></extra>",
        "showlegend": False,
    }
    # a cell's number needs about 40 pixels; with many layers the colour alone is readable
    inside = [numbers(heat, layers)] if len(layers) <= 16 else []
    return figure(
        [cells(heat, layers), bars, *inside],
        150 + 30 * len(heat.values),
        f"heat{len(layers)}",
        xaxis=layer_axis(len(layers), showgrid=False, zeroline=False, anchor="y2"),
        yaxis={"autorange": "reversed", "domain": [0.28, 1], "showgrid": False, "type": "category"},
        yaxis2={
            "domain": [0, 0.22],
            "title": {"text": "Block<br>Influence", "font": {"size": 10}},
            "nticks": 3,
            "rangemode": "tozero",
        },
        bargap=0.3,
        margin={"t": 30, "r": 10, "b": 44, "l": 72},
        meta={"mark": "cell"},
    )


def cells(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """The heatmap's own trace."""
    return {
        "type": "heatmap",
        "x": layers,
        "y": list(heat.values),
        "z": [list(heat.shades[name]) for name in heat.values],
        "customdata": [
            [
                [
                    layer,
                    name,
                    own[layer],
                    heat.full[name],
                    heat.said[name][layer] if heat.said else "",
                ]
                for layer in layers
            ]
            for name, own in heat.values.items()
        ],
        "hovertemplate": f"layer %{{x}} · %{{y}}<br>{heat.measure} %{{customdata[2]:.6~g}}<br>"
        + ("%{customdata[4]}" if heat.said else "full rank %{customdata[3]}")
        + "<extra></extra>",
        "colorscale": "Viridis",
        "colorbar": {
            "title": {"text": heat.shade, "side": "right", "font": {"size": 12}},
            "thickness": 10,
            "outlinewidth": 0,
            "len": 0.74,
            "y": 1,
            "yanchor": "top",
        },
        "xgap": 2,
        "ygap": 2,
    }


def numbers(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """The values in the cells, each in the ink that is read best on its colour: plotly's own choice
    has half the contrast.
    """
    known = [one for own in heat.shades.values() for one in own if one is not None]
    low, span = min(known, default=0.0), (max(known, default=1.0) - min(known, default=0.0)) or 1.0
    slots = [(name, layer) for name in heat.values for layer in layers]
    values = [heat.values[name][layer] for name, layer in slots]
    shades = [heat.shades[name][layer] for name, layer in slots]
    inks = [GREY if one is None else ink((one - low) / span) for one in shades]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [layer for _, layer in slots],
        "y": [name for name, _ in slots],
        "text": [format(one, heat.number) if one is not None else "∞" for one in values],
        "textfont": {"size": 11, "color": inks},
        "hoverinfo": "skip",
        "showlegend": False,
    }


@dataclass(frozen=True)
class Curves:
    """Lines over the rank, (label, values), with a line at the rank `cut`.

    note: beside that line; share: the values are shares in [0, 1]; keep: names what is drawn, so
    that the zoom survives a redraw of the same.
    """

    title: str
    series: Sequence[tuple[str, Sequence[float]]]
    cut: int | None = None
    note: str = ""
    log: bool = False
    share: bool = False
    keep: str = ""


def curves(drawn: Curves) -> str:
    data = []
    number = "%{y:.3%}" if drawn.share else "%{y:.6~g}"
    for (label, values), colour in zip(drawn.series, (AWARE, RAW), strict=False):
        # a log axis has no 0: what nothing is lost beyond is left out
        points = [i for i in thinned(len(values)) if values[i] > 0 or not drawn.log]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": [i + 1 for i in points],
                "y": [float(values[i]) for i in points],
                "line": {"color": colour, "width": 2},
                "hovertemplate": f"rank %{{x}}<br>{number}<extra>{label}</extra>",
            }
        )
    yaxis = {
        "title": {"text": drawn.title, "standoff": 12},
        "type": "log" if drawn.log else "linear",
        "exponentformat": "power",
        "rangemode": "tozero",
    }
    if drawn.log:
        yaxis["dtick"] = 1 if drawn.share else "D2"
    if drawn.share:
        yaxis |= {"tickformat": "~%"}
    # a range of its own: the note beside the line would widen it, on a narrow page to below zero
    ranks = max(len(values) for _, values in drawn.series)
    return figure(
        data,
        330,
        f"{drawn.keep}{drawn.log}",
        xaxis={"title": {"text": "rank"}, "zeroline": False, "range": [1, max(2, ranks)]},
        yaxis=yaxis,
        **cut_line(drawn),
    )


def cut_line(drawn: Curves) -> dict[str, Any]:
    """The shape and the annotation of the line at the rank on show; nothing where there is none."""
    if drawn.cut is None:
        return {}
    line = {"color": CUT, "width": 2, "dash": "dash"}
    cut = {"type": "line", "x0": drawn.cut, "x1": drawn.cut, "y0": 0, "y1": 1, "yref": "paper"}
    left = drawn.cut > 0.6 * max(len(values) for _, values in drawn.series)
    note = {
        "x": drawn.cut,
        "y": 0.04,
        "yref": "paper",
        "yanchor": "bottom",
        "text": drawn.note,
        "showarrow": False,
        "font": {"color": CUT},
        "xanchor": "right" if left else "left",
        "xshift": -5 if left else 5,
    }
    return {"shapes": [{**cut, "line": line, "name": "cut"}], "annotations": [note]}


@dataclass(frozen=True)
class Cell:
    """A cell of the heatmap: head -1: all heads; rank: what the allocation on show keeps."""

    layer: int
    name: str
    head: int = -1
    rank: int | None = None


def cell_figures(analysis: Any, cell: Cell, log: bool) -> tuple[str, str, str]:
    """Singular values, the energy that each rank loses, and the heading of one slot."""
    layer, name, rank = cell.layer, cell.name, cell.rank
    head = cell.head if 0 <= cell.head < analysis.heads(layer, name) else None
    series = [
        (label, analysis.values(layer, name, kind, head)) for label, kind in text.KINDS.items()
    ]
    lost = [(label, energy_lost(values)) for label, values in series]
    # a method that selects columns or rotary pairs keeps less than the best subspace does; its own
    # figure is under Allocation
    note = "" if rank is None else f"rank {rank} loses at least {lost_at(lost[0][1], rank)}"
    keep, of_head = f"{layer}{name}{head}", "" if head is None else f" · head {head}"
    title = f"<h3 data-layer='{layer}' data-name='{name}'>Layer {layer} · {name}{of_head}</h3>"
    return (
        curves(Curves("singular value", series, rank, f"rank {rank}", log, keep=keep)),
        curves(Curves("energy lost", lost, rank, note, log, share=True, keep=keep + "e")),
        title + markup.note(note or text.NO_CUT.format(name=name)),
    )


def energy_lost(values: np.ndarray) -> np.ndarray:
    """Share of the sum of squares that each rank from 1 on leaves out. values [n], in falling order
    -> [n], in [0, 1], the last 0.
    """
    squares = np.asarray(values, dtype=np.float64) ** 2
    total = squares.sum()
    after = np.append(np.cumsum(squares[::-1])[::-1][1:], 0.0)
    return after / total if total > 0 else np.zeros_like(squares)


def lost_at(lost: np.ndarray, rank: int) -> str:
    """The share lost at a rank, in percent; also where two decimals do not show it."""
    share = float(lost[min(rank, len(lost)) - 1])
    return f"{share:.2%}" if share >= 1e-4 or share == 0 else f"{100 * share:.1g}%"
