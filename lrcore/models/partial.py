"""Partial forward passes: decoder layers are replaced temporarily, or skipped."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .architecture import Architecture
from .architectures import architecture_of, decoder_layers

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments of a layer
# The argument in which layers pass keys and values to later layers, in some families
SHARED = "shared_kv_states"


class Identity(nn.Module):
    """A replacement for a decoder layer that returns its input; `observer` receives the
    arguments.

    It has the plain attributes of the layer, which some models read, such as `block_type`.
    """

    def __init__(
        self,
        layer: nn.Module,
        row: Architecture,
        observer: Callable[[Tensor, tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__()
        self._tuple, self._observer = row.layer_returns == "tuple", observer
        self._passes = row.passes
        for name, value in vars(layer).items():
            if isinstance(value, bool | int | str) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """Return the hidden states [b, t, d] unchanged, and what the layer before it passed on."""
        if self._observer is not None:
            self._observer(hidden_states, args, kwargs)
        passed = None if self._passes is None else kwargs.get(self._passes)
        return (hidden_states, passed) if self._tuple else hidden_states


@contextmanager
def starting_at(
    network: PreTrainedModel, index: int, hidden: Tensor, shared: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Start forward passes at a layer while the context is active.

    index: the first layer that runs; the number of layers for final norm and head only. hidden
    [b, t, d]: input of that layer. shared: see `LayerStream.shared`.
    """
    row, layers = architecture_of(network), decoder_layers(network)
    layers_used = [*(Identity(layer, row) for layer in layers[:index]), *layers[index:]]

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        for name, value in (shared or {}).items():
            if name == SHARED:
                kwargs[SHARED].update(value)
            else:
                kwargs[name] = value
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    first = layers_used[min(index, len(layers_used) - 1)]
    handle = first.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with replaced_layers(network, layers_used):
            yield
    finally:
        handle.remove()


def identity_layer(network: PreTrainedModel, index: int) -> nn.Module:
    """Return a replacement for a decoder layer that returns the hidden states unchanged."""
    return Identity(decoder_layers(network)[index], architecture_of(network))


@contextmanager
def replaced_layers(network: PreTrainedModel, replacements: Iterable[nn.Module]) -> Iterator[None]:
    """Replace the decoder layers while the context is active.

    The number of layers must not change, since masks and angles depend on the layer index.
    """
    parent, _, name = architecture_of(network).layers.rpartition(".")
    holder, layers = network.get_submodule(parent), decoder_layers(network)
    setattr(holder, name, nn.ModuleList(replacements))
    try:
        yield
    finally:
        setattr(holder, name, layers)
