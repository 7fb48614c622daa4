"""What a network is made of as it stands: its tensors, its replaced modules, its size."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..modules.install import describe_module
from ..modules.projections import LowRankLinear, StoredLinear, describe
from ..modules.sliced import SlicedLayer, residual_parameters
from ..tensor_files import StoredTensor
from .architectures import architecture_of, decoder_layers
from .layers import module_at, projection_paths, read_layer
from .offload import stored_of


def untied(network: nn.Module) -> tuple[dict[str, Tensor | StoredTensor], dict[str, str]]:
    """The tensors by name, each once and on disk where it waits there, and for every further
    name the first one of the same tensor.
    """
    state = network.state_dict() | stored_of(network)
    first: dict[Any, str] = {}
    unique, tied = {}, {}
    for name, tensor in state.items():
        key = (
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if isinstance(tensor, Tensor)
            else tensor
        )
        same = first.setdefault(key, name)
        if same == name:
            unique[name] = tensor
        else:
            tied[name] = same
    return unique, tied


def structure(network: nn.Module) -> dict[str, Any]:
    """What `install` needs to rebuild the modules of a written network, by layer: JSON-able, no
    tensors.
    """
    row, described = architecture_of(network), {}
    for index, layer in enumerate(decoder_layers(network)):
        sliced = isinstance(layer, SlicedLayer)
        own = {
            path: module_at(layer, path)
            for path in (row.attention, row.mlp, *(row.block_norms if sliced else ()))
        }
        own |= {path: layer.get_submodule(path) for path in projection_paths(row, layer).values()}
        own |= {path: getattr(layer, path) for path in ("attention_skip", "mlp_skip") if sliced}
        described[f"{row.layers}.{index}"] = (
            {"parts": layer.parts} if sliced else {}
        ) | _described(own)
    outside = turned_modules(network)
    return described | ({"": _described(outside)} if outside else {})


def _described(own: dict[str, nn.Module | None]) -> dict[str, Any]:
    modules = {path: describe_module(module) for path, module in own.items()}
    projections = {
        path: module
        for path, module in own.items()
        if isinstance(module, nn.Linear | LowRankLinear | StoredLinear)
    }
    return {
        "modules": {path: entry for path, entry in modules.items() if entry is not None},
        "projections": describe(projections),
    }


def turned_modules(network: nn.Module) -> dict[str, nn.Module]:
    """What stands outside the layers of a sliced network and has changed with the stream, by
    path; nothing of another network.
    """
    row = architecture_of(network)
    if not any(isinstance(layer, SlicedLayer) for layer in decoder_layers(network)):
        return {}
    named = {id(module): path for path, module in network.named_modules()}
    ends = [network.get_input_embeddings(), network.get_output_embeddings()]
    found = [
        *ends,
        *(network.get_submodule(path) for path in (row.last_norm, row.positions) if path),
    ]
    return {named[id(module)]: module for module in found}


@dataclass(frozen=True)
class ModelSize:
    """Counted from the loaded modules.

    Parameters are numbers, tied ones counted once; kv_values are cached numbers per token.
    decoder_linear: those of the projections, and of the matrices that slicing puts into the
    residual path.

    stored: bytes of all tensors that a checkpoint holds, with orders, codes and indices as they
    are.
    """

    parameters: int
    decoder_linear: int
    kv_values: int
    bytes_per_value: int
    stored: int

    @property
    def megabytes(self) -> float:
        return self.stored / 1e6

    @property
    def kv_bytes(self) -> int:
        return self.kv_values * self.bytes_per_value


def measure(network: nn.Module) -> ModelSize:
    """The size of a network as it stands, compressed or not."""
    kv = decoder_linear = 0
    for index in range(len(decoder_layers(network))):
        layer = read_layer(network, index)
        kv += layer.attention.kv_values
        decoder_linear += layer.parameters + residual_parameters(decoder_layers(network)[index])
    parameters = sum(p.numel() for p in network.parameters())
    parameters += sum(
        module.uncounted for module in network.modules() if isinstance(module, StoredLinear)
    )
    return ModelSize(
        parameters,
        decoder_linear,
        kv,
        network.dtype.itemsize,
        sum(each.nbytes for each in untied(network)[0].values()),
    )
