"""Running a network layer by layer: the unit of memory, progress, cancel and resume.

The hidden states of all windows are kept for one depth at a time, on the network's device, and the
statistics of one layer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..experts import SHARES, needs_of, observe, routed
from ..layer import Layer
from ..modules.compressed import CompressedAttention, in_halves, whole_head
from ..modules.own_tables import tables_of
from ..modules.sliced import SlicedLayer
from ..statistics import (
    ATTENDED_KEYS,
    LATENT_TAPS,
    Accumulator,
    Moments,
    Need,
    check_finite_moments,
)
from .architectures import (
    active_stream,
    architecture_of,
    decoder_layers,
    norm_after,
    reads_tokens,
    residual_multiplier,
)
from .attended_keys import has_attended_keys, observed
from .layers import experts_path, layer_shapes, projection_paths, read_layer
from .native import head_sizes, rows_of, take
from .offload import present
from .partial import SHARED, Call, Identity, exchanged
from .weighted_values import weighted_values


class _Stop(Exception):
    """Ends a forward pass once the inputs of the layers are known."""


BATCH = 8  # windows per forward pass
# A projection that reads the activations of a tap, in the order in which a layer runs them; of
# several that a layer may have, the first.
READERS = {
    "attn_in": ("q", "kv_a"),
    "q_latent": ("q_b",),
    "kv_latent": ("kv_b",),
    "attn_out": ("o",),
    "mlp_in": ("up",),
    "mlp_hidden": ("down",),
}


@dataclass(frozen=True, eq=False)
class Look:
    """One batch inside a layer: inputs of its projections, and two outputs.

    o_in [b, t, n_q * v_size]; o_out [b, t, d], the attention's output; up_in [b, t, d] and down_in
    [b, t, d_f], None in a layer of experts; out, the layer's output, as `LayerStream.hidden`.
    """

    o_in: Tensor
    o_out: Tensor
    up_in: Tensor | None
    down_in: Tensor | None
    out: Tensor


def reader_of(tap: str, names: Collection[str]) -> str | None:
    """The projection by which a tap is read in a layer that has those of some names; None where it
    has none.
    """
    return next((name for name in READERS[tap] if name in names), None)


class LayerStream:
    """The hidden states of `tokens` [n, t] at the input of one decoder layer after another.

    Call `run(i)` for i = 0, 1, ... in order; with `advance=False` it only collects statistics, so
    that a layer can be observed dense, replaced, and then run compressed (sequential calibration).
    It registers hooks on the network's modules: give it a `layers.clone` where the network may run
    elsewhere at the same time.
    """

    def __init__(
        self, network: PreTrainedModel, tokens: Tensor, batch: int = BATCH, first: int = 0
    ) -> None:
        """first: how many tokens of the same text others see before these."""
        self.network, self.batch, self.first = network, batch, first
        self._by_token = reads_tokens(network)
        self._calls: dict[tuple[int, int], list[Call]] = {}  # see _key; one per layer
        parts = tokens.to(network.device).split(batch)
        self._sizes = [len(part) for part in parts]
        self._hidden = [self._enter(number, part) for number, part in enumerate(parts)]

    @torch.inference_mode()
    def _enter(self, number: int, tokens: Tensor) -> Tensor:
        """Input of the first decoder layer, [b, t, d]; no layer is run.

        All windows are whole and equally long, so the masks and position tables of one batch serve
        every other of its size, unless layers are called with what depends on the tokens.
        """
        row, layers = architecture_of(self.network), decoder_layers(self.network)
        caught: list[tuple[Tensor, tuple[Any, ...], dict[str, Any]]] = []

        def note(*call: Any) -> None:
            caught.append(call)
            if len(caught) == len(layers):
                raise _Stop

        with exchanged(self.network, [Identity(row, note) for _ in layers]), suppress(_Stop):
            self.network(input_ids=tokens, use_cache=False)
        own = [(args, kwargs) for _, args, kwargs in caught]
        if self._by_token and (others := self._calls.get((len(tokens), 0))):
            own = [
                (args, other | {SHARED: kwargs[SHARED]})
                for (args, kwargs), (_, other) in zip(own, others, strict=True)
            ]
        self._calls.setdefault(self._key(len(tokens), number), own)
        return caught[0][0]

    def _key(self, size: int, number: int) -> tuple[int, int]:
        """Whose arguments a batch of so many windows shares: those of all of its size, if no layer
        is called with what depends on the tokens.
        """
        return size, number if self._by_token else 0

    @property
    def hidden(self) -> list[Tensor]:
        """The hidden states at the next layer's input, batch by batch, [b, t, d] each, or of
        several streams, [streams, b, t, d].
        """
        return self._hidden

    def call(self, index: int, number: int) -> Call:
        """Arguments of layer `index` besides the hidden states of batch `number`: masks, angles."""
        return self._calls[self._key(self._sizes[number], number)][index]

    @property
    def shared(self) -> list[Mapping[str, Any]]:
        """Keys and values that the layers before hand to later ones, batch by batch, by kind of
        layer, (k, v) [b, n_kv, t, head_size] each; an empty list where none do.
        """
        if not self._by_token:
            return []
        return [self.call(0, number)[1].get(SHARED) or {} for number in range(len(self._hidden))]

    @torch.inference_mode()
    def run(self, index: int, needs: Iterable[Need] = (), advance: bool = True) -> Moments | None:
        """Run layer `index` on all windows; return its moments where needs are given.

        Raises InputError where those are not finite.
        """
        layer = decoder_layers(self.network)[index]
        needs = layer_needs(layer_shapes(self.network, index), needs)
        accumulator = Accumulator(needs, self.first)
        seen: dict[str, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(present(layer))
            if "weighted_values" in accumulator.taps:
                # before the hooks are set, which must not see these further runs of the layer
                for number, hidden in enumerate(self._hidden):
                    call = self.call(index, number)
                    states = weighted_values(self.network, layer, hidden, *call)
                    accumulator.observe("weighted_values", states)
            if ATTENDED_KEYS in accumulator.needs and has_attended_keys(self.network):
                add = partial(accumulator.observe_sum, ATTENDED_KEYS)
                stack.enter_context(observed(self.network, layer, add))
            self._tap(layer, index, accumulator, stack)
            if accumulator.taps & {"attention", "mlp"}:
                path = projection_paths(architecture_of(self.network), layer)["o"]
                stack.callback(
                    layer.get_submodule(path)
                    .register_forward_hook(lambda _m, _a, out: seen.update(o=out))
                    .remove
                )
            for number, hidden in enumerate(self._hidden):
                args, kwargs = self.call(index, number)
                out = layer(hidden, *args, **kwargs)
                out = out[0] if isinstance(out, tuple) else out
                if accumulator.needs:
                    now, then = (active_stream(self.network, each) for each in (hidden, out))
                    before = along(layer, "attention", now)
                    middle = None
                    if seen:
                        gains = added(self.network, layer, "attention", seen["o"].view_as(then))
                        middle = before + gains
                    accumulator.observe_block(*_in_one_basis(layer, before, then, middle))
                if advance:
                    self._hidden[number] = out
        if not accumulator.needs:
            return None
        moments = accumulator.moments()
        check_finite_moments(moments, index)
        return moments

    @torch.inference_mode()
    def look(self, index: int, number: int, o_in: Tensor | None = None) -> Look:
        """Run layer `index`, dense or compressed, on one batch without advancing.

        o_in [b, t, n_q * v_size]: the input of its output projection, where that is known: nothing
        before it is computed again.
        """
        layer, row = decoder_layers(self.network)[index], architecture_of(self.network)
        seen: dict[str, Tensor] = {}

        def note(name: str) -> Any:
            return lambda _module, args, out: seen.update(
                {f"{name}_in": args[0], f"{name}_out": out}
            )

        paths = projection_paths(row, layer)
        with ExitStack() as stack:
            for name in {"o", "up", "down"} & paths.keys():
                stack.callback(
                    layer.get_submodule(paths[name]).register_forward_hook(note(name)).remove
                )
            if o_in is not None:
                stack.enter_context(_attended(self.network, layer, o_in))
            hidden = self._hidden[number]
            args, kwargs = self.call(index, number)
            out = layer(hidden, *args, **kwargs)
        out = out[0] if isinstance(out, tuple) else out
        up_in, down_in = (
            seen[f"{name}_in"].view(*out.shape[-3:-1], -1) if name in paths else None
            for name in ("up", "down")
        )
        return Look(seen["o_in"], seen["o_out"].view(out.shape[-3:]), up_in, down_in, out)

    @torch.inference_mode()
    def advance(self, index: int, number: int, look: Look) -> None:
        """Move one batch beyond layer `index`, whose output projection gave what `look` saw; its
        down projection may be another one since. Not where `Architecture.adds_more`.
        """
        out, layer = look.out, decoder_layers(self.network)[index]
        if look.down_in is not None:
            gains = added(self.network, layer, "attention", look.o_out)
            before = along(layer, "attention", self._hidden[number]) + gains
            path = projection_paths(architecture_of(self.network), layer)["down"]
            down = layer.get_submodule(path)(look.down_in)
            out = along(layer, "mlp", before) + added(self.network, layer, "mlp", down)
        self._hidden[number] = out

    @torch.inference_mode()
    def look_before(self, index: int, number: int, name: str, o_in: Tensor | None = None) -> Tensor:
        """The input of projection `name` ("q", "o", ...) of layer `index` on one batch, [..., in];
        the layer is left there. o_in: as in `look`.
        """
        layer = decoder_layers(self.network)[index]
        path = projection_paths(architecture_of(self.network), layer)[name]

        seen: list[Tensor] = []

        def leave(_module: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])
            raise _Reached

        hidden = self._hidden[number]
        args, kwargs = self.call(index, number)
        with ExitStack() as stack:
            handle = layer.get_submodule(path).register_forward_pre_hook(leave)
            stack.callback(handle.remove)
            if o_in is not None:
                stack.enter_context(_attended(self.network, layer, o_in))
            stack.enter_context(suppress(_Reached))
            layer(hidden, *args, **kwargs)
        return seen[0]

    def _tap(
        self, layer: nn.Module, index: int, accumulator: Accumulator, stack: ExitStack
    ) -> None:
        """Register hooks for the taps that are needed, on the projections that the layer has."""
        paths = projection_paths(architecture_of(self.network), layer)

        def input_hook(tap: str) -> Callable[..., None]:
            return lambda _module, args: accumulator.observe(tap, args[0])

        def score_hook(tap: str, name: str) -> Callable[..., None]:
            def observe(_module: nn.Module, _args: Any, out: Tensor) -> None:
                _, kwargs = self._calls[self._key(len(out), 0)][index]
                angles = angles_of(self.network, layer, kwargs, out.dtype)
                accumulator.observe(tap, score_states(self.network, layer, name, out, angles))

            return observe

        for tap in READERS:
            name = reader_of(tap, paths)
            if tap in accumulator.taps and name is not None:
                module = layer.get_submodule(paths[name])
                stack.callback(module.register_forward_pre_hook(input_hook(tap)).remove)
        if SHARES in accumulator.needs:
            path = experts_path(architecture_of(self.network))
            experts = read_layer(self.network, index).experts
            assert experts is not None  # as the needs say
            module = layer.get_submodule(path)
            hook = module.register_forward_pre_hook(
                lambda _module, args: observe(
                    experts, accumulator, routed(len(experts.mlps), *args[:3])
                )
            )
            stack.callback(hook.remove)
        for tap, name in {"q_rotated": "q", "k_rotated": "k"}.items():
            if tap in accumulator.taps and not architecture_of(self.network).kept:
                module = _states_module(layer, paths[name], name)
                stack.callback(module.register_forward_hook(score_hook(tap, name)).remove)


def layer_needs(shapes: Layer, needs: Iterable[Need]) -> frozenset[Need]:
    """What is collected of a layer for these needs: of each of its experts, and of latents."""
    needs = frozenset(needs)
    if shapes.experts is not None:
        needs = needs_of(needs, len(shapes.experts.mlps))
    if shapes.attention.factors is not None:
        own = (one for tap, one in needs if tap == "attn_in")
        needs |= {(tap, one) for one in own for tap in LATENT_TAPS}
    return needs


def along(layer: nn.Module, component: str, hidden: Tensor) -> Tensor:
    """The residual stream beside a component ("attention", "mlp") of a decoder layer, in the basis
    after it, [b, t, d]; only a sliced layer changes the basis.
    """
    return layer.passed(component, hidden) if isinstance(layer, SlicedLayer) else hidden


def added(network: PreTrainedModel, layer: nn.Module, component: str, out: Tensor) -> Tensor:
    """What a component ("attention", "mlp") adds to the residual stream where its last projection
    gives out [b, t, d]: normed first in some families, multiplied in others.
    """
    norm = norm_after(network, layer, component)
    return residual_multiplier(network) * (out if norm is None else norm(out))


def _in_one_basis(
    layer: nn.Module, before: Tensor, after: Tensor, middle: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input, output and middle of a layer, in the basis of its output: only there can they be
    compared. before, middle: in the basis after the attention.
    """
    between = None if middle is None else along(layer, "mlp", middle)
    return along(layer, "mlp", before), after, between


