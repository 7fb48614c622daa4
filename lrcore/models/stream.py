"""Layer-wise execution of a network: memory, progress and cancellation by layer.

In memory are the hidden states of all windows at a single depth, on the network's device, and the
statistics of a single layer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..layers.experts import SHARES, expert_needs, observe_experts, route_tokens
from ..layers.image_tokens import patches_of
from ..layers.layer import MIXER_INPUTS, Layer
from ..layers.modules.compressed import CompressedAttention
from ..layers.modules.rotary import full_head_tables, in_halves, rotary_tables
from ..layers.modules.sliced import SlicedLayer
from ..layers.statistics import (
    ATTENDED_KEYS,
    LATENT_TAPS,
    TAPS,
    Accumulator,
    Moments,
    Need,
    check_finite_moments,
)
from .architectures import (
    active_stream,
    architecture_of,
    decoder_layers,
    has_token_inputs,
    norm_after,
    residual_multiplier,
)
from .attended_keys import has_attended_keys, observing_keys
from .layers import experts_path, layer_shapes, projection_paths, read_layer
from .native import head_sizes, rows_of, select_rows
from .offload import present
from .partial import SHARED, Call, Identity, replaced_layers
from .weighted_values import weighted_values


class _Stop(Exception):
    """Ends a forward pass when the inputs of the layers are available."""


BATCH = 8  # windows per forward pass
# Projections that read the activations of a tap, in the order of the forward pass. The activations
# are observed at the first of them that the layer has: some latent attention has no q.
READERS = {
    "attn_in": ("q", "kv_a", *MIXER_INPUTS),
    "q_latent": ("q_b",),
    "kv_latent": ("kv_b",),
    "attn_out": ("o",),
    "mlp_in": ("up",),
    "mlp_hidden": ("down",),
}


@dataclass(frozen=True, eq=False)
class LayerActivations:
    """Inputs of projections and outputs of a layer, for a batch.

    o_in [b, t, n_q * v_size] and o_out [b, t, d], the attention's output, None without attention or
    mixer; up_in [b, t, d] and down_in [b, t, d_f], None in a layer of experts; out: the layer's
    output, as `LayerStream.hidden`.
    """

    o_in: Tensor | None
    o_out: Tensor | None
    up_in: Tensor | None
    down_in: Tensor | None
    out: Tensor


def reader_of(tap: str, names: Collection[str]) -> str | None:
    """Return the projection that reads a tap in a layer with these projections, or None."""
    return next((name for name in READERS.get(tap, (tap,)) if name in names), None)


class LayerStream:
    """The hidden states of `tokens` [n, t] at the input of a decoder layer.

    Call `run(i)` for i = 0, 1, ... in order. With `advance=False` it only collects statistics, so
    that a layer can be observed dense, replaced, and then run compressed (sequential calibration).
    Hooks are registered on the network's modules: pass a `layers.clone` if other threads may run
    the network.
    """

    def __init__(
        self, network: PreTrainedModel, tokens: Tensor, batch: int = BATCH, first: int = 0
    ) -> None:
        """Run the embedding. first: position of the first token, as for `Accumulator`."""
        self.network, self.batch, self.first = network, batch, first
        self._has_token_inputs = has_token_inputs(network)
        # arguments of layers that were found by structure may depend on the tokens, too
        row = architecture_of(network)
        self._passes = row.passes
        self._passed: dict[int, Any] = {}  # by batch: what the last layer passed to the next one
        self._by_batch = self._has_token_inputs or row.is_inferred or row.passes is not None
        # further arguments of the layers, such as masks, by `_key`; an entry per layer
        self._calls: dict[tuple[int, int], list[Call]] = {}
        parts = tokens.to(network.device).split(batch)
        patches = patches_of(network.get_input_embeddings())
        # terms that the network adds between layers, by batch
        self._added = [(part, []) if patches is None else patches.added(part) for part in parts]
        # masks and rotary positions of images depend on the tokens
        self._has_marks = patches is not None and bool(patches.marks(tokens))
        self._by_batch |= self._has_marks or (
            patches is not None and patches.sets_positions(tokens)
        )
        self._running = 0  # the batch that runs
        self._sizes = [len(part) for part in parts]
        self._hidden = [self._enter(number, part) for number, part in enumerate(parts)]

    @torch.inference_mode()
    def _enter(self, number: int, tokens: Tensor) -> Tensor:
        """Return the input of the first decoder layer, [b, t, d], without running a layer.

        All windows have the same length, so batches of the same size share masks and position
        tables, unless layers take inputs that depend on the tokens.
        """
        row, layers = architecture_of(self.network), decoder_layers(self.network)
        caught: list[tuple[Tensor, tuple[Any, ...], dict[str, Any]]] = []

        def catch(*call: Any) -> None:
            caught.append(call)
            if len(caught) == len(layers):
                raise _Stop

        replacements = [Identity(layer, row, catch) for layer in layers]
        with replaced_layers(self.network, replacements), suppress(_Stop):
            self.network(input_ids=tokens, use_cache=False)
        calls = [(args, kwargs) for _, args, kwargs in caught]
        shares_masks = self._has_token_inputs and not self._has_marks
        if shares_masks and (earlier := self._calls.get((len(tokens), 0))):
            # Only args and shared keys depend on the tokens; masks and tables are those of the
            # first batch of this size, so that they are stored once.
            calls = [
                (args, first_kwargs | {SHARED: kwargs[SHARED]})
                for (args, kwargs), (_, first_kwargs) in zip(calls, earlier, strict=True)
            ]
        self._calls.setdefault(self._key(len(tokens), number), calls)
        return caught[0][0]

    def _key(self, size: int, number: int) -> tuple[int, int]:
        """Return the key of a batch's arguments in `_calls`.

        Batches of equal size share their arguments, unless these depend on the tokens.
        """
        return size, number if self._by_batch else 0

    @property
    def hidden(self) -> list[Tensor]:
        """Hidden states at the next layer's input by batch, [b, t, d] or [streams, b, t, d]
        each."""
        return self._hidden

    def call(self, index: int, number: int) -> Call:
        """Return further arguments of a layer for a batch, such as masks and angles."""
        return self._calls[self._key(self._sizes[number], number)][index]

    @property
    def shared(self) -> list[Mapping[str, Any]]:
        """Arguments of the next layer that come from earlier layers, by batch.

        Keys and values (k, v) [b, n_kv, t, head_size] by type of layer, or what `row.passes` names;
        [] for families whose layers pass only hidden states.
        """
        numbers = range(len(self._hidden))
        if self._passes is not None:
            return [{self._passes: self._passed.get(number)} for number in numbers]
        if not self._has_token_inputs:
            return []
        states = (self.call(0, number)[1].get(SHARED) for number in numbers)
        return [{SHARED: by_type} if by_type else {} for by_type in states]

    def _hidden_of(self, index: int, number: int, out: Any) -> Tensor:
        """Return the hidden states of a layer's output; the next layer gets what it passes on."""
        hidden: Tensor = out[0] if isinstance(out, tuple) else out
        if self._passes is not None:
            self._passed[number] = out[1]
            if index + 1 < len(decoder_layers(self.network)):
                self.call(index + 1, number)[1][self._passes] = out[1]
        return hidden

    @torch.inference_mode()
    def run(self, index: int, needs: Iterable[Need] = (), advance: bool = True) -> Moments | None:
        """Run a layer on all windows; return its moments if needs are not empty.

        Raises InputError for moments that are not finite.
        """
        layer = decoder_layers(self.network)[index]
        needs = layer_needs(layer_shapes(self.network, index), needs)
        accumulator = Accumulator(needs, self.first)
        seen: dict[str, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(present(layer))
            if "weighted_values" in accumulator.taps:
                # Before the hooks are set, which must not observe these additional passes.
                for number, hidden in enumerate(self._hidden):
                    call = self.call(index, number)
                    states = weighted_values(self.network, layer, hidden, *call)
                    accumulator.observe("weighted_values", states)
            row = architecture_of(self.network).of_layer(layer)
            has_keys = not row.native_attention and has_attended_keys(self.network)
            if ATTENDED_KEYS in accumulator.needs and has_keys:
                add = partial(accumulator.observe_sum, ATTENDED_KEYS)
                stack.enter_context(observing_keys(self.network, layer, add))
            self._tap(layer, index, accumulator, stack)
            paths = projection_paths(row, layer)
            if accumulator.taps & {"attention", "mlp"} and "o" in paths:
                path = paths["o"]
                stack.callback(
                    layer.get_submodule(path)
                    .register_forward_hook(lambda _m, _a, out: seen.update(o=out))
                    .remove
                )
            for number, hidden in enumerate(self._hidden):
                self._running = number
                args, kwargs = self.call(index, number)
                out = self._hidden_of(index, number, layer(hidden, *args, **kwargs))
                if accumulator.needs:
                    # several streams of a token, [b, t, streams, d], count as one state
                    stream_in = active_stream(self.network, hidden).flatten(2)
                    stream_out = active_stream(self.network, out).flatten(2)
                    before = residual_without(layer, "attention", stream_in)
                    # a layer that was found by structure counts as its attention, unlike a lone MLP
                    without_attention = before if "down" in paths else stream_out
                    middle = None if "o" in paths else without_attention
                    if seen:
                        gains = residual_update(
                            self.network, layer, "attention", seen["o"].view_as(stream_out)
                        )
                        middle = before + gains
                    accumulator.observe_block(*_in_output_basis(layer, before, stream_out, middle))
                if advance:
                    self._leave(index, number, out)
        if not accumulator.needs:
            return None
        moments = accumulator.moments()
        check_finite_moments(moments, index)
        return moments

    @torch.inference_mode()
    def activations(self, index: int, number: int, o_in: Tensor | None = None) -> LayerActivations:
        """Run a layer, dense or compressed, on a batch without advancing.

        o_in [b, t, n_q * v_size]: input of the output projection, if known; the attention before it
        is then not computed, unless it passes a result to the next layer.
        """
        layer, row = decoder_layers(self.network)[index], architecture_of(self.network)
        seen: dict[str, Tensor] = {}

        def store(name: str) -> Any:
            return lambda _module, args, out: seen.update(
                {f"{name}_in": args[0], f"{name}_out": out}
            )

        paths = projection_paths(row, layer)
        with ExitStack() as stack:
            for name in {"o", "up", "down"} & paths.keys():
                stack.callback(
                    layer.get_submodule(paths[name]).register_forward_hook(store(name)).remove
                )
            if o_in is not None and self._passes is None:
                stack.enter_context(_replaced_attention(self.network, layer, o_in))
            hidden = self._hidden[number]
            args, kwargs = self.call(index, number)
            out = self._hidden_of(index, number, layer(hidden, *args, **kwargs))
        up_in, down_in = (
            seen[f"{name}_in"].view(*out.shape[-3:-1], -1) if name in paths else None
            for name in ("up", "down")
        )
        o_out = seen["o_out"].view(out.shape[-3:]) if "o" in paths else None
        return LayerActivations(seen.get("o_in"), o_out, up_in, down_in, out)

    @torch.inference_mode()
    def advance(self, index: int, number: int, activations: LayerActivations) -> None:
        """Move a batch beyond a layer, given the result of `activations`.

        The down projection may have been replaced since. Not for families with
        `Architecture.has_further_updates`.
        """
        out, layer = activations.out, decoder_layers(self.network)[index]
        if activations.down_in is not None:
            hidden = self._hidden[number]
            before = stream_after_attention(self.network, layer, hidden, activations.o_out)
            path = projection_paths(architecture_of(self.network), layer)["down"]
            down = layer.get_submodule(path)(activations.down_in)
            out = residual_without(layer, "mlp", before) + residual_update(
                self.network, layer, "mlp", down
            )
        self._leave(index, number, out)

    def _leave(self, index: int, number: int, out: Tensor) -> None:
        """Set the hidden states of a batch behind a layer with the output `out`."""
        mask, terms = self._added[number]
        if index < len(terms):
            out = out.clone()
            out[mask] += terms[index].to(out)
        self._hidden[number] = out

    @torch.inference_mode()
    def input_of(self, index: int, number: int, name: str, o_in: Tensor | None = None) -> Tensor:
        """Return the input [..., in] of projection `name` ("q", "o", ...) of a layer for a batch.

        The forward pass stops there. o_in: as in `activations`.
        """
        layer = decoder_layers(self.network)[index]
        path = projection_paths(architecture_of(self.network), layer)[name]

        seen: list[Tensor] = []

        def stop(_module: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])
            raise _Reached

        hidden = self._hidden[number]
        args, kwargs = self.call(index, number)
        with ExitStack() as stack:
            handle = layer.get_submodule(path).register_forward_pre_hook(stop)
            stack.callback(handle.remove)
            if o_in is not None:
                stack.enter_context(_replaced_attention(self.network, layer, o_in))
            stack.enter_context(suppress(_Reached))
            layer(hidden, *args, **kwargs)
        return seen[0]

    def _tap(
        self, layer: nn.Module, index: int, accumulator: Accumulator, stack: ExitStack
    ) -> None:
        """Register hooks for the needed taps on the projections of the layer."""
        paths = projection_paths(architecture_of(self.network), layer)

        def input_hook(tap: str) -> Callable[..., None]:
            return lambda _module, args: accumulator.observe(tap, args[0])

        def score_hook(tap: str, name: str) -> Callable[..., None]:
            def observe(_module: nn.Module, _args: Any, out: Tensor) -> None:
                _, kwargs = self.call(index, self._running)
                angles = angles_of(self.network, layer, kwargs, out.dtype)
                accumulator.observe(tap, score_states(self.network, layer, name, out, angles))

            return observe

        for tap in [*READERS, *sorted(accumulator.taps - READERS.keys())]:
            name = reader_of(tap, paths)
            if tap in accumulator.taps and name is not None:
                module = layer.get_submodule(paths[name])
                stack.callback(module.register_forward_pre_hook(input_hook(tap)).remove)
        if SHARES in accumulator.needs:
            path = experts_path(architecture_of(self.network))
            experts = read_layer(self.network, index).experts
            assert experts is not None  # implied by the needs
            module = layer.get_submodule(path)
            hook = module.register_forward_pre_hook(
                lambda _module, args: observe_experts(
                    experts, accumulator, route_tokens(experts, *args[:3])
                )
            )
            stack.callback(hook.remove)
        for tap, name in {"q_rotated": "q", "k_rotated": "k"}.items():
            row = architecture_of(self.network).of_layer(layer)
            if tap in accumulator.taps and not row.native_attention:
                module = _states_module(layer, paths[name], name)
                stack.callback(module.register_forward_hook(score_hook(tap, name)).remove)


