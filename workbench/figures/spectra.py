"""Heatmap of a rank measure by layer and component."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lrcore.system.notebooks import WHOLE_SCALE

from .. import words
from .base import GHOST, GRAY, figure, ink, layer_axis

EMPTY = " "  # name of the empty row between components and matrices
LEFT = 72  # margin of the names of rows, pixels


@dataclass(frozen=True)
class Heat:
    """Values of a heatmap by component and layer.

    values: text of the cells; None for a layer without the component. shades: values of the color
    scale, labeled `shade`. full: full rank by component and layer. influence: Block Influence by
    layer. number: format of the values. bounds: limits of the color scale; None for the limits of
    the shades. separated_after: component before an empty row. hover_text: additional text.
    """

    measure: str
    shade: str
    number: str
    values: dict[str, list[float | None]]
    shades: dict[str, list[float | None]]
    full: dict[str, dict[int, int]]
    influence: Sequence[float]
    bounds: tuple[float, float] | None = None
    separated_after: str = ""
    hover_text: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        """Components from top to bottom, with the empty row."""
        names = list(self.values)
        if self.separated_after in names[:-1]:
            names.insert(names.index(self.separated_after) + 1, EMPTY)
        return names

    def limits(self) -> tuple[float, float]:
        """Return the limits of the color scale."""
        values = [value for row in self.shades.values() for value in row if value is not None]
        return self.bounds or (min(values, default=0.0), max(values, default=1.0))


def heat_figure(table: Any, measure: str, kind: str, components: Sequence[str] = ()) -> str:
    """Return the heatmap of a measure.

    table: from `Analysis.table`. components: rows above the matrices. Rank measures are colored as
    shares of the full rank, so that wide and narrow matrices are comparable. Measures that use the
    full scale have the same scale for all models.
    """
    rows = table[table["kind"] == kind]
    label, shade, number = words.spectra.MEASURES[measure]
    influence = rows.drop_duplicates("layer").sort_values("layer")["block_influence"].tolist()
    layers, values, shades, full = range(len(influence)), {}, {}, {}
    for name, group in rows.groupby("name", sort=False):
        by_layer = dict(zip(group["layer"], group[measure].tolist(), strict=True))
        full[name] = dict(zip(group["layer"], map(int, group["full"]), strict=True))
        values[name] = [by_layer.get(layer) for layer in layers]
        shades[name] = [
            shade_of(by_layer[layer], measure, full[name][layer]) if layer in by_layer else None
            for layer in layers
        ]
    bounds = (0.0, 1.0) if measure in WHOLE_SCALE else None
    separated = next((name for name in reversed(values) if name in components), "")
    return heatmap(Heat(label, shade, number, values, shades, full, influence, bounds, separated))


def shade_of(value: float, measure: str, full: int) -> float | None:
    """Return the share of the full rank, or the logarithm of a condition number."""
    if measure != "condition":
        return value / full
    return math.log10(value) if math.isfinite(value) and value > 0 else None


def heatmap(heat: Heat) -> str:
    """Return the heatmap, with layers as columns and bars of Block Influence below."""
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
    # a number needs about 40 pixels per cell; beside the plots of a cell, the map is half as wide
    # as the page
    inside = [numbers(heat, layers)] if len(layers) <= 16 else []
    step = 1 if len(layers) <= 16 else 4
    titles = {"annotations": group_titles(heat)} if EMPTY in heat.rows else {}
    return figure(
        [cells(heat, layers), bars, *inside],
        130 + 23 * len(heat.rows),
        f"heat{len(layers)}",
        xaxis=layer_axis(len(layers), dtick=step, showgrid=False, zeroline=False, anchor="y2"),
        yaxis={
            "autorange": "reversed",
            "domain": [0.28, 1],
            "showgrid": False,
            "ticks": "",
            "type": "category",
        },
        yaxis2={
            "domain": [0, 0.22],
            "title": {"text": "Block<br>Influence", "font": {"size": 10}},
            "nticks": 3,
            "rangemode": "tozero",
        },
        bargap=0.3,
        margin={"t": 30, "r": 10, "b": 44, "l": LEFT},
        meta={"mark": "cell"},
        **titles,
    )


def group_titles(heat: Heat) -> list[dict[str, Any]]:
    """Return the titles of the groups above and below the empty row, left of the names of rows."""
    gap, last = heat.rows.index(EMPTY), len(heat.rows) - 1
    middles = (gap - 1) / 2, (gap + 1 + last) / 2
    return [
        {
            "name": "title",
            "text": text,
            "textangle": -90,
            "xref": "paper",
            "x": 0,
            "xshift": 10 - LEFT,
            "y": middle,
            "showarrow": False,
            "font": {"size": 11},
        }
        for text, middle in zip(words.spectra.GROUPS, middles, strict=True)
    ]


def cells(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """Return the trace of the heatmap."""
    low, high = heat.limits()
    return {
        "type": "heatmap",
        "x": layers,
        "y": heat.rows,
        "z": [list(heat.shades.get(name, [None] * len(layers))) for name in heat.rows],
        "zmin": low,
        "zmax": high,
        "customdata": [
            [cell_data(heat, name, layer) for layer in layers] if name != EMPTY else []
            for name in heat.rows
        ],
        "hoverongaps": not heat.separated_after,
        "hovertemplate": f"layer %{{x}} · %{{y}}<br>{heat.measure} %{{customdata[2]:.6~g}}<br>"
        + ("%{customdata[4]}" if heat.hover_text else "full rank %{customdata[3]}")
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


def cell_data(heat: Heat, name: str, layer: int) -> list[Any]:
    """Return slot, value, full rank and additional hover text of a cell."""
    hover = heat.hover_text[name][layer] if heat.hover_text else ""
    value = heat.values[name][layer]
    finite_value = value if value is not None and math.isfinite(value) else None
    return [layer, name, finite_value, heat.full[name].get(layer), hover]


def numbers(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """Return the values of the cells as text, black or white; Plotly's default has half the
    contrast.
    """
    low, high = heat.limits()
    span = (high - low) or 1.0
    all_slots = ((name, layer) for name in heat.values for layer in layers)
    slots = [(name, layer) for name, layer in all_slots if heat.values[name][layer] is not None]
    values = [heat.values[name][layer] for name, layer in slots]
    shades = [heat.shades[name][layer] for name, layer in slots]
    inks = [GRAY if value is None else ink((value - low) / span) for value in shades]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [layer for _, layer in slots],
        "y": [name for name, _ in slots],
        "text": [format(value, heat.number) if math.isfinite(value) else "∞" for value in values],
        "textfont": {"size": 11, "color": inks},
        "hoverinfo": "skip",
        "showlegend": False,
    }
