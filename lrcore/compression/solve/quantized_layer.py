"""Quantization of the projections of a layer to the bits of a plan, by GPTQ."""

from collections.abc import Collection, Mapping
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from ...layers.forms import Matrix
from ...layers.layer import Layer, Projection
from ...layers.obs import gptq
from ...layers.rewriting import once_each, rewrite_projection
from ...layers.spectra import Slot
from ...layers.statistics import TAPS, Moments
from ...methods import Method
from ...models.layers import read_exact, write_layer
from ...models.stream import LayerStream
from ...ranks.quantization import GROUP


def bits_by_matrix(method: Method, bits: Mapping[Slot, int], index: int) -> dict[str, int]:
    """Return the bits of the matrices of layer `index`, by name, from those of slots."""
    return {
        name: slot_bits
        for (layer, slot), slot_bits in bits.items()
        if layer == index
        for name in method.matrices_of(slot)
    }


class Quantizer:
    """Quantizes the projections of a layer; a factor that projections share stays shared.

    bits: by name; other projections are unchanged.
    """

    def __init__(self, bits: Mapping[str, int]) -> None:
        self.bits = bits
        self._rewrites = {
            matrix_bits: once_each(partial(_gptq, bits=matrix_bits))
            for matrix_bits in set(bits.values())
        }

    def quantize(self, name: str, projection: Projection, moment: Tensor) -> Projection:
        """Return a projection in its bits. moment [in, in]: second moment of the input."""
        if name not in self.bits:
            return projection
        return rewrite_projection(projection, self._rewrites[self.bits[name]], moment)


def _gptq(matrix: Matrix, moment: Tensor | None, bits: int) -> Matrix:
    assert moment is not None  # all callers have one
    return gptq(matrix, moment, bits, GROUP)


def quantized_layer(layer: Layer, bits: Mapping[str, int], moments: Moments) -> Layer:
    """Return a layer with projections in their bits. moments: of the inputs of the layer's
    projections.
    """
    quantizer = Quantizer(bits)
    return layer.with_matrices(
        **{
            name: quantizer.quantize(name, projection, moments.second(TAPS[name]))
            for name, projection in layer.matrices().items()
            if name in bits
        }
    )


def input_moments(stream: LayerStream, index: int, names: Collection[str]) -> Moments:
    """Return the second moments of the inputs of some projections of layer `index`, by name.

    The stream is at the input of the layer and stays there.
    """
    moments = stream.run(index, {(TAPS[name], "second") for name in names}, advance=False)
    assert moments is not None  # there are names
    return moments


def quantize_layer(
    network: PreTrainedModel, index: int, bits: Mapping[str, int], stream: LayerStream
) -> None:
    """Quantize projections of layer `index` of the network of the stream."""
    moments = input_moments(stream, index, bits)
    write_layer(network, quantized_layer(read_exact(network, index), bits, moments))
