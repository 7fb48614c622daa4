"""Figures of retained shares by policy, and of Block Influence."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .base import (
    AWARE,
    CUT,
    GHOST,
    axis_suffix,
    figure,
    layer_axis,
    stacked_axis,
)

CHOSEN_LINE = {"color": AWARE, "width": 3}
GRAY_LINE = {"color": GHOST, "width": 1.5}


def policy_curves(shares: Mapping[str, Mapping[str, Sequence[float]]], chosen: str = "") -> str:
    """Return the retained shares of all policies, one plot per method.

    The chosen policy is blue. Hover labels name the gray lines. shares: method -> policy -> share
    per layer.
    """
    data: list[dict[str, Any]] = []
    axes, count = {}, len(shares)
    for i, (method, lines) in enumerate(shares.items()):
        for name in sorted(lines, key=lambda policy: policy == chosen):  # chosen policy in front
            in_legend = name == chosen and all(trace["name"] != chosen for trace in data)
            properties = {"name": name, "yaxis": f"y{axis_suffix(i)}", "showlegend": in_legend}
            data.append(policy_line(method, name, lines[name], name == chosen) | properties)
        axes[f"yaxis{axis_suffix(i)}"] = stacked_axis(method, i, count, 0.16 / count)
    layers = max(len(trace["x"]) for trace in data)
    xaxis = layer_axis(layers, zeroline=False, anchor=f"y{count if count > 1 else ''}")
    zoom_key, meta = f"policies{count}", {"mark": "layer"}
    return figure(data, 100 + 100 * count, zoom_key, xaxis=xaxis, meta=meta, **axes)


def policy_line(
    method: str, policy: str, values: Sequence[float], is_chosen: bool
) -> dict[str, Any]:
    """Return the line of a policy."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if is_chosen else "lines",
        "x": list(range(len(values))),
        "y": list(values),
        "line": CHOSEN_LINE if is_chosen else GRAY_LINE,
        "marker": {"size": 7, "color": AWARE},
        "hovertemplate": f"{method} · {policy}<br>layer %{{x}} keeps %{{y:.1%}}<extra></extra>",
    }


def influence(values: Sequence[float], dropped: Collection[int]) -> str:
    """Return bars of Block Influence. Layers that would be dropped have a different color."""
    retained = [i for i in range(len(values)) if i not in dropped]
    data = []
    for name, color, hatch, layers in (
        ("stay", AWARE, "", retained),
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
                    "marker": {"color": color, "pattern": pattern},
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
