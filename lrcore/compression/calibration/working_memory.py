"""Estimate of the memory that a calibration needs, from the shapes of a model."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from transformers import PreTrainedModel

from ...layers.experts import OF_EXPERTS, expert_tap
from ...layers.layer import Layer, LowRank, Projection, Stored
from ...layers.statistics import SECOND, Need
from ...models.architectures import decoder_layers, text_config
from ...models.layers import layer_shapes
from ...models.load import LoadedModel
from ...models.read_ahead import bytes_at_once
from ...models.stream import BATCH, further_taps, reader_of
from ...system.hardware import hardware
from ...system.memory import megabytes, raise_unless_free

SUM_BYTES, PACKED_BYTES = 8, 2  # per number of a second moment: the sum, and the copy for the file
WIDE_ACTIVATIONS = 4  # simultaneous activations of a batch as wide as the widest tap
REMEDY = "Use fewer or shorter windows, or a device with more memory."


@dataclass(frozen=True)
class CalibrationMemory:
    """Bytes that a calibration needs at the same time, in addition to the weights.

    states: hidden states of all windows at one depth. moments: second moments of the layer with the
    most, as sums and as written. batch: activations of one batch. layers: offloaded layers that are
    loaded.
    """

    states: int
    moments: int
    batch: int
    layers: int

    @property
    def total(self) -> int:
        return self.states + self.moments + self.batch + self.layers


def calibration_memory(
    network: PreTrainedModel, windows: int, seq_len: int, needs: Collection[Need]
) -> CalibrationMemory:
    """Return the estimate for a number of windows, without allocating memory."""
    hidden_size, itemsize = text_config(network).hidden_size, network.dtype.itemsize
    seconds = [tap for tap, statistic in needs if statistic == SECOND]
    layers = [layer_shapes(network, index) for index in range(len(decoder_layers(network)))]
    layer_widths = [tap_widths(layer, seconds).values() for layer in layers]
    numbers = max((sum(width**2 for width in widths) for widths in layer_widths), default=0)
    widest = max((width for widths in layer_widths for width in widths), default=hidden_size)
    return CalibrationMemory(
        windows * seq_len * hidden_size * itemsize,
        numbers * (SUM_BYTES + PACKED_BYTES),
        min(windows, BATCH) * seq_len * widest * itemsize * WIDE_ACTIVATIONS,
        bytes_at_once(network),
    )


def tap_widths(layer: Layer, taps: Collection[str]) -> dict[str, int]:
    """Return the width of each of the taps whose width follows from the layer's projections.

    A tap of routed experts has an entry per expert.
    """
    return dict(_iterate_tap_widths(layer, taps))


def _iterate_tap_widths(layer: Layer, taps: Collection[str]) -> Iterator[tuple[str, int]]:
    a, names = layer.attention, layer.matrices()
    for tap in {*taps, *(further_taps(layer) if "attn_in" in taps else ())}:
        reader = reader_of(tap, names)
        if tap == "weighted_values":
            yield tap, a.n_q * a.n_kv * a.v_size
        elif reader is not None:
            yield tap, input_width(names[reader])
        elif tap in OF_EXPERTS and layer.experts is not None:
            for number, mlp in enumerate(layer.experts.mlps):
                projection = mlp.down if tap == "mlp_hidden" else mlp.up
                yield expert_tap(tap, number), input_width(projection)


def input_width(projection: Projection) -> int:
    """Return the number of inputs of a projection."""
    return extent(projection)[1]


def extent(projection: Projection) -> tuple[int, int]:
    """Return the number of outputs and inputs of a projection."""
    match projection:
        case LowRank():
            return projection.up.shape[0], projection.down.shape[1]
        case Stored():
            return projection.form.shape[0], projection.form.shape[1]
    return projection.weight.shape[0], projection.weight.shape[1]


def check_calibration(
    model: LoadedModel, windows: int, seq_len: int, needs: Collection[Need]
) -> None:
    """Raise ResourceError if the estimate exceeds the free memory of the model's device."""
    memory = calibration_memory(model.network, windows, seq_len, needs)
    layers = f"layers read from disk ({megabytes(memory.layers)}), " if memory.layers else ""
    subject = (
        f"Hidden states of {windows:,} windows of {seq_len:,} tokens ({megabytes(memory.states)}), "
        f"{layers}the second moments of a layer ({megabytes(memory.moments)}) and the activations "
        f"of a batch ({megabytes(memory.batch)})"
    )
    raise_unless_free(memory.total, subject, REMEDY, hardware(str(model.device)).free)
