"""A compressed model in modules that its family has: matrices multiplied out, heads and MLPs filled
with zeros to one size. It computes the same.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import InputError
from ..experts import STACKED
from ..layer import Attention, Experts, Layer, Linear, Projection
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import auto_class, unfilled
from ..models.layers import clone, experts_path, layer_shapes, module_at, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.native import head_sizes, rows_of
from ..models.offload import present
from ..models.per_layer import is_uneven
from ..models.stacked import fill_stacked, layout_of
from ..models.structure import measure
from ..modules.compressed import CompressedAttention, CompressedExperts
from ..modules.install import in_place_of
from ..modules.projections import projection_modules
from .filling import (
    expert_width_of,
    filled_heads,
    filled_mlp,
    has_whole_heads,
    head_misfit,
    width_of,
)
from .notes import Changes, Filled

OF_HEADS = ("head_dim", "num_key_value_heads")  # fields of a config whose heads may be fewer


@dataclass(frozen=True)
class Stays:
    """What the place that a model goes to runs as it is: low-rank, sparse and quantised matrices;
    MLPs of any width.
    """

    matrices: bool = False
    widths: bool = False


def whole_model(model: LoadedModel, stays: Stays, refusal: str) -> tuple[LoadedModel, Changes]:
    """The model with nothing in it that its family lacks but what stays, and what had to be done;
    the model itself where that is nothing.

    refusal: how the sentence begins that a layer has no such form with, such as "vLLM cannot run
    this model". Raises InputError with it.
    """
    layers = range(len(decoder_layers(model.network)))
    before = [layer_shapes(model.network, index) for index in layers]
    whole = _Whole(model.network, before, stays)
    if whole.is_needed:
        for index in layers:
            whole.write(index, refusal)
        model_there = replace(model, network=whole.network)
    else:
        model_there = model
    after = [layer_shapes(model_there.network, index) for index in layers]
    own, there = (measure(one.network) for one in (model, model_there))
    changes = Changes(
        "folder",
        factored=sum(map(_factored, before)) - sum(map(_factored, after)),
        narrowed=sum(not has_whole_heads(layer.attention) for layer in before),
        heads=_filled(before, after, lambda layer: layer.attention.n_kv),
        widths=_filled(before, after, width_of),
        experts=_filled(before, after, expert_width_of),
        parameters=(own.parameters, there.parameters),
        cached=(own.kv_values, there.kv_values),
    )
    return model_there, changes


class _Whole:
    """A copy of a network, to be written layer by layer; what stays as it is is shared. It is not
    run: tables of positions that attention has for itself are empty.
    """

    def __init__(self, network: PreTrainedModel, shapes: Sequence[Layer], stays: Stays) -> None:
        self.network, self.shapes, self.stays = clone(network), shapes, stays
        self.row, self.text = architecture_of(network), text_config(self.network)
        self.fewer = self._set_heads()
        if not stays.widths:
            self._set_width(self.row.width, map(width_of, shapes), 1)
        self._set_width(self.row.expert_width, map(expert_width_of, shapes), STACKED)
        with torch.device("meta"), unfilled():
            self.native: PreTrainedModel = auto_class(self.network.config).from_config(
                copy.deepcopy(self.network.config),
                dtype=network.dtype,
                attn_implementation=self.row.kernel,
            )
        self.there = [layer_shapes(self.native, layer.index) for layer in shapes]

    @property
    def is_needed(self) -> bool:
        """Whether a layer is not as it is to be."""
        compressed = (CompressedAttention, CompressedExperts)
        layers = decoder_layers(self.network)
        return any(isinstance(module, compressed) for module in layers.modules()) or any(
            (not self.stays.matrices and _factored(shape)) or self._grows(shape)
            for shape in self.shapes
        )

    def _grows(self, layer: Layer) -> bool:
        """Whether its MLP is filled with zeros."""
        return not self.stays.widths and width_of(layer) < width_of(self.there[layer.index])

    def _set_heads(self) -> bool:
        """Give the config as few heads as the layer with most of them has, where the family has a
        head size of its own, and heads can change places: ALiBi and sinks are head by head.
        Returns whether it has fewer.
        """
        text, defaults = self.text, type(self.text)()
        modules = [self._attention(self.network, layer.index) for layer in self.shapes]
        a, most = self.shapes[0].attention, max(one.attention.n_kv for one in self.shapes)
        if (
            a.position != "rotary"
            or not all(isinstance(one, CompressedAttention) for one in modules)
            or any(one.sinks is not None for one in modules)
            or any(getattr(defaults, name, None) is None for name in OF_HEADS)
        ):
            return False
        # transformers refuses a number of heads that does not divide the width
        while text.hidden_size % (most * a.group):
            most += 1
        if most >= text.num_key_value_heads:
            return False
        text.num_attention_heads, text.num_key_value_heads = most * a.group, most
        text.head_dim = a.head_size
        return True

    def _set_width(self, field: str | None, widths: Iterable[int], multiple: int) -> None:
        """Give the config the width of the widest, where it has one for all."""
        widest = max(widths, default=0)
        if field is None or not widest or is_uneven(self.text):
            return
        own = getattr(self.text, field)
        if not isinstance(own, list):
            above = -(-widest // multiple) * multiple
            setattr(self.text, field, above if own is None else min(above, max(own, widest)))

    def write(self, index: int, refusal: str) -> None:
        """Write one layer. refusal: how the sentence of an InputError begins."""
        module = decoder_layers(self.network)[index]
        with present(module):
            layer = read_layer(self.network, index)
            if reason := head_misfit(layer.attention) or self._misfit(layer):
                raise InputError(
                    f"{refusal}: in layer {index} {reason}. Export it with its code for "
                    "transformers."
                )
            if isinstance(self._attention(self.network, index), CompressedAttention):
                self._write_attention(layer.attention, index)
            now = read_layer(self.network, index)
            if not self.stays.matrices:
                now = now.with_matrices(**self._dense(now.matrices()))
            if now.mlp is not None and self._grows(layer):
                now = replace(now, mlp=filled_mlp(now.mlp, width_of(self.there[index])))
            write_layer(self.network, now)
            if layer.experts is not None:
                self._write_experts(layer.experts, index)

    def _misfit(self, layer: Layer) -> str:
        """What of a layer would not stay the same; "" where all does."""
        there, experts = self.there[layer.index], self._experts(self.native, layer.index)
        cutoffs = getattr(self.text, "activation_sparsity_pattern", None)
        if cutoffs and cutoffs[layer.index] and self._grows(layer):
            return "neurons are cut off by their mean, which more of them would change"
        if layer.attention.group != there.attention.group:
            return "other numbers of query heads share a key than in the family"
        mlps = () if layer.experts is None else layer.experts.mlps
        biased = any(p.bias is not None for mlp in mlps for p in mlp.matrices().values())
        return (
            "experts have biases of their own" if biased and not layout_of(experts).biases else ""
        )

    def _write_attention(self, a: Attention, index: int) -> None:
        """Put the family's own attention in the place of ours."""
        own, native = (self._attention(one, index) for one in (self.network, self.native))
        whole = filled_heads(a, self.there[index].attention.n_kv, in_place=not self.fewer)
        for leaf, projection in projection_modules(self._projections(whole, native)).items():
            native.set_submodule(leaf, in_place_of(native.get_submodule(leaf), projection))
        if own.qk_norm is not None:
            native.q_norm, native.k_norm = own.q_norm, own.k_norm
        if own.sinks is not None:
            native.sinks = own.sinks
        native.config = self.text
        decoder_layers(self.network)[index].set_submodule(self.row.attention, native)

    def _projections(self, a: Attention, native: nn.Module) -> dict[str, Projection]:
        """The projections of an attention by their paths in it; where several share a matrix, or
        its rows have an order of their own, it is multiplied out.
        """
        sizes, start = head_sizes(self.native, native), f"{self.row.attention}."
        paths = {n: p.removeprefix(start) for n, p in self.row.paths().items() if n in "qkvo"}
        made = {paths["o"]: self._own(a.o)}
        for leaf in dict.fromkeys(path for name, path in paths.items() if name != "o"):
            rows = {n: rows_of(self.row, sizes, n) for n in "qkv" if paths[n] == leaf}
            (name, first), *more = rows.items()
            apart = not more and torch.equal(first, torch.arange(len(first)))
            own = {one: getattr(a, one) for one in rows}
            made[leaf] = self._own(own[name]) if apart else self._joined(own, rows)
        return made

    def _own(self, p: Projection) -> Projection:
        """A projection as it goes there: a pair stays where it may, and holds fewer numbers."""
        if isinstance(p, Linear) or (self.stays.matrices and p.parameters < p.weight.numel()):
            return p
        return Linear(p.weight.to(self.network.dtype), p.bias)

    def _joined(self, own: Mapping[str, Projection], rows: Mapping[str, torch.Tensor]) -> Linear:
        """One projection of several, by the rows [n] that they have in it."""
        total, columns = sum(map(len, rows.values())), next(iter(own.values())).weight.shape[1]
        weight = torch.zeros(total, columns, dtype=self.network.dtype)
        bias = torch.zeros(total, dtype=self.network.dtype)
        for name, p in own.items():
            weight[rows[name]] = p.weight.to(weight)
            if p.bias is not None:
                bias[rows[name]] = p.bias.to(bias)
        return Linear(weight, bias if any(p.bias is not None for p in own.values()) else None)

    def _dense(self, own: Mapping[str, Projection]) -> dict[str, Projection]:
        """Those that are no plain matrix, multiplied out."""
        dtype = self.network.dtype
        stored = {name: p for name, p in own.items() if not isinstance(p, Linear)}
        return {name: Linear(p.weight.to(dtype), p.bias) for name, p in stored.items()}

    def _write_experts(self, experts: Experts, index: int) -> None:
        """Put the family's own stacked experts in the place of ours."""
        own, native = (self._experts(one, index) for one in (self.network, self.native))
        if not isinstance(own, CompressedExperts):
            return
        width = expert_width_of(self.there[index])
        whole = [filled_mlp(mlp, width).matrices() for mlp in experts.mlps]
        fill_stacked(native, [_by_name(one) for one in whole])
        layer = decoder_layers(self.network)[index]
        layer.set_submodule(experts_path(self.row), native)

    def _attention(self, network: PreTrainedModel, index: int) -> Any:
        return decoder_layers(network)[index].get_submodule(self.row.attention)

    def _experts(self, network: PreTrainedModel, index: int) -> Any:
        layer = decoder_layers(network)[index]
        return module_at(layer, experts_path(self.row)) if self.row.experts else None


def _by_name(own: Mapping[str, Projection]) -> dict[str, torch.Tensor]:
    """Weights and biases of an expert, "gate_proj.weight" and so on."""
    weights = {f"{name}_proj.weight": p.weight for name, p in own.items()}
    return weights | {f"{n}_proj.bias": p.bias for n, p in own.items() if p.bias is not None}


def _factored(layer: Layer) -> int:
    """Matrices that are no plain ones."""
    names = {*layer.matrices(), "gate", "up", "down"}
    return sum(not isinstance(p, Linear) for p in layer.held(names))


def _filled(before: list[Layer], after: list[Layer], size: Callable[[Layer], int]) -> Filled:
    return Filled.of([(size(own), size(there)) for own, there in zip(before, after, strict=True)])
