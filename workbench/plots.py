"""Numbers -> figure JSON. Computes nothing about models; one look for light and dark (the page's
colours are put in when drawn).
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

AWARE, RAW, GHOST, CUT = "#3987c9", "#e08a2e", "rgba(140,145,155,0.42)", "#c2417c"
# Paul Tol's bright set: told apart by colour-blind eyes, visible on white and on near-black.
SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#bb6633")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "pentagon", "cross", "hexagon")
CLEAR = "rgba(0,0,0,0)"
MOST_POINTS = 500


def figure(data: list[dict], height: int, keep: str, **layout: Any) -> str:
    """keep: the zoom survives redraws as long as this word stays the same."""
    base = {
        "height": height,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "uirevision": keep,
        "margin": {"t": 28, "r": 12, "b": 44, "l": 72},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "bgcolor": CLEAR},
        "modebar": {"bgcolor": CLEAR, "orientation": "h"},
    }
    return json.dumps({"data": data, "layout": base | layout}, default=float)


def thinned(count: int) -> list[int]:
    """Indices to draw: all, or about MOST_POINTS, half of them spread evenly and half
    geometrically (the steep start keeps its shape).
    """
    if count <= MOST_POINTS:
        return list(range(count))
    half = MOST_POINTS // 2
    even = {round(i * (count - 1) / (half - 1)) for i in range(half)}
    steep = {round(math.exp(i * math.log(count) / (half - 1))) - 1 for i in range(half)}
    return sorted(i for i in even | steep if 0 <= i < count)


def heatmap(
    names: Sequence[str],
    values: Mapping[str, Sequence[float]],
    shades: Mapping[str, Sequence[float]],
    full: Mapping[str, int],
    measure: str,
    shade: str,
    influence: Sequence[float],
    written: str,
) -> str:
    """Layers across, components down; Block Influence as bars below.

    values are shown, shades coloured; written: number format.
    """
    layers = list(range(len(influence)))
    # a cell's text needs about 40 pixels; with many layers the colour alone is readable
    said = [
        [format(number, written) if number is not None else "∞" for number in values[name]]
        for name in names
    ]
    text = (
        {"text": said, "texttemplate": "%{text}", "textfont": {"size": 11}}
        if len(layers) <= 16
        else {}
    )
    cells = {
        "type": "heatmap",
        "x": layers,
        "y": list(names),
        "z": [list(shades[name]) for name in names],
        "customdata": [
            [[layer, name, values[name][layer], full[name]] for layer in layers] for name in names
        ],
        "hovertemplate": f"layer %{{x}} · %{{y}}<br>{measure} %{{customdata[2]:.6~g}}<br>full rank "
        f"%{{customdata[3]}}<extra></extra>",
        "colorscale": "Viridis",
        "colorbar": {
            "title": {"text": shade, "side": "right", "font": {"size": 12}},
            "thickness": 10,
            "outlinewidth": 0,
            "len": 0.74,
            "y": 1,
            "yanchor": "top",
        },
        "xgap": 2,
        "ygap": 2,
        **text,
    }
    bars = {
        "type": "bar",
        "x": layers,
        "y": list(influence),
        "yaxis": "y2",
        "marker": {"color": GHOST},
        "customdata": [[layer, None] for layer in layers],
        "hovertemplate": "layer %{x}<br>Block Influence %{y:.5f}<extra></extra>",
        "showlegend": False,
    }
    height = 150 + 30 * len(names)
    return figure(
        [cells, bars],
        height,
        f"heat{len(layers)}",
        xaxis={
            "title": {"text": "layer"},
            "dtick": 1 if len(layers) <= 32 else 4,
            "showgrid": False,
            "zeroline": False,
            "anchor": "y2",
        },
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


def curves(
    series: Sequence[tuple[str, Sequence[float]]],
    title: str,
    log: bool,
    cut: int | None,
    note: str,
    keep: str,
    share: bool,
) -> str:
    """Lines over the rank.

    series: (label, values); cut: rank of the cut line with its note; share: the values are shares
    in [0, 1].
    """
    data = []
    for (label, values), colour in zip(series, (AWARE, RAW), strict=False):
        points = thinned(len(values))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": [i + 1 for i in points],
                "y": [float(values[i]) for i in points],
                "line": {"color": colour, "width": 2},
                "hovertemplate": "rank %{x}<br>%{y:.6~g}<extra>" + label + "</extra>"
                if not share
                else "rank %{x}<br>%{y:.3%}<extra>" + label + "</extra>",
            }
        )
    marks: dict[str, Any] = {}
    if cut is not None:
        line = {"color": CUT, "width": 2, "dash": "dash"}
        marks["shapes"] = [
            {
                "type": "line",
                "x0": cut,
                "x1": cut,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": line,
                "name": "cut",
            }
        ]
        left = cut > 0.6 * max(len(values) for _, values in series)
        marks["annotations"] = [
            {
                "x": cut,
                "y": 0.04,
                "yref": "paper",
                "yanchor": "bottom",
                "text": note,
                "showarrow": False,
                "font": {"color": CUT},
                "xanchor": "right" if left else "left",
                "xshift": -5 if left else 5,
            }
        ]
    yaxis = {
        "title": {"text": title, "standoff": 12},
        "type": "log" if log else "linear",
        "exponentformat": "power",
        "rangemode": "tozero",
    }
    if log:
        yaxis["dtick"] = "D2"
    if share:
        yaxis |= {"range": [0, 1.02], "tickformat": ".0%", "type": "linear"}
    return figure(
        data,
        330,
        f"{keep}{log}",
        xaxis={"title": {"text": "rank"}, "zeroline": False},
        yaxis=yaxis,
        **marks,
    )


def bars(
    rows: Mapping[str, Sequence[tuple[int, int]]],
    ghost: Mapping[str, Sequence[int]],
    keep: str,
    hand: Collection[str] = (),
    steps: Mapping[str, int] | None = None,
) -> str:
    """One strip per component: share of the full rank kept in each layer.

    rows: (rank, full) per layer; ghost: the uniform ranks; hand: the slots "layer.component" set by
    hand, hatched; steps: the least step of a component's rank, which lets the selected bar be
    dragged.
    """
    data, axes, count = [], {}, len(rows)
    gap = 0.22 / max(count, 1)
    for i, (name, pairs) in enumerate(rows.items()):
        suffix = "" if i == 0 else str(i + 1)
        layers = list(range(len(pairs)))
        high = 1 - i / count
        common = {"type": "bar", "x": layers, "yaxis": f"y{suffix}", "hoverinfo": "skip"}
        even = [
            rank / max(full, 1) for rank, (_, full) in zip(ghost.get(name, []), pairs, strict=False)
        ]
        data.append(
            {
                **common,
                "y": even,
                "width": 0.9,
                "marker": {"color": GHOST},
                "name": "uniform",
                "legendgroup": "uniform",
                "showlegend": i == 0,
            }
        )
        data.append(
            {
                **common,
                "y": [rank / max(full, 1) for rank, full in pairs],
                "width": 0.6,
                "marker": {
                    "color": AWARE,
                    "pattern": {
                        "shape": ["/" if f"{layer}.{name}" in hand else "" for layer in layers],
                        "size": 6,
                    },
                },
                "name": "this allocation",
                "legendgroup": "this",
                "showlegend": i == 0,
                "customdata": [
                    [layer, name, rank, full] for layer, (rank, full) in enumerate(pairs)
                ],
                "hoverinfo": "all",
                "hovertemplate": f"layer %{{x}} · {name}<br>rank %{{customdata[2]}} of %{{customdata[3]}} "
                f"(%{{y:.1%}})<extra></extra>",
                **(
                    {
                        "text": [str(rank) for rank, _ in pairs],
                        "textposition": "inside",
                        "insidetextanchor": "end",
                        "textangle": 0,
                    }
                    if len(pairs) <= 16
                    else {}
                ),
            }
        )
        axes[f"yaxis{suffix}"] = {
            "domain": [max(0, high - 1 / count + gap), high],
            "range": [0, 1.05],
            "tickformat": ".0%",
            "nticks": 3,
            "title": {"text": name, "standoff": 14},
        }
    xaxis = {
        "title": {"text": "layer"},
        "dtick": 1 if data and len(data[0]["x"]) <= 32 else 4,
        "zeroline": False,
        "anchor": f"y{count if count > 1 else ''}",
    }
    meta: dict[str, Any] = {
        "mark": "bar",
        "axes": {name: f"y{i + 1 if i else ''}" for i, name in enumerate(rows)},
    }
    if steps:
        meta["steps"] = {name: [step] for name, step in steps.items()}
    return figure(data, 90 + 112 * count, keep, barmode="overlay", xaxis=xaxis, meta=meta, **axes)


def policy_curves(shares: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One strip per method, one line per policy: the share that each layer keeps.

    shares: method -> policy -> share per layer.
    """
    policies = list(dict.fromkeys(name for lines in shares.values() for name in lines))
    data, axes, count, gap = [], {}, len(shares), 0.16 / len(shares)
    for i, (method, lines) in enumerate(shares.items()):
        suffix, high = "" if i == 0 else str(i + 1), 1 - i / count
        for name, values in lines.items():
            place = policies.index(name)
            again = place >= len(
                SERIES
            )  # more policies than colours: the second time dashed and hollow
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": not any(trace["name"] == name for trace in data),
                    "x": list(range(len(values))),
                    "y": list(values),
                    "yaxis": f"y{suffix}",
                    "line": {
                        "color": SERIES[place % len(SERIES)],
                        "width": 2,
                        "dash": "dash" if again else "solid",
                    },
                    "marker": {
                        "symbol": SYMBOLS[place % len(SYMBOLS)] + ("-open" if again else ""),
                        "size": 6,
                    },
                    "hovertemplate": f"{method} · {name}<br>layer %{{x}} keeps %{{y:.1%}}<extra></extra>",
                }
            )
        axes[f"yaxis{suffix}"] = {
            "domain": [max(0, high - 1 / count + gap), high],
            "range": [0, 1.05],
            "tickformat": ".0%",
            "nticks": 3,
            "title": {"text": method, "standoff": 14},
        }
    layers = max(len(trace["x"]) for trace in data)
    xaxis = {
        "title": {"text": "layer"},
        "dtick": 1 if layers <= 32 else 4,
        "zeroline": False,
        "anchor": f"y{count if count > 1 else ''}",
    }
    return figure(
        data, 100 + 100 * count, f"policies{count}", xaxis=xaxis, meta={"mark": "layer"}, **axes
    )


