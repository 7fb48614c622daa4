"""The network as a picture: its layers one above the other, the input at the bottom, every slot a
block whose area is what it costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..numbers import count
from .base import FORM_COLOURS, GHOST, figure

WHOLE = "rgba(96,125,139,0.75)"  # what no rank is chosen for
GAP = 0.02  # between two columns, of the width of all
ROW = (9, 40)  # least and most pixels of a layer
TALL = 640  # pixels that all layers share between these bounds
LEAST_WHOLE = 0.005  # of a layer: less (biases) is left out
SHARE_SHOWN = 0.1  # of the width: a narrower column has no room for its share on a telephone


@dataclass(frozen=True)
class Block:
    """A slot: its rank of the full one, and what the plan's budget counts, kept and dense."""

    rank: int
    full: int
    kept: int
    dense: int


@dataclass(frozen=True)
class Network:
    """columns: component -> layer -> block; layers: of the model; counted: what the blocks count,
    such as parameters; whole: of a layer what belongs to no slot, the mean over layers; pale: these
    are not the ranks of the chosen policy; forms: component -> (part, form), where a part of a
    layer has several: they share a column.
    """

    columns: Mapping[str, Mapping[int, Block]]
    layers: int
    counted: str
    whole: float = 0.0
    pale: bool = False
    forms: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def form(self, component: str) -> tuple[str, str]:
        """The part of a component, and its form; itself and "" where it has one only."""
        return self.forms.get(component, (component, ""))

    @property
    def parts(self) -> dict[str, dict[str, list[str]]]:
        """part -> form -> components."""
        parts: dict[str, dict[str, list[str]]] = {}
        for component in self.columns:
            part, form = self.form(component)
            parts.setdefault(part, {}).setdefault(form, []).append(component)
        return parts

    def wide(self, component: str) -> int:
        """What the widest block of a component counts when dense."""
        return max(one.dense for one in self.columns[component].values())


