"""Layer by layer through a network: the unit of memory, progress, cancel and resume.

Hidden states of all windows are kept for one depth at a time, on the network's device; only one layer's statistics exist at once.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..statistics import Accumulator, Moments, Need
from .architectures import architecture_of, decoder_layers
from .layers import projection_paths


class _Stop(Exception):
    """Ends a forward pass once the inputs of the layers are known."""


@dataclass(frozen=True, eq=False)
class Look:
    """What one batch is like inside a layer: inputs of the output and down projections, the attention's output, the layer's output."""

    o_in: Tensor
    o_out: Tensor
    down_in: Tensor
    out: Tensor


class LayerStream:
    """The hidden states of `tokens` [n, t] at the entrance of one decoder layer after another.

    `run(i)` must be called for i = 0, 1, ... in order; with `advance=False` it only looks, so that a layer can be observed dense,
    exchanged, and then run compressed (sequential calibration).
    """

    def __init__(self, network: nn.Module, tokens: Tensor, batch: int = 8) -> None:
        self.network, self.batch = network, batch
        self._hidden = list(self._entrance(tokens.to(network.device)))
        self._kwargs = self._layer_kwargs(tokens[:1].to(network.device))

    @torch.inference_mode()
    def _entrance(self, tokens: Tensor) -> Iterable[Tensor]:
        """Input of the first decoder layer, batch by batch: embeddings and whatever the model does before its layers."""
        caught: list[Tensor] = []

        def catch(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            caught.append(args[0] if args else kwargs["hidden_states"])
            raise _Stop

        handle = decoder_layers(self.network)[0].register_forward_pre_hook(catch, with_kwargs=True)
        with ExitStack() as stack:
            stack.callback(handle.remove)
            for part in tokens.split(self.batch):
                try:
                    self.network(input_ids=part, use_cache=False)
                except _Stop:
                    yield caught.pop()

    @torch.inference_mode()
    def _layer_kwargs(self, one: Tensor) -> list[dict[str, Any]]:
        """Masks and position tables each layer is called with. All windows are whole and equally long, so those of one broadcast to all."""
        caught: list[dict[str, Any]] = []

        def catch(_module: nn.Module, _args: tuple, kwargs: dict[str, Any]) -> None:
            caught.append({name: value for name, value in kwargs.items() if name != "hidden_states"})

        with ExitStack() as stack:
            for layer in decoder_layers(self.network):
                stack.callback(layer.register_forward_pre_hook(catch, with_kwargs=True).remove)
            self.network(input_ids=one, use_cache=False)
        return caught

    @property
    def hidden(self) -> list[Tensor]:
        """The hidden states where the stream stands, batch by batch, [b, t, d] each."""
        return self._hidden

    @torch.inference_mode()
    def run(self, index: int, needs: Iterable[Need] = (), advance: bool = True) -> Moments | None:
        """Run layer `index` on all windows; return its moments where needs are given."""
        layer = decoder_layers(self.network)[index]
        accumulator = Accumulator(needs)
        with ExitStack() as stack:
            self._tap(layer, index, accumulator, stack)
            for number, hidden in enumerate(self._hidden):
                out = layer(hidden, **self._kwargs[index])
                out = out[0] if isinstance(out, tuple) else out
                if accumulator.needs:
                    accumulator.observe_block(hidden, out)
                if advance:
                    self._hidden[number] = out
        return accumulator.moments() if accumulator.needs else None

    @torch.inference_mode()
    def look(self, index: int, number: int) -> Look:
        """Run layer `index`, dense or compressed, on one batch without moving on."""
        layer, row, seen = decoder_layers(self.network)[index], architecture_of(self.network), {}

        def note(name: str) -> Any:
            return lambda _module, args, out: seen.update({f"{name}_in": args[0], f"{name}_out": out})

        paths = projection_paths(row, layer)
        with ExitStack() as stack:
            for name in ("o", "down"):
                stack.callback(layer.get_submodule(paths[name]).register_forward_hook(note(name)).remove)
            out = layer(self._hidden[number], **self._kwargs[index])
        out = out[0] if isinstance(out, tuple) else out
        return Look(seen["o_in"], seen["o_out"].view_as(out), seen["down_in"].view(*out.shape[:-1], -1), out)

    def _tap(self, layer: nn.Module, index: int, accumulator: Accumulator, stack: ExitStack) -> None:
        """Hooks on the inputs of the projections named by the taps that are needed."""
        row = architecture_of(self.network)
        taps = {"attn_in": row.q, "attn_out": row.o, "mlp_in": row.up, "mlp_hidden": row.down}
        for tap in taps.keys() & accumulator.taps:

            def look(_module: nn.Module, args: tuple, tap: str = tap) -> None:
                accumulator.observe(tap, args[0])

            stack.callback(layer.get_submodule(taps[tap]).register_forward_pre_hook(look).remove)
        for tap, path in {"q_rotated": row.q, "k_rotated": row.k}.items():
            if tap in accumulator.taps:
                angles = self._kwargs[index].get("position_embeddings") if row.position == "rotary" else None

                def turn(_module: nn.Module, _args: tuple, out: Tensor, tap: str = tap, angles: Any = angles) -> None:
                    accumulator.observe(tap, out if angles is None else rotate_states(out, *angles))

                stack.callback(layer.get_submodule(path).register_forward_hook(turn).remove)


def rotate_states(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the rotate-half layout, on heads side by side. states [b, t, n * size]; cos, sin [b or 1, t, size]."""
    size = cos.shape[-1]
    heads = states.unflatten(-1, (-1, size))  # [b, t, n, size]
    half = torch.cat((-heads[..., size // 2 :], heads[..., : size // 2]), dim=-1)
    return (heads * cos.unsqueeze(2) + half * sin.unsqueeze(2)).flatten(-2)


@contextmanager
def starting_at(network: nn.Module, index: int, hidden: Tensor) -> Iterator[None]:
    """Inside, a forward pass of the network skips the layers before `index` and enters that one with `hidden` [b, t, d].

    What comes after the layers (norm, head) stays the model's own, so no family needs to be known here.
    """
    row = architecture_of(network)
    parent, _, name = row.layers.rpartition(".")
    layers = decoder_layers(network)

    def enter(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    handle = layers[index].register_forward_pre_hook(enter, with_kwargs=True)
    setattr(network.get_submodule(parent), name, layers[index:])
    try:
        yield
    finally:
        handle.remove()
        setattr(network.get_submodule(parent), name, layers)
