"""The Allocation tab's figures: ranks as bars, the policies as lines, layers that would go."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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

PALE = 0.4  # the opacity of what is not chosen
CHOSEN_LINE = {"color": AWARE, "width": 3}
GREY_LINE = {"color": GHOST, "width": 1.5}


@dataclass(frozen=True)
class Bars:
    """Ranks by component and layer.

    ranks: (rank, full rank) per layer; uniform: the ranks that the uniform policy gives; by_hand:
    the slots "layer.component" set by hand, hatched; steps: the least step of a component's rank,
    which lets the selected bar be dragged; other: whose ranks these are where they are not those of
    the policy that is chosen: they are drawn pale.
    """

    ranks: Mapping[str, Sequence[tuple[int, int]]]
    uniform: Mapping[str, Sequence[int]]
    by_hand: Collection[str] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    other: str = ""


def bars(drawn: Bars) -> str:
    """One plot per component: share of the full rank kept in each layer."""
    data, axes, count = [], {}, len(drawn.ranks)
    for i, name in enumerate(drawn.ranks):
        data += component_bars(drawn, name, i)
        axes[f"yaxis{axis_number(i)}"] = stacked_axis(name, i, count, 0.22 / count)
    layers = len(data[0]["x"]) if data else 0
    meta: dict[str, Any] = {
        "mark": "bar",
        "axes": {name: f"y{axis_number(i)}" for i, name in enumerate(drawn.ranks)},
    }
    if drawn.steps:
        meta["steps"] = {name: [step] for name, step in drawn.steps.items()}
    return figure(
        data,
        90 + 112 * count,
        f"bars{count}",
        barmode="overlay",
        xaxis=layer_axis(layers, zeroline=False, anchor=f"y{count if count > 1 else ''}"),
        meta=meta,
        **axes,
    )


def component_bars(drawn: Bars, name: str, i: int) -> list[dict[str, Any]]:
    """The bars of a component, the i-th, before grey ones that end at its uniform ranks."""
    pairs = drawn.ranks[name]
    layers = list(range(len(pairs)))
    common = {"type": "bar", "x": layers, "yaxis": f"y{axis_number(i)}", "showlegend": i == 0}
    uniform = {
        **common,
        "y": [
            rank / max(full, 1)
            for rank, (_, full) in zip(drawn.uniform.get(name, []), pairs, strict=False)
        ],
        "width": 0.9,
        "marker": {"color": GHOST},
        "name": "uniform",
        "legendgroup": "uniform",
        "hoverinfo": "skip",
    }
    hatched = ["/" if f"{layer}.{name}" in drawn.by_hand else "" for layer in layers]
    own = {
        **common,
        "y": [rank / max(full, 1) for rank, full in pairs],
        "width": 0.6,
        "marker": {"color": AWARE, "pattern": {"shape": hatched, "size": 6}},
        "opacity": PALE if drawn.other else 1,
        "name": drawn.other or "this allocation",
        "legendgroup": "this",
        "customdata": [[layer, name, rank, full] for layer, (rank, full) in enumerate(pairs)],
        "hoverinfo": "all",
        "hovertemplate": f"layer %{{x}} · {name}<br>rank %{{customdata[2]}} of "
        "%{customdata[3]} (%{y:.1%})<extra></extra>",
    }
    if len(pairs) <= 16:  # the numbers fit into the bars
        own |= {"text": [str(rank) for rank, _ in pairs], "textposition": "inside"}
        own |= {"insidetextanchor": "end", "textangle": 0}
    return [uniform, own]


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