class _Reached(Exception):
    """The projection has been reached."""


@contextmanager
def _attended(network: PreTrainedModel, layer: nn.Module, o_in: Tensor) -> Iterator[None]:
    """Inside, the attention of a layer is its output projection of o_in [b, t, in] alone."""
    row = architecture_of(network)
    attention = layer.get_submodule(row.attention)
    project = layer.get_submodule(projection_paths(row, layer)["o"])

    def forward(
        _hidden: Any = None, residual: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        out = project(o_in)
        return (out if residual is None else out + residual), None

    attention.forward = forward
    try:
        yield
    finally:
        del attention.forward  # the method of its class is there again


def _states_module(layer: nn.Module, path: str, name: str) -> nn.Module:
    """The module at a path, or the one beneath it that gives queries or keys from a latent."""
    attention = layer.get_submodule(path.rpartition(".")[0])
    if isinstance(attention, CompressedAttention):
        return attention.states_module(name)
    return layer.get_submodule(path)


def angles_of(
    network: PreTrainedModel, layer: nn.Module, kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """The tables cos and sin that a layer called with `kwargs` rotates by, [b or 1, t, rotary part]
    each; None where it rotates nothing.
    """
    attention = layer.get_submodule(architecture_of(network).attention)
    given = kwargs.get("position_embeddings")
    return tables_of(attention, given, kwargs.get("position_ids"), dtype)


def score_states(
    network: PreTrainedModel,
    layer: nn.Module,
    name: str,
    out: Tensor,
    angles: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Queries or keys ("q", "k") as they enter the score: normalised and rotated as in the layer.

    out [b, t, rows]: the projection's output; angles: tables cos and sin [b or 1, t, rotary part].
    Returns [b, t, n * size], heads side by side in the layout of `layer.Attention`.
    """
    row = architecture_of(network)
    attention = layer.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        return attention.states(name, out, angles).transpose(1, 2).flatten(2)
    sizes = head_sizes(network, attention)
    states: Tensor = take(out, rows_of(row, sizes, name), dim=-1)
    if row.norms is not None:
        norm = attention.get_submodule(row.norms["qk".index(name)])
        if row.norm_over == "width":
            states = norm(states)
        else:
            states = norm(states.unflatten(-1, (-1, sizes.head_size))).flatten(-2)
    if not sizes.rotary:
        return states
    assert angles is not None
    tables = in_halves(row.tables, *angles)
    return rotate_states(states, *whole_head(*tables, sizes.head_size))


def rotate_states(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the rotate-half layout, on heads side by side.

    states [b, t, n * size]; cos, sin [b or 1, t, size]. Returns [b, t, n * size].
    """
    size = cos.shape[-1]
    heads = states.unflatten(-1, (-1, size))  # [b, t, n, size]
    half = torch.cat((-heads[..., size // 2 :], heads[..., : size // 2]), dim=-1)
    rotated: Tensor = heads * cos.unsqueeze(2) + half * sin.unsqueeze(2)
    return rotated.flatten(-2)
