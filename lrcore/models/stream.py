"""Layer by layer through a network: the unit of memory, progress, cancel and resume.

Hidden states of all windows are kept for one depth at a time, on the network's device; only one
layer's statistics exist at once.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..modules.compressed import CompressedAttention, whole_head
from ..statistics import Accumulator, Moments, Need
from .architectures import Architecture, architecture_of, decoder_layers
from .attended import attended_values
from .layers import projection_paths
from .native import head_sizes, rows_of, take
from .offload import present


class _Stop(Exception):
    """Ends a forward pass once the inputs of the layers are known."""


class _Skip(nn.Module):
    """Stands in for a decoder layer: passes the hidden states on, after telling `note` what it
    was called with.
    """

    def __init__(
        self, row: Architecture, note: Callable[[Tensor, tuple, dict[str, Any]], None] | None = None
    ) -> None:
        super().__init__()
        self._tuple, self._note = row.layer_returns == "tuple", note

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        if self._note is not None:
            self._note(hidden_states, args, kwargs)
        return (hidden_states, None) if self._tuple else hidden_states


@dataclass(frozen=True, eq=False)
class Look:
    """What one batch is like inside a layer: inputs of the output and down projections, the
    attention's output, the layer's output.

    No input of a down projection where experts take its place.
    """

    o_in: Tensor
    o_out: Tensor
    down_in: Tensor | None
    out: Tensor


class LayerStream:
    """The hidden states of `tokens` [n, t] at the entrance of one decoder layer after another.

    `run(i)` must be called for i = 0, 1, ... in order; with `advance=False` it only looks, so that
    a layer can be observed dense, exchanged, and then run compressed (sequential calibration). It
    hooks into the network's modules: where somebody else may run the network at the same time, give
    it a `layers.clone`.
    """

    def __init__(self, network: nn.Module, tokens: Tensor, batch: int = 8) -> None:
        self.network, self.batch = network, batch
        self._calls: dict[
            int, list[tuple[tuple, dict[str, Any]]]
        ] = {}  # by batch size: what each layer gets besides its input
        self._hidden = [self._enter(part) for part in tokens.to(network.device).split(batch)]

    @torch.inference_mode()
    def _enter(self, tokens: Tensor) -> Tensor:
        """Input of the first decoder layer: embeddings and whatever the model does before its
        layers. No layer is run.

        All windows are whole and equally long, so masks and position tables of one batch serve
        every other of its size.
        """
        row, layers = architecture_of(self.network), decoder_layers(self.network)
        caught: list[tuple[Tensor, tuple, dict[str, Any]]] = []

        def note(*call: Any) -> None:
            caught.append(call)
            if len(caught) == len(layers):
                raise _Stop

        with exchanged(self.network, [_Skip(row, note) for _ in layers]), suppress(_Stop):
            self.network(input_ids=tokens, use_cache=False)
        self._calls.setdefault(len(tokens), [(args, kwargs) for _, args, kwargs in caught])
        return caught[0][0]

    @property
    def hidden(self) -> list[Tensor]:
        """The hidden states where the stream stands, batch by batch, [b, t, d] each."""
        return self._hidden

    def call(self, index: int, number: int) -> tuple[tuple, dict[str, Any]]:
        """What layer `index` is called with besides the hidden states of one batch: masks,
        position tables.
        """
        return self._calls[len(self._hidden[number])][index]

    @torch.inference_mode()
    def run(self, index: int, needs: Iterable[Need] = (), advance: bool = True) -> Moments | None:
        """Run layer `index` on all windows; return its moments where needs are given."""
        layer = decoder_layers(self.network)[index]
        accumulator, added = Accumulator(needs), {}
        with ExitStack() as stack:
            stack.enter_context(present(layer))
            if (
                "attended" in accumulator.taps
            ):  # before the taps: its runs of the layer are not to be seen by them
                for hidden in self._hidden:
                    accumulator.observe(
                        "attended",
                        attended_values(
                            self.network, layer, hidden, *self._calls[len(hidden)][index]
                        ),
                    )
            self._tap(layer, index, accumulator, stack)
            if accumulator.taps & {"attention", "mlp"}:
                path = projection_paths(architecture_of(self.network), layer)["o"]
                stack.callback(
                    layer.get_submodule(path)
                    .register_forward_hook(lambda _m, _a, out: added.update(o=out))
                    .remove
                )
            for number, hidden in enumerate(self._hidden):
                args, kwargs = self._calls[len(hidden)][index]
                out = layer(hidden, *args, **kwargs)
                out = out[0] if isinstance(out, tuple) else out
                if accumulator.needs:
                    accumulator.observe_block(
                        hidden, out, hidden + added["o"].view_as(hidden) if added else None
                    )
                if advance:
                    self._hidden[number] = out
        return accumulator.moments() if accumulator.needs else None

    @torch.inference_mode()
    def look(self, index: int, number: int) -> Look:
        """Run layer `index`, dense or compressed, on one batch without moving on."""
        layer, row, seen = decoder_layers(self.network)[index], architecture_of(self.network), {}

        def note(name: str) -> Any:
            return lambda _module, args, out: seen.update(
                {f"{name}_in": args[0], f"{name}_out": out}
            )

        paths = projection_paths(row, layer)
        with ExitStack() as stack:
            for name in {"o", "down"} & paths.keys():
                stack.callback(
                    layer.get_submodule(paths[name]).register_forward_hook(note(name)).remove
                )
            hidden = self._hidden[number]
            args, kwargs = self._calls[len(hidden)][index]
            out = layer(hidden, *args, **kwargs)
        out = out[0] if isinstance(out, tuple) else out
        down_in = seen["down_in"].view(*out.shape[:-1], -1) if "down" in paths else None
        return Look(seen["o_in"], seen["o_out"].view_as(out), down_in, out)

    def _tap(
        self, layer: nn.Module, index: int, accumulator: Accumulator, stack: ExitStack
    ) -> None:
        """Hooks on the inputs of the projections named by the taps that are needed, as far as
        the layer has them.
        """
        paths = projection_paths(architecture_of(self.network), layer)
        for tap, name in {
            "attn_in": "q",
            "attn_out": "o",
            "mlp_in": "up",
            "mlp_hidden": "down",
        }.items():
            if tap in accumulator.taps and name in paths:

                def look(_module: nn.Module, args: tuple, tap: str = tap) -> None:
                    accumulator.observe(tap, args[0])

                stack.callback(
                    layer.get_submodule(paths[name]).register_forward_pre_hook(look).remove
                )
        for tap, name in {"q_rotated": "q", "k_rotated": "k"}.items():
            if tap in accumulator.taps:

                def turn(
                    _module: nn.Module, _args: tuple, out: Tensor, tap: str = tap, name: str = name
                ) -> None:
                    angles = self._calls[len(out)][index][1].get("position_embeddings")
                    accumulator.observe(tap, score_states(self.network, layer, name, out, angles))

                stack.callback(layer.get_submodule(paths[name]).register_forward_hook(turn).remove)


def score_states(
    network: nn.Module,
    layer: nn.Module,
    name: str,
    out: Tensor,
    angles: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Queries or keys ("q", "k") as they enter the score, from what their matrix gave: normed and
    rotated where the layer does so.

    out [b, t, rows]; angles: tables cos and sin [b or 1, t, rotary part]. Returns [b, t, n * size],
    heads side by side in our layout.
    """
    row = architecture_of(network)
    attention = layer.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        return attention.states(name, out, angles).transpose(1, 2).flatten(2)
    sizes = head_sizes(network, attention)
    states = take(out, rows_of(row, sizes, name), dim=-1)
    if row.norms is not None:
        norm = attention.get_submodule(row.norms["qk".index(name)])
        states = (
            norm(states)
            if row.norm_over == "width"
            else norm(states.unflatten(-1, (-1, sizes.head_size))).flatten(-2)
        )
    return rotate_states(states, *whole_head(*angles, sizes.head_size)) if sizes.rotary else states


