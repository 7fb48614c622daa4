"""Figures of measured loss increase and of lost energy by slot."""

from collections.abc import Sequence
from math import log10
from typing import Any

from ..state.sensitivity import ProbedSlot
from .base import SERIES, SYMBOLS, figure, log_ticks
from .spectra import Heat, heatmap

MIN_VALUE = 1e-7  # lower limit of log axes, nats/token and share of energy


def loss_map(slots: Sequence[ProbedSlot], influence: Sequence[float], label: str) -> str:
    """Return the heatmap of the loss increase of all slots, colored by its logarithm."""
    names = list(dict.fromkeys(slot.name for slot in slots))
    by_slot = {(slot.layer, slot.name): slot for slot in slots}
    layers = range(len(influence))

    def rows(value: Any) -> dict[str, list[Any]]:
        return {
            name: [
                value(by_slot[layer, name]) if (layer, name) in by_slot else None
                for layer in layers
            ]
            for name in names
        }

    full: dict[str, dict[int, int]] = {name: {} for name in names}
    for slot in slots:
        full[slot.name][slot.layer] = slot.full
    increases = rows(lambda slot: slot.increase)
    shades = rows(lambda slot: log10(max(slot.increase, MIN_VALUE)))
    hover = rows(lambda slot: slot.hover_text)
    heat = Heat(label, "log10", ".1e", increases, shades, full, influence, hover_text=hover)
    return heatmap(heat)


def against_energy(slots: Sequence[ProbedSlot]) -> str:
    """Return a scatter plot of loss increase against energy lost, a point per slot."""
    names = list(dict.fromkeys(slot.name for slot in slots))
    data: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        group = [slot for slot in slots if slot.name == name]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [max(slot.energy_lost, MIN_VALUE) for slot in group],
                "y": [max(slot.increase, MIN_VALUE) for slot in group],
                "error_y": {"array": [slot.error for slot in group], "thickness": 1, "width": 0},
                "customdata": [
                    [slot.layer, slot.name, slot.increase, slot.hover_text] for slot in group
                ],
                "hovertemplate": "<b>layer %{customdata[0]} · %{customdata[1]}</b>"
                "<br>%{customdata[3]}<extra></extra>",
                "marker": {
                    "color": SERIES[i % len(SERIES)],
                    "symbol": SYMBOLS[i % len(SYMBOLS)],
                    "size": 9,
                },
            }
        )
    axis = {"type": "log", "exponentformat": "power"}
    losses: list[float] = [value for trace in data for value in trace["x"]] or [1.0]
    rises: list[float] = [value for trace in data for value in trace["y"]] or [1.0]
    title = {"text": "increase in loss (nats/token)", "standoff": 12}
    return figure(
        data,
        320,
        "against" + "".join(names),
        xaxis=axis
        | log_ticks(min(losses), max(losses))
        | {"title": {"text": "energy lost (share)"}},
        yaxis=axis | log_ticks(min(rises), max(rises)) | {"title": title},
        hovermode="closest",
        meta={"mark": "point"},
    )