def influence(values: Sequence[float], gone: Collection[int]) -> str:
    """Block Influence of every layer as bars; those that would go have another colour and a name
    in the legend.
    """
    data = []
    for name, colour, layers in (
        ("stay", AWARE, [i for i in range(len(values)) if i not in gone]),
        ("would go", CUT, sorted(gone)),
    ):
        if layers:
            hover = f"layer %{{x}}<br>Block Influence %{{y:.5f}}<extra>{name}</extra>"
            own = {
                "type": "bar",
                "name": name,
                "x": layers,
                "y": [values[i] for i in layers],
                "hovertemplate": hover,
            }
            data.append(
                own
                | {
                    "marker": {
                        "color": colour,
                        "pattern": {"shape": "/" if colour == CUT else "", "fillmode": "overlay"},
                    },
                    "showlegend": bool(gone),
                }
            )
    xaxis = {
        "title": {"text": "layer"},
        "dtick": 1 if len(values) <= 32 else 4,
        "range": [-0.6, len(values) - 0.4],
        "showgrid": False,
    }
    yaxis = {
        "title": {"text": "Block<br>Influence", "font": {"size": 11}},
        "nticks": 4,
        "rangemode": "tozero",
    }
    return figure(
        data,
        180,
        f"influence{len(values)}",
        xaxis=xaxis,
        yaxis=yaxis,
        barmode="overlay",
        bargap=0.3,
    )


