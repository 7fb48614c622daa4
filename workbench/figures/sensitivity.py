"""What the spectrum says of a slot against what the loss says, as a figure."""

from collections.abc import Sequence
from math import log10
from typing import Any

from ..sensitivity import ProbedSlot
from .base import SERIES, SYMBOLS, figure
from .spectra import Heat, heatmap

LEAST = 1e-7  # nats/token and share of energy: less is rounding, and a log axis has no 0


def loss_map(slots: Sequence[ProbedSlot], influence: Sequence[float], label: str) -> str:
    """The heatmap of the increase in loss of every slot, coloured by its logarithm."""
    names = list(dict.fromkeys(one.name for one in slots))
    at = {(one.layer, one.name): one for one in slots}
    layers = range(len(influence))

    def rows(value: Any) -> dict[str, list[Any]]:
        return {
            name: [value(at[layer, name]) if (layer, name) in at else None for layer in layers]
            for name in names
        }

    full: dict[str, dict[int, int]] = {name: {} for name in names}
    for one in slots:
        full[one.name][one.layer] = one.full
    increases = rows(lambda one: one.increase)
    shades = rows(lambda one: log10(max(one.increase, LEAST)))
    said = rows(lambda one: one.says)
    heat = Heat(label, "log10", ".1e", increases, shades, full, influence, said=said)
    return heatmap(heat)


def against_energy(slots: Sequence[ProbedSlot]) -> str:
    """Increase in loss over energy lost, both on log axes; a point per slot, by component."""
    names = list(dict.fromkeys(one.name for one in slots))
    data = []
    for i, name in enumerate(names):
        own = [one for one in slots if one.name == name]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [max(one.energy_lost, LEAST) for one in own],
                "y": [max(one.increase, LEAST) for one in own],
                "error_y": {"array": [one.error for one in own], "thickness": 1, "width": 0},
                "customdata": [[one.layer, one.name, one.increase, one.says] for one in own],
                "hovertemplate": "<b>layer %{customdata[0]} · %{customdata[1]}</b>"
                "<br>%{customdata[3]}<extra></extra>",
                "marker": {
                    "color": SERIES[i % len(SERIES)],
                    "symbol": SYMBOLS[i % len(SYMBOLS)],
                    "size": 9,
                },
            }
        )
    axis = {"type": "log", "exponentformat": "power", "dtick": 1}
    return figure(
        data,
        320,
        "against" + "".join(names),
        xaxis=axis | {"title": {"text": "energy lost (share)"}},
        yaxis=axis | {"title": {"text": "increase in loss (nats/token)", "standoff": 12}},
        hovermode="closest",
        meta={"mark": "point"},
    )
