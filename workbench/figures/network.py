"""Diagram of the network: layers from bottom to top, and a block for each slot by its size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import words
from ..base.numbers import count
from .base import FORM_COLORS, GHOST, figure

UNCOMPRESSED = "rgba(96,125,139,0.75)"  # matrices without a rank
GAP = 0.02  # between columns, as a share of the total width
ROW = (9, 40)  # minimum and maximum pixels per layer
TALL = 640  # height of all layers in pixels, if ROW permits it
MIN_UNCOMPRESSED = 0.005  # smaller shares of a layer, such as biases, are not drawn
MIN_LABELED_WIDTH = 0.1  # share of the width; on a phone narrower columns have no percentage


@dataclass(frozen=True)
class Block:
    """A slot: rank and full rank, and its retained and dense size in the unit of the budget.

    bits: of rounded numbers; 0 if the slot is not rounded, None if the plan has no bits.
    """

    rank: int
    full: int
    retained: int
    dense: int
    bits: int | None = None

    @property
    def precision(self) -> str:
        """The bits, as the end of a line."""
        return "" if self.bits is None else f", {words.allocation.bits(self.bits)}"


@dataclass(frozen=True)
class Network:
    """The blocks of a network.

    columns: component -> layer -> block. layers: number of layers. unit: unit of the sizes, such as
    parameters. uncompressed: size outside the slots, mean over the layers. is_pale: whether the
    ranks are from another policy than the chosen one. forms: component -> (part, form) for parts
    with several forms, which share a column.
    """

    columns: Mapping[str, Mapping[int, Block]]
    layers: int
    unit: str
    uncompressed: float = 0.0
    is_pale: bool = False
    forms: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def form(self, component: str) -> tuple[str, str]:
        """Return part and form of a component; component and "" for a part with a single form."""
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
        """Return the largest dense size of the blocks of a component."""
        return max(block.dense for block in self.columns[component].values())


def network(diagram: Network) -> str:
    """Return the diagram.

    The width of a block is its retained size. It is centered in front of a gray block as wide as
    the dense size.
    """
    parts, remainder = columns_of(diagram)
    spans = components_of(diagram, parts)
    data = bars_of(diagram, spans) + (
        [uncompressed_blocks(diagram, *remainder)] if remainder else []
    )
    row = min(ROW[1], max(ROW[0], TALL / diagram.layers))
    names = [
        f"{name}<br>{share_kept(diagram, name):.0%}" if end - begin > MIN_LABELED_WIDTH else name
        for name, (begin, end) in parts.items()
    ]
    return figure(
        data,
        round(100 + row * diagram.layers),
        f"network{diagram.layers}{'-'.join(parts)}",
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
            "dtick": 1 if diagram.layers <= 32 else 8,
            "range": [-0.6, diagram.layers - 0.4],
            "showgrid": False,
            "showline": False,
            "zeroline": False,
        },
        margin={"t": 56, "r": 12, "b": 34, "l": 56},
        legend={"orientation": "h", "y": 0, "yanchor": "top", "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        meta={"mark": "block", "columns": spans},
    )


def columns_of(
    diagram: Network,
) -> tuple[dict[str, tuple[float, float]], tuple[float, float] | None]:
    """Return the span of the column of each part, in [0, 1], and of the uncompressed matrices.

    The latter is None if they are too small to be drawn.
    """
    dense_sizes = {
        part: max(sum(map(diagram.wide, components)) for components in forms.values())
        for part, forms in diagram.parts.items()
    }
    total = sum(dense_sizes.values()) + diagram.uncompressed
    widths: list[float] = list(dense_sizes.values())
    if diagram.uncompressed > MIN_UNCOMPRESSED * total:
        widths.append(diagram.uncompressed)
    unit = (1 - GAP * (len(widths) - 1)) / sum(widths)
    begins = [sum(widths[:i]) * unit + i * GAP for i in range(len(widths))]
    pairs = [(begin, begin + width * unit) for begin, width in zip(begins, widths, strict=True)]
    remainder = pairs[len(dense_sizes)] if len(pairs) > len(dense_sizes) else None
    return dict(zip(dense_sizes, pairs, strict=False)), remainder


def components_of(
    diagram: Network, parts: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return the span of each component; components of a form divide the column of the part."""
    spans = {}
    for part, forms in diagram.parts.items():
        begin, end = parts[part]
        for components in forms.values():
            unit, position = (end - begin) / sum(map(diagram.wide, components)), begin
            for name in components:
                spans[name] = (position, position + unit * diagram.wide(name))
                position = spans[name][1]
    return {name: spans[name] for name in diagram.columns}


