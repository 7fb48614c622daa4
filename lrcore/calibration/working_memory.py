"""What calibrating takes in memory at once, estimated from the shapes of a model."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..experts import OF_EXPERTS, tap_of
from ..hardware import hardware
from ..layer import Layer, LowRank, Projection, Stored
from ..memory import megabytes, raise_unless_free
from ..models.architectures import decoder_layers, text_config
from ..models.layers import layer_shapes
from ..models.load import LoadedModel
from ..models.read_ahead import bytes_at_once
from ..models.stream import BATCH, READERS, reader_of
from ..statistics import LATENT_TAPS, SECOND, Need

SUMMED, PACKED = 8, 2  # bytes of each number of a second moment: as it is summed, and for its file
WIDE = 4  # activations as wide as the widest tap that a batch has at once, such as those of a gate
REMEDY = "Use fewer or shorter windows (samples, seq_len), or a device with more memory."


@dataclass(frozen=True)
class CalibrationMemory:
    """Bytes that a calibration has at once beside the weights: hidden states of all windows at one
    depth; the second moments of the layer that has most, as sums and as they are written; the
    activations of one batch; of offloaded layers those that are read.
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
    """The estimate for so many windows; nothing is allocated or read from disk."""
    width, own = text_config(network).hidden_size, network.dtype.itemsize
    seconds = [tap for tap, statistic in needs if statistic == SECOND]
    layers = [layer_shapes(network, index) for index in range(len(decoder_layers(network)))]
    known = [tap_widths(layer, seconds).values() for layer in layers]
    numbers = max((sum(one**2 for one in widths) for widths in known), default=0)
    widest = max((one for widths in known for one in widths), default=width)
    return CalibrationMemory(
        windows * seq_len * width * own,
        numbers * (SUMMED + PACKED),
        min(windows, BATCH) * seq_len * widest * own * WIDE,
        bytes_at_once(network),
    )


def tap_widths(layer: Layer, taps: Collection[str]) -> dict[str, int]:
    """The width of each of these taps that a layer has, and that its projections or experts say;
    one for each of its routed experts.
    """
    return dict(_tap_widths(layer, taps))


def _tap_widths(layer: Layer, taps: Collection[str]) -> Iterator[tuple[str, int]]:
    a, names = layer.attention, layer.matrices()
    latent = LATENT_TAPS if "attn_in" in taps and a.factors is not None else set()
    for tap in {*taps, *latent}:
        reader = reader_of(tap, names) if tap in READERS else None
        if tap == "weighted_values":
            yield tap, a.n_q * a.n_kv * a.v_size
        elif reader is not None:
            yield tap, width_read(names[reader])
        elif tap in OF_EXPERTS and layer.experts is not None:
            for number, mlp in enumerate(layer.experts.mlps):
                read = mlp.down if tap == "mlp_hidden" else mlp.up
                yield tap_of(tap, number), width_read(read)


def width_read(projection: Projection) -> int:
    """How many numbers of each token a projection reads."""
    return extent(projection)[1]


def extent(projection: Projection) -> tuple[int, int]:
    """How many numbers of each token a projection gives, and how many it reads."""
    match projection:
        case LowRank():
            return projection.up.shape[0], projection.down.shape[1]
        case Stored():
            return projection.form.shape[0], projection.form.shape[1]
    return projection.weight.shape[0], projection.weight.shape[1]


def check_calibration(
    model: LoadedModel, windows: int, seq_len: int, needs: Collection[Need]
) -> None:
    """Raise Shortage where the estimate is more than what is free on the model's device."""
    need = calibration_memory(model.network, windows, seq_len, needs)
    read = f"layers read from disk ({megabytes(need.layers)}), " if need.layers else ""
    what = (
        f"Hidden states of {windows:,} windows of {seq_len:,} tokens ({megabytes(need.states)}), "
        f"{read}the second moments of a layer ({megabytes(need.moments)}) and the activations of "
        f"a batch ({megabytes(need.batch)})"
    )
    raise_unless_free(need.total, what, REMEDY, hardware(str(model.device)).free)