def layer_needs(shapes: Layer, needs: Iterable[Need]) -> frozenset[Need]:
    """Return the needs of a layer, including experts and latents."""
    needs = frozenset(needs)
    if shapes.experts is not None:
        needs = expert_needs(needs, len(shapes.experts.mlps))
    statistics = {statistic for tap, statistic in needs if tap == "attn_in"}
    return needs | {(tap, name) for name in statistics for tap in further_taps(shapes)}


def further_taps(shapes: Layer) -> frozenset[str]:
    """Return the taps that are collected together with "attn_in": those of latents, of mixers, and
    of matrices that were found by structure.
    """
    factors = shapes.attention.factors
    return frozenset() if factors is None else LATENT_TAPS | (factors.keys() - TAPS.keys())


def residual_without(layer: nn.Module, component: str, hidden: Tensor) -> Tensor:
    """Return the residual path of a component ("attention", "mlp"), [b, t, d].

    It is the stream that the component's output is added to. A sliced layer rotates the stream to
    another basis; in other layers it is `hidden`.
    """
    return layer.residual(component, hidden) if isinstance(layer, SlicedLayer) else hidden


def residual_update(
    network: PreTrainedModel, layer: nn.Module, component: str, out: Tensor
) -> Tensor:
    """Return the update of the residual stream for the output [b, t, d] of a component.

    Some families normalize or scale it. component: "attention" or "mlp".
    """
    norm = norm_after(network, layer, component)
    return residual_multiplier(network) * (out if norm is None else norm(out))


