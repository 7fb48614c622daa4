"""Running a part of a network: decoder layers replaced for a while, or left out before one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .architecture import Architecture
from .architectures import architecture_of, decoder_layers

Call = tuple[tuple[Any, ...], dict[str, Any]]  # what a layer is called with besides its input
# The argument by which layers hand their keys and values to later ones, where a family's do
SHARED = "shared_kv_states"


class Identity(nn.Module):
    """Replaces a decoder layer: returns the hidden states; `note` gets what it was called with."""

    def __init__(
        self,
        row: Architecture,
        note: Callable[[Tensor, tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__()
        self._tuple, self._note = row.layer_returns == "tuple", note

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        """The hidden states [b, t, d] as they come."""
        if self._note is not None:
            self._note(hidden_states, args, kwargs)
        return (hidden_states, None) if self._tuple else hidden_states


@contextmanager
def starting_at(
    network: PreTrainedModel, index: int, hidden: Tensor, shared: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Inside, a forward pass starts at layer `index`, whose input is `hidden` [b, t, d]; after the
    last layer where `index` is the number of layers.

    shared: see `LayerStream.shared`. Final norm and head stay those of the model, so this works for
    every family.
    """
    row, layers = architecture_of(network), decoder_layers(network)
    others = [*(Identity(row) for _ in range(index)), *layers[index:]]

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if shared:
            kwargs[SHARED].update(shared)
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    first = others[min(index, len(others) - 1)]
    handle = first.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with exchanged(network, others):
            yield
    finally:
        handle.remove()


def identity_layer(network: PreTrainedModel) -> nn.Module:
    """A replacement for a decoder layer that returns the hidden states unchanged."""
    return Identity(architecture_of(network))


@contextmanager
def exchanged(network: PreTrainedModel, others: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the network has other layers; as many, since masks and angles depend on the index."""
    parent, _, name = architecture_of(network).layers.rpartition(".")
    holder, layers = network.get_submodule(parent), decoder_layers(network)
    setattr(holder, name, nn.ModuleList(others))
    try:
        yield
    finally:
        setattr(holder, name, layers)
