"""The account of a loaded model, counted from its layers as they stand."""

from transformers import PreTrainedModel

from ..account import LayerWork, ModelAccount, flops_per_token
from ..forms import Matrix
from ..layer import Layer, LowRank, same_matrix
from ..modules.sliced import residual_parameters
from ..multiply_adds import absorbed, multiplied, parts, raised_keys, weighted_values
from .architectures import decoder_layers
from .layers import read_layer
from .structure import measure


def count_account(network: PreTrainedModel, context: int) -> ModelAccount:
    """Parameters, bytes, cache and FLOPs per token of a network, compressed or not.

    context: tokens in the cache before the one whose FLOPs are counted.
    """
    size = measure(network)
    return ModelAccount(
        size.parameters,
        size.decoder_linear,
        size.stored,
        size.kv_bytes,
        count_flops(network, context),
    )


def count_flops(network: PreTrainedModel, context: int) -> int:
    """FLOPs of one token with `context` tokens in the cache; see `account.flops_per_token`."""
    head = network.get_output_embeddings().weight.numel()
    return flops_per_token(network_work(network), head, context)


def network_work(network: PreTrainedModel) -> tuple[LayerWork, ...]:
    """What every decoder layer multiplies."""
    return tuple(
        layer_work(read_layer(network, index), residual_parameters(layer))
        for index, layer in enumerate(decoder_layers(network))
    )


def layer_work(layer: Layer, residual: int = 0) -> LayerWork:
    """What one layer multiplies; residual: numbers in the matrices of its residual path."""
    a, channel = layer.attention, layer.attention.channel
    weights = sum(map(multiplied, _matrices(layer))) + residual + absorbed(a)
    if layer.experts is not None:
        mlps, active = layer.experts.mlps, layer.experts.active
        own = (part for mlp in mlps for p in mlp.matrices().values() for part in parts(p))
        weights += sum(map(multiplied, own)) * active // len(mlps)
    cached = a.n_q * a.qk_size + raised_keys(a) + weighted_values(a)
    if channel is not None:
        weights += channel.parameters - channel.biases
        cached += a.n_q * channel.size + channel.k.numel()
    return LayerWork(weights, cached)


def _matrices(layer: Layer) -> list[Matrix]:
    """Every matrix once, without biases."""
    matrices: list[Matrix] = []
    for p in layer.matrices().values():
        own = parts(p)
        if isinstance(p, LowRank) and any(same_matrix(p.down, other) for other in matrices):
            own = [part for part in own if part is not p.down]
        matrices += own
    return matrices
