"""Export to a standard architecture of transformers, without custom code."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from ...layers.layer import Layer
from ...layers.modules.sliced import StreamNorm
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.config import CONFIG, auto_class, without_initialization
from ...models.layers import layer_shapes
from ...models.load import LoadedModel
from ...models.offload import stored_tensors_of
from ...models.structure import sliced_modules
from ...models.weights import read_json
from ...system.errors import InputError, with_article
from ..changes import Changes
from ..checkpoint import write_companions, write_json, write_weights
from ..family_modules import Supported, to_family_modules
from .standard_fit import sliced_reasons

# Config fields that enable biases in all layers of a family, and their projections
BIASES = {"mlp_bias": ("down",), "attention_bias": "qkvo"}
TOKENIZER = "tokenizer_config.json"
ROPE_FIELDS = ("rope_theta", "partial_rotary_factor")  # outside `rope_parameters` before version 5


def write_standard(model: LoadedModel, folder: Path, shard: str) -> tuple[LoadedModel, Changes]:
    """Write config, weights, tokenizer and generation config of a model in its family's modules.

    Returns the converted model and its changes. Raises InputError with the reasons if the model
    cannot be converted.
    """
    family = text_config(model.network).model_type
    refusal = f"This model is not a standard {family}"
    converted, changes = to_family_modules(model, Supported(), refusal)
    config, native = _standard_network(converted.network)
    config.architectures = [type(native).__name__]
    tensors = _standard_state(converted.network, native)
    state = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    write_weights(state, folder, shard)
    config.save_pretrained(folder)
    write_companions(model, folder)
    _add_fields_of_version_4(folder)
    names = native.state_dict().keys()
    buffers = sum(buffer.numel() for name, buffer in native.named_buffers() if name in names)
    written = sum(tensor.numel() for tensor in state.values()) - buffers
    return converted, replace(changes, parameters=(changes.parameters[0], written))


def _add_fields_of_version_4(folder: Path) -> None:
    """Add config fields that transformers before version 5 reads, on which other libraries depend.

    It ignores `rope_parameters`, and would silently use another base of rotary positions. Its class
    of tokenizers has another name.
    """
    values = read_json(folder / CONFIG)
    text = values.get("text_config", values)
    rope = text.get("rope_parameters") or {}
    text |= {name: rope[name] for name in ROPE_FIELDS if name in rope}
    if rope.get("rope_type", "default") != "default":
        text["rope_scaling"] = rope
    write_json(folder / CONFIG, values)
    tokenizer = folder / TOKENIZER
    if tokenizer.is_file():
        fields = read_json(tokenizer)
        if fields.get("tokenizer_class") == "TokenizersBackend":
            write_json(tokenizer, fields | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _standard_network(network: PreTrainedModel) -> tuple[Any, PreTrainedModel]:
    """Return the config and an empty network on the meta device for a converted network."""
    row, config = architecture_of(network), copy.deepcopy(network.config)
    text = config.get_text_config()
    sliced = sliced_modules(network)
    if sliced and (reasons := sliced_reasons(network)):
        raise _refused(network, "; ".join(reasons))
    layers = [layer_shapes(network, index) for index in range(len(decoder_layers(network)))]
    widths = {layer.mlp.down.weight.shape[1] for layer in layers if layer.mlp is not None}
    if row.width is not None and len(widths) == 1:  # otherwise the config has a width per layer
        setattr(text, row.width, widths.pop())
    for field, names in BIASES.items():
        biased = any(p.bias is not None for layer in layers for p in layer.projections_named(names))
        if biased and hasattr(text, field) and field not in row.requires:
            setattr(text, field, True)
    if sliced:
        narrow = network.get_input_embeddings().embedding_dim
        norm: Any = sliced[row.last_norm]
        text.head_dim = layers[0].attention.head_size
        text.hidden_size, text.rms_norm_eps = narrow, norm.eps * norm.width / narrow
    config.dtype = network.dtype
    with torch.device("meta"), without_initialization():
        native = auto_class(config).from_config(
            config, dtype=network.dtype, attn_implementation=row.kernel
        )
    if any(_loses_biases(layer, layer_shapes(native, layer.index)) for layer in layers):
        family = with_article(text.model_type)
        raise _refused(network, f"it has biases that {family} layer does not support")
    return config, native


def _loses_biases(layer: Layer, native: Layer) -> bool:
    """Return True if a projection has a bias, but not in the native layer."""
    matrices = native.matrices()
    return any(p.bias is not None and matrices[n].bias is None for n, p in layer.matrices().items())


def _refused(network: PreTrainedModel, reason: str) -> InputError:
    family = text_config(network).model_type
    return InputError(
        f"This model is not a standard {family}: {reason}. Export it with custom code."
    )


def _standard_state(network: PreTrainedModel, native: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights by the names and in the shapes of the native network, tied ones once."""
    tensors = network.state_dict() | {
        name: stored.map() for name, stored in stored_tensors_of(network).items()
    }
    state = {
        name: _standard_tensor(name, meta, network, native, tensors)
        for name, meta in native.state_dict().items()
        if name not in native.all_tied_weights_keys
    }
    if not architecture_of(network).experts:
        return state
    # Checkpoints of the family have separate experts, and other programs read only those.
    separate = revert_weight_conversion(native, state)
    return {name: tensor.contiguous() for name, tensor in separate.items()}


def _standard_tensor(
    name: str,
    meta: Tensor,
    network: PreTrainedModel,
    native: PreTrainedModel,
    tensors: dict[str, Tensor],
) -> Tensor:
    """Return a tensor [...] of the native network; new biases are zero.

    meta: the empty tensor of the native network. tensors: those of `network` by name.
    """
    row = architecture_of(network)
    parent, _, leaf = name.rpartition(".")
    path = parent.removeprefix(f"{row.layers}.").partition(".")[2]
    if name in tensors:
        is_transposed = (
            leaf == "weight"
            and isinstance(native.get_submodule(parent), Conv1D)
            and isinstance(network.get_submodule(parent), nn.Linear)
        )
        return (tensors[name].T if is_transposed else tensors[name]).contiguous()
    mlp = f"{parent.removesuffix(path)}{row.mlp}"
    if path == row.down and f"{mlp}.down_proj.{leaf}" in tensors:
        return tensors[f"{mlp}.down_proj.{leaf}"].contiguous()
    if row.gate == row.up == path:
        return torch.cat([tensors[f"{mlp}.{part}_proj.{leaf}"] for part in ("gate", "up")])
    if isinstance(norm := network.get_submodule(parent), StreamNorm):
        return torch.full_like(meta, (norm.width / len(meta)) ** 0.5, device="cpu")
    assert leaf == "bias", name  # the network has all other tensors
    return torch.zeros(meta.shape, dtype=meta.dtype)
