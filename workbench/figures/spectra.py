"""The heatmap of the Spectra tab: a rank measure by layer and component."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import text
from .base import GHOST, figure, layer_axis
from .contrast import GREY, ink

EMPTY = " "  # the name of the row between components and matrices
WHOLE_SCALE = ("effective_rank", "energy_rank")  # stable ranks are a few hundredths of the full one


@dataclass(frozen=True)
class Heat:
    """What a heatmap shows, by component and layer.

    values: in the text of the cells, None: a layer without the component; shades: in the colours,
    as the label `shade` says; full: the full rank of a component by layer; influence: Block
    Influence per layer; number: the format of the values; bounds: of the colours, None: those of
    the shades; apart: the component below which a row stays empty; said: what else a cell says.
    """

    measure: str
    shade: str
    number: str
    values: dict[str, list[float | None]]
    shades: dict[str, list[float | None]]
    full: dict[str, dict[int, int]]
    influence: Sequence[float]
    bounds: tuple[float, float] | None = None
    apart: str = ""
    said: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        """Components from above, with the empty row."""
        names = list(self.values)
        if self.apart in names[:-1]:
            names.insert(names.index(self.apart) + 1, EMPTY)
        return names

    def limits(self) -> tuple[float, float]:
        """Of the colours."""
        known = [one for own in self.shades.values() for one in own if one is not None]
        return self.bounds or (min(known, default=0.0), max(known, default=1.0))


def heat_figure(table: Any, measure: str, kind: str, components: Sequence[str] = ()) -> str:
    """The heatmap of one measure.

    table: as `Analysis.table` gives it; components: those that stand apart from the matrices. Rank
    measures are coloured as shares of the full rank, so that wide and narrow matrices compare, and
    on the same scale for every model where they use the whole of it.
    """
    rows = table[table["kind"] == kind]
    label, shade, number = text.MEASURES[measure]
    influence = rows.drop_duplicates("layer").sort_values("layer")["block_influence"].tolist()
    layers, values, shades, full = range(len(influence)), {}, {}, {}
    for name, group in rows.groupby("name", sort=False):
        own = dict(zip(group["layer"], group[measure].tolist(), strict=True))
        full[name] = dict(zip(group["layer"], map(int, group["full"]), strict=True))
        values[name] = [own.get(layer) for layer in layers]
        shades[name] = [
            shade_of(own[layer], measure, full[name][layer]) if layer in own else None
            for layer in layers
        ]
    bounds = (0.0, 1.0) if measure in WHOLE_SCALE else None
    apart = next((name for name in reversed(values) if name in components), "")
    return heatmap(Heat(label, shade, number, values, shades, full, influence, bounds, apart))


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
        130 + 23 * len(heat.rows),
        f"heat{len(layers)}",
        xaxis=layer_axis(len(layers), showgrid=False, zeroline=False, anchor="y2"),
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
        margin={"t": 30, "r": 10, "b": 44, "l": 72},
        meta={"mark": "cell"},
    )


def cells(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """The heatmap's own trace."""
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
        "hoverongaps": not heat.apart,
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


def cell_data(heat: Heat, name: str, layer: int) -> list[Any]:
    """Slot, value and what else is said of a cell."""
    said = heat.said[name][layer] if heat.said else ""
    value = heat.values[name][layer]
    finite = value if value is not None and math.isfinite(value) else None
    return [layer, name, finite, heat.full[name].get(layer), said]


def numbers(heat: Heat, layers: list[int]) -> dict[str, Any]:
    """The values in the cells, each in the ink that is read best on its colour: plotly's own choice
    has half the contrast.
    """
    low, high = heat.limits()
    span = (high - low) or 1.0
    every = ((name, layer) for name in heat.values for layer in layers)
    slots = [(name, layer) for name, layer in every if heat.values[name][layer] is not None]
    values = [heat.values[name][layer] for name, layer in slots]
    shades = [heat.shades[name][layer] for name, layer in slots]
    inks = [GREY if one is None else ink((one - low) / span) for one in shades]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [layer for _, layer in slots],
        "y": [name for name, _ in slots],
        "text": [format(one, heat.number) if math.isfinite(one) else "∞" for one in values],
        "textfont": {"size": 11, "color": inks},
        "hoverinfo": "skip",
        "showlegend": False,
    }
