"""What the Spectra tab draws of the cell that is selected in the heatmap."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from .. import cell_text, markup, text
from .curves import Curves, curves, energy_lost, lost_at
from .head_grid import head_grid
from .overlay import of_layers

ALL_HEADS, EVERY_HEAD = -1, -2  # together; each in a plot of its own
ALL_LAYERS = -1


@dataclass(frozen=True)
class Cell:
    """A cell of the heatmap. head: one, ALL_HEADS or EVERY_HEAD; rank: what the allocation on show
    keeps; beside: layers drawn with it; planned: whether there is an allocation to show.
    """

    layer: int
    name: str
    head: int = ALL_HEADS
    rank: int | None = None
    beside: Collection[int] = ()
    planned: bool = True

    def of(self, analysis: Any) -> "Cell":
        """The same with the heads and layers that the analysis has, and all of them by number."""
        count = analysis.heads(self.layer, self.name)
        known = self.head < count and (self.head != EVERY_HEAD or count)
        head = self.head if known else ALL_HEADS
        asked = range(analysis.layers) if ALL_LAYERS in self.beside else self.beside
        there = (
            one
            for one in sorted({*asked} - {self.layer})
            if (one, self.name, "aware") in analysis.spectra
            and head < max(1, analysis.heads(one, self.name))
        )
        return replace(self, head=head, beside=tuple(there))


def cell_figures(analysis: Any, cell: Cell, log: bool) -> tuple[str, str, str]:
    """Singular values, the energy that each rank loses, and the heading of one slot."""
    cell = cell.of(analysis)
    layer, name, rank = cell.layer, cell.name, cell.rank
    head = cell.head if cell.head >= 0 else None
    series = [
        (label, analysis.values(layer, name, kind, head)) for label, kind in text.KINDS.items()
    ]
    lost = [(label, energy_lost(values)) for label, values in series]
    # a method that selects columns or rotary pairs keeps less than the best subspace does; its own
    # figure is under Allocation
    note = "" if rank is None else f"rank {rank} {lost_at(lost[0][1], rank)}"
    keep = f"{layer}{name}{cell.head}{cell.beside}"
    heading = escape(cell_text.slot(layer, name, cell.head))
    title = f"<h3 data-layer='{layer}' data-name='{name}'>{heading}</h3>"
    both = (
        Curves("singular value", series, rank, f"rank {rank}", log, keep=keep),
        Curves("energy lost", lost, rank, note, log, share=True, keep=keep + "e"),
    )
    note = note or (text.NO_CUT.format(name=name) if cell.planned else "")
    return *drawn(analysis, cell, *both), title + markup.note(note)


def drawn(analysis: Any, cell: Cell, values: Curves, lost: Curves) -> tuple[str, str]:
    """Both figures: of every head, of several layers, or of the one slot."""
    layer, name = cell.layer, cell.name
    if cell.head == EVERY_HEAD:
        heads = [
            [(label, analysis.values(layer, name, kind, i)) for label, kind in text.KINDS.items()]
            for i in range(analysis.heads(layer, name))
        ]
        losses = [[(label, energy_lost(one)) for label, one in lines] for lines in heads]
        return head_grid(heads, values), head_grid(losses, lost)
    if cell.beside:
        head = cell.head if cell.head >= 0 else None
        layers = {one: analysis.values(one, name, "aware", head) for one in (*cell.beside, layer)}
        losses = {one: energy_lost(own) for one, own in layers.items()}
        return (
            curves(of_layers(aware(values), layers, layer)),
            curves(of_layers(aware(lost), losses, layer)),
        )
    return curves(values), curves(lost)


def aware(drawn: Curves) -> Curves:
    """The same with a title that says that the activation-aware values alone are drawn."""
    return replace(drawn, title=f"{drawn.title}, {cell_text.AWARE}")
