"""Reading a decoder layer as values, writing values back, and describing what was written so that it can be rebuilt.

`write_layer` is the only place that changes a network. It exchanges modules and never writes into a tensor, so a clone that
shares its tensors with the dense network leaves that one untouched.
"""

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..layer import MLP, Attention, Layer
from .architectures import Architecture, architecture_of, decoder_layers
from .modules import CompressedAttention
from .projections import describe, projection_modules, read_projection, rebuild


def _head_sizes(network: nn.Module) -> tuple[int, int, int]:
    """n_q, n_kv, d_h of the dense model."""
    config = network.config
    n_q = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_q
    return n_q, n_kv, getattr(config, "head_dim", None) or config.hidden_size // n_q


def read_layer(network: nn.Module, index: int) -> Layer:
    """The values of decoder layer `index`, native or compressed. Tensors are shared with the network, not copied."""
    row, module = architecture_of(network), decoder_layers(network)[index]
    attention = module.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        sizes = attention.sizes()
        sizes.pop("selected_pairs")
        own = {name: read_projection(getattr(attention, f"{name}_proj")) for name in "qkvo"}
        value = Attention(**own, **sizes, rotary_pairs=attention.rotary_pairs)
    else:
        n_q, n_kv, d_h = _head_sizes(network)
        own = {name: read_projection(module.get_submodule(row.paths()[name])) for name in "qkvo"}
        value = Attention(
            **own, n_q=n_q, n_kv=n_kv, head_size=d_h, qk_size=d_h, v_size=d_h, scale=float(attention.scaling), position=row.position
        )
    mlp = {name: read_projection(module.get_submodule(row.paths()[name])) for name in ("gate", "up", "down") if name in row.paths()}
    return Layer(index, value, MLP(**mlp, activation=getattr(network.config, row.activation)))


def projection_paths(row: Architecture, module: nn.Module) -> dict[str, str]:
    """Where the projections of a decoder layer are, native or compressed, relative to the layer."""
    if not isinstance(module.get_submodule(row.attention), CompressedAttention):
        return row.paths()
    return row.paths() | {name: f"{row.attention}.{name}_proj" for name in "qkvo"}


def write_layer(network: nn.Module, layer: Layer) -> None:
    """Install the values of a layer. Projections whose head sizes are unchanged stay in the native attention, bit for bit."""
    row, module = architecture_of(network), decoder_layers(network)[layer.index]
    values, attention = layer.matrices(), layer.attention
    native = attention.qk_size == attention.v_size == attention.head_size and attention.rotary_pairs is None
    if not native:
        module.set_submodule(row.attention, CompressedAttention.of(attention, layer.index))
    installed = {name: value for name, value in values.items() if native or name not in "qkvo"}
    for name, projection in projection_modules(installed).items():
        module.set_submodule(row.paths()[name], projection)


def clone(network: nn.Module) -> nn.Module:
    """A second network over the same tensors: its modules are its own, its parameters and buffers are shared."""
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    return copy.deepcopy(network, memo=shared)


def structure(network: nn.Module) -> dict[str, Any]:
    """What `install` needs to rebuild the modules of a written network: JSON-able shapes, no tensors."""
    row = architecture_of(network)
    layers = []
    for module in decoder_layers(network):
        attention = module.get_submodule(row.attention)
        compressed = isinstance(attention, CompressedAttention)
        layers.append(
            {
                "attention": attention.sizes() if compressed else None,
                "projections": describe({name: module.get_submodule(path) for name, path in projection_paths(row, module).items()}),
            }
        )
    return {"model_type": network.config.model_type, "layers": layers}


def install(network: nn.Module, description: dict[str, Any]) -> None:
    """Put empty modules of the described shapes in place; the caller loads the state dict."""
    row = architecture_of(network)
    for index, (module, entry) in enumerate(zip(decoder_layers(network), description["layers"], strict=True)):
        paths = row.paths()
        if entry["attention"] is not None:
            module.set_submodule(row.attention, CompressedAttention(entry["attention"], index))
            paths |= {name: f"{row.attention}.{name}_proj" for name in "qkvo"}
        for name, projection in rebuild(entry["projections"], network.dtype).items():
            parent, _, leaf = paths[name].rpartition(".")
            setattr(module.get_submodule(parent), leaf, projection)


@dataclass(frozen=True)
class ModelSize:
    """Counted from the loaded modules. Parameters are numbers, tied ones counted once; kv_values are cached numbers per token."""

    parameters: int
    decoder_linear: int
    kv_values: int
    bytes_per_value: int

    @property
    def megabytes(self) -> float:
        return self.parameters * self.bytes_per_value / 1e6

    @property
    def kv_bytes(self) -> int:
        return self.kv_values * self.bytes_per_value


def measure(network: nn.Module) -> ModelSize:
    """The size of a network as it stands, compressed or not."""
    layers = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    kv = sum(layer.attention.n_kv * (layer.attention.qk_size + layer.attention.v_size) for layer in layers)
    parameters = sum(p.numel() for p in network.parameters())
    return ModelSize(parameters, sum(layer.parameters for layer in layers), kv, network.dtype.itemsize)
