"""The Allocation tab's figures: the policies as lines, layers that would go."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .base import (
    AWARE,
    CUT,
    GHOST,
    axis_number,
    figure,
    layer_axis,
    stacked_axis,
)

CHOSEN_LINE = {"color": AWARE, "width": 3}
GREY_LINE = {"color": GHOST, "width": 1.5}


def policy_curves(shares: Mapping[str, Mapping[str, Sequence[float]]], chosen: str = "") -> str:
    """One plot per method: the share that each layer keeps by the chosen policy, before those of
    the others in grey, whose names come with the pointer.

    shares: method -> policy -> share per layer.
    """
    data: list[dict[str, Any]] = []
    axes, count = {}, len(shares)
    for i, (method, lines) in enumerate(shares.items()):
        for name in sorted(lines, key=lambda policy: policy == chosen):  # the chosen one in front
            named = name == chosen and all(trace["name"] != chosen for trace in data)
            own = {"name": name, "yaxis": f"y{axis_number(i)}", "showlegend": named}
            data.append(policy_line(method, name, lines[name], name == chosen) | own)
        axes[f"yaxis{axis_number(i)}"] = stacked_axis(method, i, count, 0.16 / count)
    layers = max(len(trace["x"]) for trace in data)
    xaxis = layer_axis(layers, zeroline=False, anchor=f"y{count if count > 1 else ''}")
    keep, meta = f"policies{count}", {"mark": "layer"}
    return figure(data, 100 + 100 * count, keep, xaxis=xaxis, meta=meta, **axes)


def policy_line(method: str, policy: str, values: Sequence[float], chosen: bool) -> dict[str, Any]:
    """The share that each layer keeps by one policy."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if chosen else "lines",
        "x": list(range(len(values))),
        "y": list(values),
        "line": CHOSEN_LINE if chosen else GREY_LINE,
        "marker": {"size": 7, "color": AWARE},
        "hovertemplate": f"{method} · {policy}<br>layer %{{x}} keeps %{{y:.1%}}<extra></extra>",
    }


def influence(values: Sequence[float], dropped: Collection[int]) -> str:
    """Block Influence of every layer as bars; those that would be dropped have another colour and
    a name in the legend.
    """
    stay = [i for i in range(len(values)) if i not in dropped]
    data = []
    for name, colour, hatch, layers in (
        ("stay", AWARE, "", stay),
        ("would be dropped", CUT, "/", sorted(dropped)),
    ):
        if layers:
            hover = f"layer %{{x}}<br>Block Influence %{{y:.5f}}<extra>{name}</extra>"
            pattern = {"shape": hatch, "fillmode": "overlay"}
            data.append(
                {
                    "type": "bar",
                    "name": name,
                    "x": layers,
                    "y": [values[i] for i in layers],
                    "hovertemplate": hover,
                    "marker": {"color": colour, "pattern": pattern},
                    "showlegend": bool(dropped),
                }
            )
    title = {"text": "Block<br>Influence", "font": {"size": 11}}
    return figure(
        data,
        180,
        f"influence{len(values)}",
        xaxis=layer_axis(len(values), range=[-0.6, len(values) - 0.4], showgrid=False),
        yaxis={"title": title, "nticks": 4, "rangemode": "tozero"},
        barmode="overlay",
        bargap=0.3,
    )
