"""Size of a network: parameters, bytes, cache and FLOPs per token."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..layers.account import LayerWork, ModelAccount, flops_per_token
from ..layers.forms import Matrix
from ..layers.layer import (
    Layer,
    LowRank,
    absorption_products,
    factor_matrices,
    key_expansion_products,
    multiplied_numbers,
    same_matrix,
    value_products,
)
from ..layers.modules.projections import LowRankLinear, StoredLinear
from ..layers.modules.sliced import residual_parameters
from .architectures import decoder_layers
from .layers import read_layer
from .mixer_state import state_bytes
from .structure import untied


@dataclass(frozen=True)
class ModelSize:
    """Size of a network, counted from its modules.

    parameters: numbers, tied ones once. decoder_linear: parameters of the projections, and of the
    matrices that slicing adds to the residual path. kv_values: cached numbers per token, of
    bytes_per_value each. stored: bytes of all tensors of a checkpoint, including permutations,
    quantized weights and sparse indices. state_bytes: of the cached states of linear attention,
    Mamba and convolutions, per sequence.
    """

    parameters: int
    decoder_linear: int
    kv_values: int
    bytes_per_value: int
    stored: int
    state_bytes: int = 0

    @property
    def megabytes(self) -> float:
        return self.stored / 1e6

    @property
    def kv_bytes(self) -> int:
        return self.kv_values * self.bytes_per_value


def measure(network: PreTrainedModel) -> ModelSize:
    """Measure the size of a network, compressed or not."""
    kv = decoder_linear = 0
    bases: dict[int, int] = {}  # maps a `down` module to the first layer that has it
    for index, module in enumerate(decoder_layers(network)):
        layer = read_layer(network, index)
        kv += layer.attention.kv_values
        decoder_linear += layer.parameters + residual_parameters(module)
        downs = {id(m.down): m.down for m in module.modules() if isinstance(m, LowRankLinear)}
        shared = [down for key, down in downs.items() if bases.setdefault(key, index) != index]
        decoder_linear -= sum(down.weight.numel() for down in shared)
    parameters = sum(p.numel() for p in network.parameters())
    parameters += sum(
        module.uncounted for module in network.modules() if isinstance(module, StoredLinear)
    )
    return ModelSize(
        parameters,
        decoder_linear,
        kv,
        network.dtype.itemsize,
        sum(tensor.nbytes for tensor in untied(network)[0].values()),
        state_bytes(network),
    )


def count_account(network: PreTrainedModel, context: int) -> ModelAccount:
    """Count parameters, bytes, cache and FLOPs per token of a network, compressed or not.

    context: tokens in the cache before the token whose FLOPs are counted.
    """
    size = measure(network)
    return ModelAccount(
        size.parameters,
        size.decoder_linear,
        size.stored,
        size.kv_bytes,
        count_flops(network, context),
        state_bytes=size.state_bytes,
    )


def count_flops(network: PreTrainedModel, context: int) -> int:
    """Count the FLOPs of a token after `context` cached tokens; see `account.flops_per_token`."""
    head = network.get_output_embeddings().weight.numel()
    return flops_per_token(network_work(network), head, context)


def network_work(network: PreTrainedModel) -> tuple[LayerWork, ...]:
    """Count the multiplications of each decoder layer."""
    return tuple(
        layer_work(read_layer(network, index), residual_parameters(layer))
        for index, layer in enumerate(decoder_layers(network))
    )


def layer_work(layer: Layer, residual: int = 0) -> LayerWork:
    """Count the multiplications of a layer; residual: numbers in its residual-path matrices."""
    a, channel = layer.attention, layer.attention.channel
    weights = sum(map(multiplied_numbers, _matrices(layer))) + residual + absorption_products(a)
    if layer.experts is not None:
        mlps, active = layer.experts.mlps, layer.experts.active
        factors = (
            part for mlp in mlps for p in mlp.matrices().values() for part in factor_matrices(p)
        )
        weights += sum(map(multiplied_numbers, factors)) * active // len(mlps)
    cached = a.n_q * a.qk_size + key_expansion_products(a) + value_products(a)
    if channel is not None:
        weights += channel.parameters - channel.biases
        cached += a.n_q * channel.size + channel.k.numel()
    return LayerWork(weights, cached)


def _matrices(layer: Layer) -> list[Matrix]:
    """Return each matrix once, without biases."""
    matrices: list[Matrix] = []
    for p in layer.matrices().values():
        factors = factor_matrices(p)
        if isinstance(p, LowRank) and any(same_matrix(p.down, matrix) for matrix in matrices):
            factors = [part for part in factors if part is not p.down]
        matrices += factors
    return matrices
