"""Figures for the selected cell of the heatmap."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import words
from ..views import markup
from ..views.term_markup import marked
from .base import CUT, SERIES, viridis
from .curves import Curves, curves, energy_lost, lost_at
from .head_grid import head_grid

ALL_HEADS, EVERY_HEAD = -1, -2  # in a common plot; in a plot per head
ALL_LAYERS = -1
MAX_NAMED_LAYERS = len(SERIES)  # more layers have a color scale instead of names
MAX_LINE_POINTS = 120  # per line, if there are many lines


@dataclass(frozen=True)
class HeatmapCell:
    """A cell of the heatmap.

    head: a head, ALL_HEADS or EVERY_HEAD. rank: of the displayed plan. compared_layers: further
    layers in the figure. has_plan: whether a plan is displayed.
    """

    layer: int
    name: str
    head: int = ALL_HEADS
    rank: int | None = None
    compared_layers: Collection[int] = ()
    has_plan: bool = True

    def of(self, analysis: Any) -> "HeatmapCell":
        """Return the cell with the heads and layers that the analysis has, by number."""
        count = analysis.heads(self.layer, self.name)
        is_valid = self.head < count and (self.head != EVERY_HEAD or count)
        head = self.head if is_valid else ALL_HEADS
        requested = (
            range(analysis.layers) if ALL_LAYERS in self.compared_layers else self.compared_layers
        )
        available = (
            layer
            for layer in sorted({*requested} - {self.layer})
            if (layer, self.name, "aware") in analysis.spectra
            and head < max(1, analysis.heads(layer, self.name))
        )
        return replace(self, head=head, compared_layers=tuple(available))


def cell_figures(analysis: Any, cell: HeatmapCell, log: bool) -> tuple[str, str, str]:
    """Return singular values and energy lost by rank, and the heading of a slot."""
    cell = cell.of(analysis)
    layer, name, rank = cell.layer, cell.name, cell.rank
    head = cell.head if cell.head >= 0 else None
    series = [
        (label, analysis.values(layer, name, kind, head))
        for label, kind in words.spectra.KINDS.items()
    ]
    losses = [(label, energy_lost(values)) for label, values in series]
    # methods that select columns or rotary pairs retain less than the best subspace; the Allocation
    # tab has their energy
    note_text = "" if rank is None else f"rank {rank} {lost_at(losses[0][1], rank)}"
    zoom_key = f"{layer}{name}{cell.head}{cell.compared_layers}"
    heading = marked(words.spectra.slot_title(layer, name, cell.head))
    title = f"<h3 data-layer='{layer}' data-name='{name}'>{heading}</h3>"
    plots = (
        Curves("singular value", series, rank, f"rank {rank}", log, zoom_key=zoom_key),
        Curves("energy lost", losses, rank, note_text, log, is_share=True, zoom_key=zoom_key + "e"),
    )
    note_text = note_text or (words.spectra.NO_RANK.format(name=name) if cell.has_plan else "")
    return *draw_cell(analysis, cell, *plots), title + markup.note(note_text)


def draw_cell(analysis: Any, cell: HeatmapCell, values: Curves, lost: Curves) -> tuple[str, str]:
    """Return both figures for all heads, for several layers, or for the slot."""
    layer, name = cell.layer, cell.name
    if cell.head == EVERY_HEAD:
        heads = [
            [
                (label, analysis.values(layer, name, kind, i))
                for label, kind in words.spectra.KINDS.items()
            ]
            for i in range(analysis.heads(layer, name))
        ]
        losses = [
            [(label, energy_lost(head_values)) for label, head_values in lines] for lines in heads
        ]
        return head_grid(heads, values), head_grid(losses, lost)
    if cell.compared_layers:
        head = cell.head if cell.head >= 0 else None
        layers = {
            layer_number: analysis.values(layer_number, name, "aware", head)
            for layer_number in (*cell.compared_layers, layer)
        }
        layer_losses = {
            layer_number: energy_lost(layer_values) for layer_number, layer_values in layers.items()
        }
        return (
            curves(layer_curves(aware(values), layers, layer)),
            curves(layer_curves(aware(lost), layer_losses, layer)),
        )
    return curves(values), curves(lost)


def aware(plot: Curves) -> Curves:
    """Return the plot with a title for activation-aware values."""
    return replace(plot, title=f"{plot.title}, {words.spectra.AWARE_TITLE}")


def layer_curves(plot: Curves, layers: Mapping[int, np.ndarray], chosen: int) -> Curves:
    """Return the plot with a curve per layer.

    The chosen layer is thicker and in front. More than MAX_NAMED_LAYERS layers have the colors of a
    scale, and the chosen layer has the selection color.
    """
    first, last = min(layers), max(layers)
    is_scaled = len(layers) > MAX_NAMED_LAYERS
    colors = dict(zip(sorted(layers), SERIES, strict=False))
    series, lines = [], []
    for layer in sorted(layers, key=lambda layer: layer == chosen):
        color = rgb((layer - first) / (last - first)) if is_scaled else colors[layer]
        color = CUT if is_scaled and layer == chosen else color
        series.append((f"layer {layer}", layers[layer]))
        lines.append({"color": color, "width": 4 if layer == chosen else 1.5})
    combined = replace(plot, series=series, lines=lines)
    return (
        replace(combined, color_bar=layer_scale(first, last), max_points=MAX_LINE_POINTS)
        if is_scaled
        else combined
    )


def layer_scale(first: int, last: int) -> dict[str, Any]:
    """Return a trace without points that adds a color bar of layers."""
    bar = {"title": {"text": "layer", "side": "right"}, "thickness": 10, "outlinewidth": 0}
    colors = {"color": [first], "colorscale": "Viridis", "cmin": first, "cmax": last}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "marker": colors | {"showscale": True, "colorbar": bar},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def rgb(share: float) -> str:
    """Return a color of the scale Viridis, for a position `share` in [0, 1]."""
    return f"rgb({','.join(str(round(part)) for part in viridis(share))})"
