"""A network whose residual stream is in another basis: what reads it, what writes to it, and norms
that turn with it (SliceGPT, section 3).

RMSNorm without a weight commutes with an orthogonal Q, so its weight goes into the matrices that
read it. LayerNorm is that norm after M = I - 1 1^T / d, which goes into all that writes to the
stream, and its shift into the biases of what reads it. All products are made in float64, once, and
brought to the network's dtype.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import InputError
from ...layer import Linear
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.layers import projection_paths
from ...models.native import linear_of
from ...modules.install import standing_for
from ...modules.projections import linear_module
from ...modules.sliced import COMPONENTS, SlicedLayer, StreamNorm, resized
from ...precise import exact

READERS = {"attention": ("q", "k", "v"), "mlp": ("gate", "up")}
WRITERS = {"attention": "o", "mlp": "down"}


@dataclass(frozen=True, eq=False)
class Norm:
    """A family's norm as values: scale and shift [d] or None; centred: whether it takes the mean
    away first.
    """

    scale: Tensor | None
    shift: Tensor | None
    eps: float
    centred: bool

    @classmethod
    def of(cls, network: PreTrainedModel, module: nn.Module) -> "Norm":
        """The values of a norm module of the network."""
        if isinstance(module, nn.LayerNorm):
            return cls(module.weight, module.bias, module.eps, centred=True)
        native: Any = module  # an RMSNorm of the family's own
        eps = getattr(native, "variance_epsilon", None)
        return cls(
            exact(native.weight) + architecture_of(network).norm_offset,
            None,
            native.eps if eps is None else eps,
            centred=False,
        )

    def centre(self, x: Tensor) -> Tensor:
        """M x where the norm is centred, x elsewhere. [..., d]"""
        return x - x.mean(-1, keepdim=True) if self.centred else x


def check_stream(network: PreTrainedModel) -> None:
    """Raise InputError for a network whose components do not each read the stream through a norm
    and add to it, one after another.
    """
    row, config = architecture_of(network), text_config(network)
    required = row.sequential or {}
    settings = {name: getattr(config, name, None) for name in required}
    if (
        row.sequential is None
        or row.experts
        or config is not network.config
        or settings != dict(required)
    ):
        why = "".join(
            f", with {name} {value!r}"
            for name, value in settings.items()
            if value != required[name]
        )
        raise InputError(
            f"The residual stream of this {network.config.model_type} model cannot be "
            f"sliced{why}: that takes layers that are an attention "
            "and then an MLP, each x + f(norm(x)), and nothing else that reads or writes the "
            "stream. Compress it by a method instead."
        )
    if network.get_input_embeddings().embedding_dim != config.hidden_size:
        raise InputError(
            "The embeddings of this model are not as wide as its stream, so no basis serves both. "
            "Compress it by a method."
        )


def last_norm(network: PreTrainedModel) -> Norm:
    """The norm before the head of a dense network."""
    return Norm.of(network, network.get_submodule(architecture_of(network).last_norm))


def block_norms(network: PreTrainedModel, index: int) -> list[nn.Module]:
    """The norm modules of a decoder layer, attention's and MLP's."""
    return [
        decoder_layers(network)[index].get_submodule(path)
        for path in architecture_of(network).block_norms
    ]


def turn_embeddings(network: PreTrainedModel, q: Tensor) -> None:
    """Embeddings and positions that write to the stream in the basis q [d, d']."""
    onto = last_norm(network).centre(q.T).T  # M Q
    row = architecture_of(network)
    for module in [
        network.get_input_embeddings(),
        *([network.get_submodule(row.positions)] if row.positions else []),
    ]:
        resized(module, _times(module.weight, onto))


def take_over(network: PreTrainedModel, index: int) -> SlicedLayer:
    """Put a sliced layer in the place of decoder layer `index`; its modules are still the native
    ones.
    """
    row, layers = architecture_of(network), decoder_layers(network)
    feed = [*(row.feed or (row.mlp,))]
    parts = {
        "attention": row.attention,
        "norms": [*row.block_norms],
        "feed": feed,
        "tuple": row.layer_returns == "tuple",
    }
    layer: SlicedLayer = standing_for(layers[index], SlicedLayer)(layers[index], parts)
    layers[index] = layer
    return layer


def turn_input(network: PreTrainedModel, index: int, component: str, q: Tensor) -> None:
    """Let a component read the stream in the basis q [d, d']: W diag(scale) Q, b + W shift."""
    layer, width = decoder_layers(network)[index], len(q)
    assert isinstance(layer, SlicedLayer)  # take_over has been called
    path = layer.parts["norms"][COMPONENTS.index(component)]
    norm = Norm.of(network, layer.get_submodule(path))
    layer.set_submodule(path, StreamNorm(width, norm.eps))
    paths = projection_paths(architecture_of(network), layer)
    for own in dict.fromkeys(paths[name] for name in READERS[component] if name in paths):
        layer.set_submodule(own, _module(reading(linear_of(layer.get_submodule(own)), norm, q)))


def turn_output(
    network: PreTrainedModel, index: int, component: str, q: Tensor, following: Tensor
) -> None:
    """Let a component that reads in the basis q [d, d'_in] write in the basis `following` [d,
    d'_out]: (M Q)^T W, (M Q)^T b.
    """
    layer = decoder_layers(network)[index]
    path = projection_paths(architecture_of(network), layer)[WRITERS[component]]
    own = linear_of(layer.get_submodule(path))
    onto = last_norm(network).centre(following.T).T
    bias = None if own.bias is None else _times(own.bias, onto)
    layer.set_submodule(path, _module(Linear(_times(own.weight.T, onto).T, bias)))
    if following is not q:
        setattr(layer, f"{component}_skip", linear_module((following.T @ q).to(own.weight)))


def turn_head(network: PreTrainedModel, q: Tensor) -> None:
    """Let the head read the stream in the basis q [d, d'].

    It is no longer tied to the embeddings: only it holds the last norm's scale.
    """
    path, norm = architecture_of(network).last_norm, last_norm(network)
    network.set_output_embeddings(
        _module(reading(linear_of(network.get_output_embeddings()), norm, q))
    )
    network.set_submodule(path, StreamNorm(len(q), norm.eps))
    text_config(network).tie_word_embeddings = False


def reading(linear: Linear, norm: Norm, q: Tensor) -> Linear:
    """A projection of `norm(x)` as one of the sliced stream Q^T x, normed without weight.

    linear [out, d] -> [out, d'].
    """
    weight, bias = exact(linear.weight), linear.bias
    if norm.shift is not None:
        added = weight @ exact(norm.shift)
        bias = (added if bias is None else exact(bias) + added).to(linear.weight)
    scaled = weight if norm.scale is None else weight * norm.scale
    return Linear((scaled @ q).to(linear.weight), bias)


def _times(rows: Tensor, onto: Tensor) -> Tensor:
    """rows @ onto in float64, in the dtype of the rows."""
    return (exact(rows.detach()) @ onto).to(rows)


def _module(linear: Linear) -> nn.Linear:
    return linear_module(linear.weight, linear.bias)


def stream_linear(network: PreTrainedModel, index: int) -> tuple[int, int]:
    """Of decoder layer `index` of a dense network once it is sliced: numbers per column of the
    stream, and numbers that stay.
    """
    row, layer = architecture_of(network), decoder_layers(network)[index]
    paths, per_column, fixed = projection_paths(row, layer), 0, 0
    for component, module in zip(COMPONENTS, block_norms(network, index), strict=True):
        norm = Norm.of(network, module)
        for path in {paths[name] for name in READERS[component] if name in paths}:
            own = linear_of(layer.get_submodule(path))
            per_column += own.weight.shape[0]
            fixed += own.weight.shape[0] if own.bias is not None or norm.shift is not None else 0
        own = linear_of(layer.get_submodule(paths[WRITERS[component]]))
        per_column += own.weight.shape[1] + (own.bias is not None)
    return per_column, fixed