def stream_after_attention(
    network: PreTrainedModel, layer: nn.Module, hidden: Tensor, out: Tensor | None
) -> Tensor:
    """Return the residual stream between attention and MLP, [b, t, d].

    hidden [b, t, d]: input of the layer. out [b, t, d]: output of its attention or mixer, if any.
    """
    before = residual_without(layer, "attention", hidden)
    return before if out is None else before + residual_update(network, layer, "attention", out)


def _in_output_basis(
    layer: nn.Module, before: Tensor, after: Tensor, middle: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return input, output and middle of a layer in the basis of its output, for comparison.

    before, middle: in the basis after the attention.
    """
    between = None if middle is None else residual_without(layer, "mlp", middle)
    return residual_without(layer, "mlp", before), after, between


class _Reached(Exception):
    """Ends a forward pass when a projection is reached."""


@contextmanager
def _replaced_attention(network: PreTrainedModel, layer: nn.Module, o_in: Tensor) -> Iterator[None]:
    """Replace attention by its output projection of o_in [b, t, in] while the context is active."""
    row = architecture_of(network).of_layer(layer)
    attention = layer.get_submodule(row.attention)
    project = layer.get_submodule(projection_paths(row, layer)["o"])

    def forward(
        _hidden: Any = None, residual: Tensor | None = None, **_: Any
    ) -> Tensor | tuple[Tensor | None, ...]:
        out = project(o_in) if residual is None else project(o_in) + residual
        return (out, *(None,) * (row.attention_returns - 1)) if row.has_heads else out

    attention.forward = forward
    try:
        yield
    finally:
        del attention.forward  # restores the method of the class


def _states_module(layer: nn.Module, path: str, name: str) -> nn.Module:
    """Return the module at a path, or its child that computes queries or keys from a latent."""
    attention = layer.get_submodule(path.rpartition(".")[0])
    if isinstance(attention, CompressedAttention):
        return attention.states_module(name)
    return layer.get_submodule(path)


def angles_of(
    network: PreTrainedModel, layer: nn.Module, kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """Return the tables cos and sin of a layer's call, [b or 1, t, rotary part]; None if
    unrotated."""
    attention = layer.get_submodule(architecture_of(network).attention)
    embeddings = kwargs.get("position_embeddings")
    return rotary_tables(attention, embeddings, kwargs.get("position_ids"), dtype)


def score_states(
    network: PreTrainedModel,
    layer: nn.Module,
    name: str,
    out: Tensor,
    angles: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return queries or keys ("q", "k") of the scores: normalized and rotated as in the layer.

    out [b, t, rows]: the projection's output; angles: tables cos and sin [b or 1, t, rotary part].
    Returns [b, t, n * size], with consecutive heads in the layout of `layer.Attention`.
    """
    row = architecture_of(network)
    attention = layer.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        return attention.states(name, out, angles).transpose(1, 2).flatten(2)
    sizes = head_sizes(network, attention)
    states: Tensor = select_rows(out, rows_of(row, sizes, name), dim=-1)
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
    return rotate_states(states, *full_head_tables(*tables, sizes.head_size))


def rotate_states(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding in the rotate-half layout to consecutive heads.

    states [b, t, n * size]; cos, sin [b or 1, t, size]. Returns [b, t, n * size].
    """
    half = cos.shape[-1] // 2
    heads = states.unflatten(-1, (-1, 2 * half))  # [b, t, n, size]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    rotated: Tensor = heads * cos
    rotated[..., :half] -= heads[..., half:] * sin[..., :half]
    rotated[..., half:] += heads[..., :half] * sin[..., half:]
    return rotated.flatten(-2)
