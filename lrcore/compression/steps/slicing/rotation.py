"""Rotation of a network's residual stream into a different basis (SliceGPT, section 3).

RMSNorm without a weight commutes with an orthogonal Q, so the weight is multiplied into the
matrices that read it. LayerNorm is that norm after M = I - 1 1^T / d. M is multiplied into all
matrices that write to the stream, and the shift is added to the biases of the readers. All products
are computed once in float64 and converted to the network's dtype.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ....layers.layer import Linear
from ....layers.linalg import to_float64
from ....layers.modules.install import subclass_of_native
from ....layers.modules.projections import linear_module
from ....layers.modules.sliced import COMPONENTS, SlicedLayer, StreamNorm, resize_embedding
from ....models.architectures import architecture_of, decoder_layers, text_config
from ....models.layers import projection_paths
from ....models.native import native_linear
from ....system.errors import InputError

READERS = {"attention": ("q", "k", "v"), "mlp": ("gate", "up")}
WRITERS = {"attention": "o", "mlp": "down"}


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of the network as values.

    scale, shift: [d] or None. centered: whether the mean is subtracted first.
    """

    scale: Tensor | None
    shift: Tensor | None
    eps: float
    centered: bool

    @classmethod
    def of(cls, network: PreTrainedModel, module: nn.Module) -> "Norm":
        """Return the values of a norm module of the network."""
        if isinstance(module, nn.LayerNorm):
            return cls(module.weight, module.bias, module.eps, centered=True)
        native: Any = module  # the RMSNorm class of the family
        eps = getattr(native, "variance_epsilon", None)
        return cls(
            to_float64(native.weight) + architecture_of(network).norm_offset,
            None,
            native.eps if eps is None else eps,
            centered=False,
        )

    def center(self, x: Tensor) -> Tensor:
        """Return M x if the norm is centered, otherwise x. [..., d]"""
        return x - x.mean(-1, keepdim=True) if self.centered else x


