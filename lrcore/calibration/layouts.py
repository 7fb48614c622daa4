"""What a file of statistics holds for a layer of the model: their names, shapes and dtypes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..experts import OF_EXPERTS
from ..layer import ACROSS, Layer
from ..models.layers import layer_shapes
from ..models.stream import layer_needs
from ..statistics import SECOND, STATISTICS, TURNS, Need
from .curvature import OUTPUTS
from .packing import length
from .working_memory import extent, tap_widths, width_read

EXACT = frozenset({"F64"})
PACKED = frozenset({"F32", "F64"})  # by the dtype of the model, or of shares that are joined
SLOPES = frozenset({"F32"})
STATES = frozenset({"F64", "F32", "F16", "BF16"})  # of the model


ALONG = ("taylor", "param_first", "param_second", "param_mix")  # by rows or columns of heads


@dataclass(frozen=True)
class StatisticForm:
    """A tensor of a file. shape: None for a size that the layer does not say. dtypes: those it may
    have, as safetensors names them.
    """

    shape: tuple[int | None, ...]
    dtypes: frozenset[str] = EXACT

    def fits(self, shape: Sequence[int], dtype: str) -> bool:
        """Whether a tensor is of this form."""
        return (
            dtype in self.dtypes
            and len(shape) == len(self.shape)
            and all(own in (None, size) for own, size in zip(self.shape, shape, strict=True))
        )


Layout = Mapping[Need, StatisticForm]


def activation_layout(network: PreTrainedModel, index: int, needs: Collection[Need]) -> Layout:
    """What `LayerStream.run` collects of a layer, as it is written: of the residual stream, and of
    the taps whose widths the shapes of the layer say.
    """
    layer = layer_shapes(network, index)
    widths = _widths(layer, {tap for tap, _ in needs})
    found: dict[Need, StatisticForm] = {}
    for tap, statistic in layer_needs(layer, needs):
        if statistic in TURNS:
            found[tap, statistic] = StatisticForm(())
        elif tap in widths:
            found |= _forms(tap, statistic, widths[tap])
    return found


def _widths(layer: Layer, taps: Collection[str]) -> dict[str, int]:
    """By tap, those of the routing included."""
    own = tap_widths(layer, taps)
    if layer.experts is not None and not set(OF_EXPERTS).isdisjoint(taps):
        mlps = layer.experts.mlps
        own |= {"mlp_in": width_read(mlps[0].up), "routing": len(mlps), "routed": len(mlps)}
    return own


def _forms(tap: str, statistic: str, width: int) -> dict[Need, StatisticForm]:
    """Of a statistic of one tap, and of what is written beside it."""
    if statistic == SECOND:
        whole = StatisticForm((length(width),), PACKED)
        return {(tap, SECOND): whole, (tap, "square"): StatisticForm((width,))}
    if statistic in STATISTICS:
        return {(tap, statistic): StatisticForm((width,))}
    if statistic == "sample":
        return {(tap, statistic): StatisticForm((None, width), STATES)}
    return {}


def gradient_layout(network: PreTrainedModel, index: int, statistics: Collection[str]) -> Layout:
    """What calibration/gradients.py collects of a layer of dense matrices."""
    found: dict[Need, StatisticForm] = {}
    for name, projection in layer_shapes(network, index).matrices().items():
        out, read = extent(projection)
        forms = {"fisher": StatisticForm((read,)), "slope": StatisticForm((out, read), SLOPES)}
        if name in ACROSS:
            vector = StatisticForm(((out, read)[1 - ACROSS[name]],))
            forms |= dict.fromkeys(ALONG, vector)
        if name in OUTPUTS:
            forms["curvature"] = StatisticForm((out, out))
        found |= {(name, one): form for one, form in forms.items() if one in statistics}
    return found
