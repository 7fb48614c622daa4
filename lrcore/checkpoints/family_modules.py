"""Conversion of a compressed model to the modules of its family, without changing its outputs.

Factors are multiplied out, and heads and MLPs are padded with zeros to a common size.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..layers.experts import STACKED
from ..layers.layer import Attention, Experts, Layer, Linear, Projection
from ..layers.modules.compressed import CompressedAttention, CompressedExperts
from ..layers.modules.install import with_family_class
from ..layers.modules.projections import projection_modules
from ..models.architecture import module_at
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import auto_class, without_initialization
from ..models.layers import clone, experts_path, layer_shapes, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.model_size import measure
from ..models.native import fill_stacked, head_sizes, layout_of, rows_of
from ..models.offload import present
from ..models.per_layer import has_per_layer_sizes
from ..system.errors import InputError
from .changes import Changes, Padding
from .padding import expert_width, has_full_heads, mlp_width, pad_heads, pad_mlp
from .unsupported import unsupported_heads

HEAD_FIELDS = ("head_dim", "num_key_value_heads")  # config fields of families that can lose heads


@dataclass(frozen=True)
class Supported:
    """Structures that a target runs: low-rank, sparse and quantized matrices; MLPs of any width."""

    factored: bool = False
    any_width: bool = False


def to_family_modules(
    model: LoadedModel, supported: Supported, refusal: str
) -> tuple[LoadedModel, Changes]:
    """Convert a model to the modules of its family, except for supported structures.

    Returns the model itself if no change is necessary. Raises InputError for a layer that cannot be
    converted; refusal: the start of its message, such as "vLLM cannot run this model".
    """
    layers = range(len(decoder_layers(model.network)))
    before = [layer_shapes(model.network, index) for index in layers]
    conversion = _Conversion(model.network, before, supported)
    converted = model
    if conversion.is_needed:
        for index in layers:
            conversion.write(index, refusal)
        converted = replace(model, network=conversion.network)
    after = [layer_shapes(converted.network, index) for index in layers]
    size_before, size_after = measure(model.network), measure(converted.network)
    changes = Changes(
        "folder",
        factored=sum(map(_factored, before)) - sum(map(_factored, after)),
        narrowed=sum(not has_full_heads(layer.attention) for layer in before),
        heads=_padding(before, after, lambda layer: layer.attention.n_kv),
        widths=_padding(before, after, mlp_width),
        experts=_padding(before, after, expert_width),
        parameters=(size_before.parameters, size_after.parameters),
        cached=(size_before.kv_values, size_after.kv_values),
    )
    return converted, changes


class _Conversion:
    """A copy of a network that is converted layer by layer and shares unchanged tensors.

    The copy is never run: tables of positions in attention modules are empty. native: a network of
    the family on the meta device, with the config of the copy.
    """

    def __init__(
        self, network: PreTrainedModel, shapes: Sequence[Layer], supported: Supported
    ) -> None:
        self.network, self.shapes, self.supported = clone(network), shapes, supported
        self.row, self.text = architecture_of(network), text_config(self.network)
        self.has_fewer_heads = self._reduce_heads()
        if not supported.any_width:
            self._set_width(self.row.width, map(mlp_width, shapes), 1)
        self._set_width(self.row.expert_width, map(expert_width, shapes), STACKED)
        with torch.device("meta"), without_initialization():
            self.native: PreTrainedModel = auto_class(self.network.config).from_config(
                copy.deepcopy(self.network.config),
                dtype=network.dtype,
                attn_implementation=self.row.kernel,
            )
        self.native_shapes = [layer_shapes(self.native, layer.index) for layer in shapes]

    @property
    def is_needed(self) -> bool:
        """True if a layer must be changed."""
        compressed = (CompressedAttention, CompressedExperts)
        layers = decoder_layers(self.network)
        return any(isinstance(module, compressed) for module in layers.modules()) or any(
            (not self.supported.factored and _factored(shape)) or self._is_narrow(shape)
            for shape in self.shapes
        )

    def _is_narrow(self, layer: Layer) -> bool:
        """Return True if the MLP must be padded."""
        width = mlp_width(self.native_shapes[layer.index])
        return not self.supported.any_width and mlp_width(layer) < width

    def _reduce_heads(self) -> bool:
        """Reduce the heads in the config to the largest number in a layer; return True if reduced.

        The family needs a config field for the head size, and heads must be interchangeable, which
        excludes ALiBi and sinks.
        """
        text, defaults = self.text, type(self.text)()
        modules = [self._attention(self.network, layer.index) for layer in self.shapes]
        a = self.shapes[0].attention
        if (
            a.position != "rotary"
            or not all(isinstance(module, CompressedAttention) for module in modules)
            or any(module.sinks is not None for module in modules)
            or any(getattr(defaults, name, None) is None for name in HEAD_FIELDS)
        ):
            return False
        kv_heads = max(layer.attention.n_kv for layer in self.shapes)
        # transformers refuses a number of heads that does not divide the width.
        while text.hidden_size % (kv_heads * a.group):
            kv_heads += 1
        if kv_heads >= text.num_key_value_heads:
            return False
        text.num_attention_heads, text.num_key_value_heads = kv_heads * a.group, kv_heads
        text.head_dim = a.head_size
        return True

    def _set_width(self, field: str | None, widths: Iterable[int], multiple: int) -> None:
        """Set the width in the config to the widest, rounded up, if it is common to all layers."""
        widest = max(widths, default=0)
        if field is None or not widest or has_per_layer_sizes(self.text):
            return
        width = getattr(self.text, field)
        if not isinstance(width, list):
            rounded = -(-widest // multiple) * multiple
            setattr(
                self.text, field, rounded if width is None else min(rounded, max(width, widest))
            )

    def write(self, index: int, refusal: str) -> None:
        """Convert a layer. refusal: the start of an InputError's message."""
        module = decoder_layers(self.network)[index]
        with present(module):
            layer = read_layer(self.network, index)
            if reason := unsupported_heads(layer.attention) or self._unsupported(layer):
                raise InputError(
                    f"{refusal}: in layer {index} {reason}. Export it with custom code for "
                    "transformers."
                )
            if isinstance(self._attention(self.network, index), CompressedAttention):
                self._write_attention(layer.attention, index)
            converted = read_layer(self.network, index)
            if not self.supported.factored:
                converted = converted.with_matrices(**self._dense(converted.matrices()))
            if converted.mlp is not None and self._is_narrow(layer):
                width = mlp_width(self.native_shapes[index])
                converted = replace(converted, mlp=pad_mlp(converted.mlp, width))
            write_layer(self.network, converted)
            if layer.experts is not None:
                self._write_experts(layer.experts, index)

    def _unsupported(self, layer: Layer) -> str:
        """Describe a structure that conversion would change, or return ""."""
        native = self.native_shapes[layer.index]
        experts = self._experts(self.native, layer.index)
        cutoffs = getattr(self.text, "activation_sparsity_pattern", None)
        if cutoffs and cutoffs[layer.index] and self._is_narrow(layer):
            return "the cutoff of neurons depends on their mean, which padding would change"
        if layer.attention.group != native.attention.group:
            return "the number of query heads per key differs from the family"
        mlps = () if layer.experts is None else layer.experts.mlps
        biased = any(p.bias is not None for mlp in mlps for p in mlp.matrices().values())
        return "experts have biases" if biased and not layout_of(experts).biases else ""

    def _write_attention(self, a: Attention, index: int) -> None:
        """Replace compressed attention by the family's attention."""
        compressed = self._attention(self.network, index)
        native = self._attention(self.native, index)
        kv_heads = self.native_shapes[index].attention.n_kv
        padded = pad_heads(a, kv_heads, in_place=not self.has_fewer_heads)
        for leaf, projection in projection_modules(self._projections(padded, native)).items():
            native.set_submodule(leaf, with_family_class(native.get_submodule(leaf), projection))
        for name, norm in zip("qk", self.row.norms or (), strict=False):
            native.set_submodule(norm, getattr(compressed, f"{name}_norm"))
        if compressed.sinks is not None:
            native.sinks = compressed.sinks
        native.config = self.text
        decoder_layers(self.network)[index].set_submodule(self.row.attention, native)

    def _projections(self, a: Attention, native: nn.Module) -> dict[str, Projection]:
        """Return the projections of an attention by their paths in the native module.

        Projections that share a matrix, or whose rows have another order, are multiplied out.
        """
        sizes, start = head_sizes(self.native, native), f"{self.row.attention}."
        paths = {n: p.removeprefix(start) for n, p in self.row.paths().items() if n in "qkvo"}
        projections = {paths["o"]: self._projection(a.o)}
        for leaf in dict.fromkeys(path for name, path in paths.items() if name != "o"):
            rows = {n: rows_of(self.row, sizes, n) for n in "qkv" if paths[n] == leaf}
            parts = {name: getattr(a, name) for name in rows}
            (name, first), *further = rows.items()
            if not further and torch.equal(first, torch.arange(len(first))):
                projections[leaf] = self._projection(parts[name])
            else:
                projections[leaf] = self._joined(parts, rows)
        return projections

    def _projection(self, p: Projection) -> Projection:
        """Multiply out a projection unless it is supported and has fewer numbers than its
        matrix."""
        is_smaller = self.supported.factored and p.parameters < p.weight.numel()
        if isinstance(p, Linear) or is_smaller:
            return p
        return Linear(p.weight.to(self.network.dtype), p.bias)

    def _joined(self, parts: Mapping[str, Projection], rows: Mapping[str, torch.Tensor]) -> Linear:
        """Join projections to a matrix, given their rows [n] in it."""
        total, columns = sum(map(len, rows.values())), next(iter(parts.values())).weight.shape[1]
        weight = torch.zeros(total, columns, dtype=self.network.dtype)
        bias = torch.zeros(total, dtype=self.network.dtype)
        for name, p in parts.items():
            weight[rows[name]] = p.weight.to(weight)
            if p.bias is not None:
                bias[rows[name]] = p.bias.to(bias)
        return Linear(weight, bias if any(p.bias is not None for p in parts.values()) else None)

    def _dense(self, projections: Mapping[str, Projection]) -> dict[str, Projection]:
        """Return the factored and stored projections, multiplied out."""
        dtype = self.network.dtype
        stored = {name: p for name, p in projections.items() if not isinstance(p, Linear)}
        return {name: Linear(p.weight.to(dtype), p.bias) for name, p in stored.items()}

    def _write_experts(self, experts: Experts, index: int) -> None:
        """Replace compressed experts by the family's stacked experts."""
        compressed, native = (self._experts(net, index) for net in (self.network, self.native))
        if not isinstance(compressed, CompressedExperts):
            return
        width = expert_width(self.native_shapes[index])
        padded = [pad_mlp(mlp, width).matrices() for mlp in experts.mlps]
        fill_stacked(native, [_parameters(matrices) for matrices in padded])
        layer = decoder_layers(self.network)[index]
        layer.set_submodule(experts_path(self.row), native)

    def _attention(self, network: PreTrainedModel, index: int) -> Any:
        layer = decoder_layers(network)[index]
        return layer.get_submodule(self.row.of_layer(layer).attention)

    def _experts(self, network: PreTrainedModel, index: int) -> Any:
        layer = decoder_layers(network)[index]
        return module_at(layer, experts_path(self.row)) if self.row.experts else None


def _parameters(matrices: Mapping[str, Projection]) -> dict[str, torch.Tensor]:
    """Return weights and biases of an expert, named "gate_proj.weight" and so on."""
    weights = {f"{name}_proj.weight": p.weight for name, p in matrices.items()}
    return weights | {f"{n}_proj.bias": p.bias for n, p in matrices.items() if p.bias is not None}


def _factored(layer: Layer) -> int:
    """Count the factored and stored matrices of a layer."""
    names = {*layer.matrices(), "gate", "up", "down"}
    return sum(not isinstance(p, Linear) for p in layer.projections_named(names))


def _padding(before: list[Layer], after: list[Layer], size: Callable[[Layer], int]) -> Padding:
    sizes = [(size(first), size(second)) for first, second in zip(before, after, strict=True)]
    return Padding.of(sizes)