def bars_of(diagram: Network, spans: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """Return the dense blocks in gray, with hover labels, and the retained blocks by form."""
    slots = [
        (layer, name, block)
        for name, blocks in diagram.columns.items()
        for layer, block in blocks.items()
    ]
    bars = [(sum(spans[name]) / 2, spans[name][1] - spans[name][0]) for _, name, _ in slots]
    numbers = [
        [
            layer,
            name,
            slot_block.rank,
            slot_block.full,
            slot_block.retained,
            slot_block.dense,
            slot_block.retained / slot_block.dense,
            slot_block.precision,
        ]
        for layer, name, slot_block in slots
    ]
    removed = [
        (middle, width * slot_block.dense / diagram.wide(name))
        for (middle, width), (_, name, slot_block) in zip(bars, slots, strict=True)
    ]
    gray = stacked("removed", GHOST, [layer for layer, *_ in slots], removed) | {
        "customdata": numbers,
        "hovertemplate": "layer %{y} · %{customdata[1]}"
        "<br>rank %{customdata[2]} of %{customdata[3]}%{customdata[7]}"
        f"<br>%{{customdata[4]:,}} of %{{customdata[5]:,}} {diagram.unit} (%{{customdata[6]:.1%}})"
        "<extra></extra>",
    }
    traces = [gray]
    for form in sorted({diagram.form(name)[1] for name in diagram.columns}):
        form_slots = [
            (slot, span)
            for slot, span in zip(slots, bars, strict=True)
            if diagram.form(slot[1])[1] == form
        ]
        label = f"kept: {form}" if form else "kept"
        traces.append(retained_blocks(diagram, label, FORM_COLORS[form], form_slots))
    return traces


def retained_blocks(
    diagram: Network,
    label: str,
    color: str,
    slots: Sequence[tuple[tuple[int, str, Block], tuple[float, float]]],
) -> dict[str, Any]:
    """Return the retained blocks. slots: (layer, component, block) with (middle, width)."""
    # a latent can have more parameters than the matrix; its block fills the column
    bars = [
        (middle, width * min(block.retained, block.dense) / diagram.wide(name))
        for (_, name, block), (middle, width) in slots
    ]
    return stacked(label, color, [layer for (layer, *_), _ in slots], bars) | {
        "hoverinfo": "skip",
        "opacity": 0.4 if diagram.is_pale else 1,
        "text": [str(block.rank) for (*_, block), _ in slots],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
    }


def uncompressed_blocks(diagram: Network, begin: float, end: float) -> dict[str, Any]:
    """Return the blocks of uncompressed matrices."""
    layers = list(range(diagram.layers))
    blocks = [((begin + end) / 2, end - begin)] * diagram.layers
    return stacked("not compressed", UNCOMPRESSED, layers, blocks) | {
        "customdata": [[layer, None] for layer in layers],
        "hovertemplate": f"layer %{{y}}<br>{count(diagram.uncompressed)} {diagram.unit}, "
        "not compressed<extra></extra>",
    }


def stacked(
    name: str, color: str, layers: Sequence[int], blocks: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Return a trace of blocks, one per layer. blocks: (middle, width)."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(layers),
        "x": [width for _, width in blocks],
        "base": [middle - width / 2 for middle, width in blocks],
        "marker": {"color": color},
    }


def share_kept(diagram: Network, part: str) -> float:
    """Return the retained share of a part."""
    blocks = [
        block
        for components in diagram.parts[part].values()
        for name in components
        for block in diagram.columns[name].values()
    ]
    return sum(slot_block.retained for slot_block in blocks) / sum(
        slot_block.dense for slot_block in blocks
    )