def check_stream(network: PreTrainedModel) -> None:
    """Raise InputError for a network whose stream cannot be sliced.

    The components must read the stream through a norm and add to it, in sequence.
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
        differences = "".join(
            f", with {name} {value!r}"
            for name, value in settings.items()
            if value != required[name]
        )
        raise InputError(
            f"The residual stream of this {network.config.model_type} model cannot be "
            f"sliced{differences}: slicing requires layers of an attention and then an MLP, each "
            "x + f(norm(x)), without other readers or writers of the stream. Compress it by a "
            "method instead."
        )
    if network.get_input_embeddings().embedding_dim != config.hidden_size:
        raise InputError(
            "The embeddings of this model are not as wide as its stream, so they have no common "
            "basis. Compress it by a method."
        )


def last_norm(network: PreTrainedModel) -> Norm:
    """Return the norm before the head of a dense network."""
    return Norm.of(network, network.get_submodule(architecture_of(network).last_norm))


def block_norms(network: PreTrainedModel, index: int) -> list[nn.Module]:
    """Return the norm modules of a decoder layer, of attention and MLP."""
    return [
        decoder_layers(network)[index].get_submodule(path)
        for path in architecture_of(network).block_norms
    ]


def rotate_embeddings(network: PreTrainedModel, q: Tensor) -> None:
    """Let embeddings and positions write to the stream in the basis q [d, d']."""
    onto = last_norm(network).center(q.T).T  # M Q
    row = architecture_of(network)
    for module in [
        network.get_input_embeddings(),
        *([network.get_submodule(row.positions)] if row.positions else []),
    ]:
        resize_embedding(module, _times(module.weight, onto))


def install_sliced_layer(network: PreTrainedModel, index: int) -> SlicedLayer:
    """Replace decoder layer `index` by a sliced layer, which still has the native modules."""
    row, layers = architecture_of(network), decoder_layers(network)
    feed = [*(row.mlp_parts or (row.mlp,))]
    parts = {
        "attention": row.attention,
        "norms": [*row.block_norms],
        "feed": feed,
        "tuple": row.layer_returns == "tuple",
    }
    layer: SlicedLayer = subclass_of_native(layers[index], SlicedLayer)(layers[index], parts)
    layers[index] = layer
    return layer


def rotate_input(network: PreTrainedModel, index: int, component: str, q: Tensor) -> None:
    """Let a component read the stream in the basis q [d, d']: W diag(scale) Q, b + W shift."""
    layer, width = decoder_layers(network)[index], len(q)
    assert isinstance(layer, SlicedLayer)  # see install_sliced_layer
    path = layer.parts["norms"][COMPONENTS.index(component)]
    norm = Norm.of(network, layer.get_submodule(path))
    layer.set_submodule(path, StreamNorm(width, norm.eps))
    paths = projection_paths(architecture_of(network), layer)
    for reader in dict.fromkeys(paths[name] for name in READERS[component] if name in paths):
        linear = native_linear(layer.get_submodule(reader))
        layer.set_submodule(reader, _module(rotate_reader(linear, norm, q)))


def rotate_output(
    network: PreTrainedModel, index: int, component: str, q: Tensor, following: Tensor
) -> None:
    """Let a component that reads in the basis q write in a different basis: (M Q)^T W, (M Q)^T b.

    q [d, d'_in]; following [d, d'_out]: the basis of the output.
    """
    layer = decoder_layers(network)[index]
    path = projection_paths(architecture_of(network), layer)[WRITERS[component]]
    writer = native_linear(layer.get_submodule(path))
    onto = last_norm(network).center(following.T).T
    bias = None if writer.bias is None else _times(writer.bias, onto)
    layer.set_submodule(path, _module(Linear(_times(writer.weight.T, onto).T, bias)))
    if following is not q:
        setattr(layer, f"{component}_skip", linear_module((following.T @ q).to(writer.weight)))


def rotate_head(network: PreTrainedModel, q: Tensor) -> None:
    """Let the head read the stream in the basis q [d, d'].

    The head is no longer tied to the embeddings, because only the head includes the last norm's
    scale.
    """
    path, norm = architecture_of(network).last_norm, last_norm(network)
    network.set_output_embeddings(
        _module(rotate_reader(native_linear(network.get_output_embeddings()), norm, q))
    )
    network.set_submodule(path, StreamNorm(len(q), norm.eps))
    text_config(network).tie_word_embeddings = False


def rotate_reader(linear: Linear, norm: Norm, q: Tensor) -> Linear:
    """Return a projection of `norm(x)` as a projection of the sliced, normalized stream Q^T x.

    linear [out, d] -> [out, d'].
    """
    weight, bias = to_float64(linear.weight), linear.bias
    if norm.shift is not None:
        added = weight @ to_float64(norm.shift)
        bias = (added if bias is None else to_float64(bias) + added).to(linear.weight)
    scaled = weight if norm.scale is None else weight * norm.scale
    return Linear((scaled @ q).to(linear.weight), bias)


def _times(rows: Tensor, onto: Tensor) -> Tensor:
    """Return rows @ onto, computed in float64, in the dtype of the rows."""
    return (to_float64(rows.detach()) @ onto).to(rows)


def _module(linear: Linear) -> nn.Linear:
    return linear_module(linear.weight, linear.bias)


def stream_linear(network: PreTrainedModel, index: int) -> tuple[int, int]:
    """Return decoder-linear parameters of a sliced layer: per column of the stream, and fixed."""
    row, layer = architecture_of(network), decoder_layers(network)[index]
    paths, per_column, fixed = projection_paths(row, layer), 0, 0
    for component, module in zip(COMPONENTS, block_norms(network, index), strict=True):
        norm = Norm.of(network, module)
        for path in {paths[name] for name in READERS[component] if name in paths}:
            reader = native_linear(layer.get_submodule(path))
            per_column += reader.weight.shape[0]
            has_bias = reader.bias is not None or norm.shift is not None
            fixed += reader.weight.shape[0] if has_bias else 0
        writer = native_linear(layer.get_submodule(paths[WRITERS[component]]))
        per_column += writer.weight.shape[1] + (writer.bias is not None)
    return per_column, fixed
