"""Layers that are compressed part by part, with their outputs anchored to the dense model's.

A part is what reads one input: q, k and v; o; gate and up; down. It is solved on what the parts
before it give once they are compressed, for what the dense model gives at the same place.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from ..methods import Method
from ..models.architectures import decoder_layers
from ..models.layers import read_exact
from ..models.offload import present
from ..models.stream import READERS, LayerStream, reader_of
from ..precise import exact
from ..spectra import Slot
from ..statistics import CROSS, Moments, at_least_float32, centred, check_finite_moments
from .factorise import truncate_layer


def compress_anchored(
    network: PreTrainedModel,
    index: int,
    streams: tuple[LayerStream, LayerStream],
    solver: tuple[Method, Any],
    ranks: Mapping[Slot, int],
) -> None:
    """Compress layer `index` of the network to its ranks, part by part.

    streams: of the dense network and of this one, which have reached the layer and stay there.
    solver: a method that reads cross moments, and its options.
    """
    (dense, small), (method, options) = streams, solver
    with present(decoder_layers(network)[index]), present(decoder_layers(dense.network)[index]):
        for tap in READERS:
            layer = read_exact(network, index)
            reader = reader_of(tap, layer.matrices())
            if reader is None:  # a layer of experts, or without latents
                continue
            own = method.factor(layer, crossed(dense, small, index, tap, reader), options)
            part = {slot: rank for slot, rank in ranks.items() if slot[1] in own}
            truncate_layer(network, index, own, part)


def crossed(dense: LayerStream, small: LayerStream, index: int, tap: str, reader: str) -> Moments:
    """`E[x' x'^T]` and `E[x x'^T]` at a tap of a layer, [n, n] float64 each: x in the dense
    network, x' in the other. reader: the projection whose input it is. Raises InputError where
    activations of the other network are not finite.
    """
    second: Any = 0.0  # a float until the first batch, then a tensor
    cross: Any = 0.0
    tokens = 0
    for number in range(len(small.hidden)):
        x, own = (
            at_least_float32(stream.look_before(index, number, reader)) for stream in (dense, small)
        )
        tokens += own.shape[:-1].numel()
        (x, _, mean_x), (own, _, mean) = (centred(rows.flatten(0, -2)) for rows in (x, own))
        second = second + exact(own.mT @ own).addr_(mean, mean)
        cross = cross + exact(x.mT @ own).addr_(mean_x, mean)
    moments = Moments({(tap, "second"): second / tokens, (tap, CROSS): cross / tokens}, tokens)
    check_finite_moments(moments, index)
    return moments