def network(drawn: Network) -> str:
    """Each block is centred in a column as wide as the dense one; its width is the share that is
    kept, what is removed is grey.
    """
    parts, rest = columns_of(drawn)
    ends = components_of(drawn, parts)
    data = bars_of(drawn, ends) + ([whole(drawn, *rest)] if rest else [])
    row = min(ROW[1], max(ROW[0], TALL / drawn.layers))
    names = [
        f"{name}<br>{share_kept(drawn, name):.0%}" if end - begin > SHARE_SHOWN else name
        for name, (begin, end) in parts.items()
    ]
    return figure(
        data,
        round(100 + row * drawn.layers),
        f"network{drawn.layers}{'-'.join(parts)}",
        barmode="overlay",
        bargap=0.12 if row > 12 else 0.06,
        uniformtext={"minsize": 8, "mode": "hide"},
        xaxis={
            "side": "top",
            "tickvals": [sum(pair) / 2 for pair in parts.values()],
            "ticktext": names,
            "autotickangles": [0, 90],
            "showline": False,
            "range": [-GAP, 1 + GAP],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        yaxis={
            "title": {"text": "layer", "standoff": 10},
            "dtick": 1 if drawn.layers <= 32 else 8,
            "range": [-0.6, drawn.layers - 0.4],
            "showgrid": False,
            "showline": False,
            "zeroline": False,
        },
        margin={"t": 56, "r": 12, "b": 34, "l": 56},
        legend={"orientation": "h", "y": 0, "yanchor": "top", "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        meta={"mark": "block", "columns": ends},
    )


def columns_of(
    drawn: Network,
) -> tuple[dict[str, tuple[float, float]], tuple[float, float] | None]:
    """Where each part's column begins and ends, in [0, 1], and that of the rest of a layer; None
    where there is no rest.
    """
    wide = {
        part: max(sum(map(drawn.wide, own)) for own in forms.values())
        for part, forms in drawn.parts.items()
    }
    total = sum(wide.values()) + drawn.whole
    widths: list[float] = list(wide.values())
    if drawn.whole > LEAST_WHOLE * total:
        widths.append(drawn.whole)
    unit = (1 - GAP * (len(widths) - 1)) / sum(widths)
    begins = [sum(widths[:i]) * unit + i * GAP for i in range(len(widths))]
    pairs = [(begin, begin + width * unit) for begin, width in zip(begins, widths, strict=True)]
    rest = pairs[len(wide)] if len(pairs) > len(wide) else None
    return dict(zip(wide, pairs, strict=False)), rest


def components_of(
    drawn: Network, parts: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Where each component's column begins and ends: those of a form divide that of their part."""
    ends = {}
    for part, forms in drawn.parts.items():
        begin, end = parts[part]
        for own in forms.values():
            unit, at = (end - begin) / sum(map(drawn.wide, own)), begin
            for name in own:
                ends[name] = (at, at + unit * drawn.wide(name))
                at = ends[name][1]
    return {name: ends[name] for name in drawn.columns}


def bars_of(drawn: Network, ends: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """The dense blocks in grey, which take the pointer, and what is kept of them, by form."""
    slots = [
        (layer, name, block) for name, own in drawn.columns.items() for layer, block in own.items()
    ]
    spans = [(sum(ends[name]) / 2, ends[name][1] - ends[name][0]) for _, name, _ in slots]
    numbers = [
        [layer, name, one.rank, one.full, one.kept, one.dense, one.kept / one.dense]
        for layer, name, one in slots
    ]
    removed = [
        (middle, width * one.dense / drawn.wide(name))
        for (middle, width), (_, name, one) in zip(spans, slots, strict=True)
    ]
    grey = stacked("removed", GHOST, [layer for layer, *_ in slots], removed) | {
        "customdata": numbers,
        "hovertemplate": "layer %{y} · %{customdata[1]}"
        "<br>rank %{customdata[2]} of %{customdata[3]}"
        f"<br>%{{customdata[4]:,}} of %{{customdata[5]:,}} {drawn.counted} (%{{customdata[6]:.1%}})"
        "<extra></extra>",
    }
    traces = [grey]
    for form in sorted({drawn.form(name)[1] for name in drawn.columns}):
        shown = [
            (slot, span)
            for slot, span in zip(slots, spans, strict=True)
            if drawn.form(slot[1])[1] == form
        ]
        label = f"kept: {form}" if form else "kept"
        traces.append(kept_of(drawn, label, FORM_COLOURS[form], shown))
    return traces


def kept_of(
    drawn: Network,
    label: str,
    colour: str,
    slots: Sequence[tuple[tuple[int, str, Block], tuple[float, float]]],
) -> dict[str, Any]:
    """What is kept of some slots. slots: layer, component and block, with middle and width."""
    # a latent may have more parameters than the matrix: its column is full
    kept = [
        (middle, width * min(one.kept, one.dense) / drawn.wide(name))
        for (_, name, one), (middle, width) in slots
    ]
    return stacked(label, colour, [layer for (layer, *_), _ in slots], kept) | {
        "hoverinfo": "skip",
        "opacity": 0.4 if drawn.pale else 1,
        "text": [str(one.rank) for (*_, one), _ in slots],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def whole(drawn: Network, begin: float, end: float) -> dict[str, Any]:
    """The rest of every layer, which stays as it is."""
    layers = list(range(drawn.layers))
    blocks = [((begin + end) / 2, end - begin)] * drawn.layers
    return stacked("not compressed", WHOLE, layers, blocks) | {
        "customdata": [[layer, None] for layer in layers],
        "hovertemplate": f"layer %{{y}}<br>{count(drawn.whole)} {drawn.counted}, not compressed"
        "<extra></extra>",
    }


def stacked(
    name: str, colour: str, layers: Sequence[int], blocks: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """A trace of blocks, one per layer given. blocks: middle and width."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(layers),
        "x": [width for _, width in blocks],
        "base": [middle - width / 2 for middle, width in blocks],
        "marker": {"color": colour},
    }


def share_kept(drawn: Network, part: str) -> float:
    """Of a column."""
    blocks = [
        block
        for own in drawn.parts[part].values()
        for name in own
        for block in drawn.columns[name].values()
    ]
    return sum(one.kept for one in blocks) / sum(one.dense for one in blocks)