def rotate_states(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the rotate-half layout, on heads side by side.

    states [b, t, n * size]; cos, sin [b or 1, t, size].
    """
    size = cos.shape[-1]
    heads = states.unflatten(-1, (-1, size))  # [b, t, n, size]
    half = torch.cat((-heads[..., size // 2 :], heads[..., : size // 2]), dim=-1)
    return (heads * cos.unsqueeze(2) + half * sin.unsqueeze(2)).flatten(-2)


@contextmanager
def starting_at(network: nn.Module, index: int, hidden: Tensor) -> Iterator[None]:
    """Inside, a forward pass of the network skips the layers before `index` and enters that one
    with `hidden` [b, t, d].

    What comes after the layers (norm, head) stays the model's own, so no family needs to be known
    here.
    """
    row, layers = architecture_of(network), decoder_layers(network)

    def enter(
        _module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    handle = layers[index].register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with exchanged(network, [*(_Skip(row) for _ in range(index)), *layers[index:]]):
            yield
    finally:
        handle.remove()


def passing_on(network: nn.Module) -> nn.Module:
    """What stands in for a decoder layer and leaves the hidden states as they are."""
    return _Skip(architecture_of(network))


@contextmanager
def exchanged(network: nn.Module, others: Iterable[nn.Module]) -> Iterator[None]:
    """The network with other layers, as many as its own: masks and angles depend on a layer's
    place.
    """
    parent, _, name = architecture_of(network).layers.rpartition(".")
    holder, layers = network.get_submodule(parent), decoder_layers(network)
    setattr(holder, name, nn.ModuleList(others))
    try:
        yield
    finally:
        setattr(holder, name, layers)