def better(one: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The best of those that are as small as this one and have a lower perplexity, or smaller
    and have no higher one.
    """
    found = [
        p
        for p in points
        if p["x"] <= one["x"] and p["y"] <= one["y"] and (p["x"], p["y"]) != (one["x"], one["y"])
    ]
    return min(found, key=lambda p: p["y"], default=None)


def front(points: Sequence[Mapping[str, Any]]) -> dict:
    """The line through the points that no other beats: none is as small with a smaller
    perplexity.
    """
    best: list[Mapping[str, Any]] = []
    for point in sorted(points, key=lambda p: (p["x"], p["y"])):
        if not best or point["y"] < best[-1]["y"]:
            best.append(point)
    line = {"color": GHOST, "width": 2, "dash": "dot"}
    across, up = ([point[axis] for point in best] for axis in ("x", "y"))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "x": across,
        "y": up,
        "line": line,
        "hoverinfo": "skip",
    }


def scatter(points: Sequence[Mapping[str, Any]], axis: str) -> str:
    """Perplexity over size, with the Pareto front.

    points: name, method, x, y, note; the dense model has method "dense".
    """
    methods = sorted({point["method"] for point in points if point["method"] != "dense"})
    data = [front(points)] if len(points) > 2 else []
    for i, method in enumerate(["dense", *methods]):
        mine = [point for point in points if point["method"] == method]
        if not mine:
            continue
        dense = method == "dense"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": method,
                "x": [point["x"] for point in mine],
                "y": [point["y"] for point in mine],
                "customdata": [[point["name"], point["note"], point["id"]] for point in mine],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:.4~g}<br>perplexity "
                "%{y:.4f}<br>%{customdata[1]}<extra></extra>",
                "marker": {
                    "size": 14 if dense else 10,
                    "color": "#888888" if dense else SERIES[(i - 1) % len(SERIES)],
                    "symbol": "star" if dense else SYMBOLS[(i - 1) % len(SYMBOLS)],
                },
            }
        )
    return figure(
        data,
        360,
        "scatter" + axis,
        xaxis={"title": {"text": axis}},
        yaxis={"title": {"text": "perplexity (lower is better)", "standoff": 14}},
    )
