"""What the page says of the cell that is selected in the heatmap of Spectra."""

from collections.abc import Collection

AWARE = "activation-aware"
LAYER, OF_HEAD, OF_EVERY_HEAD = "Layer {} · {}", " · head {}", " · every head"
BESIDE_LAYERS, BESIDE_ALL = ", beside layers {}", ", thicker, beside all other layers"
HEAD, ALL_HEADS, EVERY_HEAD = "Head {}", "All heads", "Side by side"
BESIDE = "Layers beside it (or Ctrl-click)"
LAYER_NUMBER, ALL_LAYERS = "layer {}", "all layers"


def slot(layer: int, name: str, head: int) -> str:
    """A slot and what of it; head -1: all heads together, -2: each."""
    of_head = OF_HEAD.format(head) if head >= 0 else OF_EVERY_HEAD if head == -2 else ""
    return LAYER.format(layer, name) + of_head


def beside(layers: Collection[int], of: int) -> str:
    """Which layers stand beside that of a slot; of: so many has the model."""
    if not layers:
        return ""
    numbers = ", ".join(map(str, sorted(layers)))
    return BESIDE_ALL if len(layers) == of - 1 else BESIDE_LAYERS.format(numbers)
