"""KV caches: forward passes with a cache, and a quantized cache.

The quantized cache has scales per channel for keys and per token for values (KIVI, Liu et al., ICML
2024). The newest tokens are not quantized. Older keys share a scale and a zero point over GROUP
tokens of a channel, since their outliers are in a few channels; older values share them over the
channels of a token. The quantized cache of transformers groups keys and values in the same way,
quantizes all tokens repeatedly, and needs a library for the codes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..layers.forms import extremes, pack, unpack
from ..layers.grids import nearest_codes
from ..system.cancellation import unchecked
from ..system.errors import InputError

# Argument and output of a network's forward; "cache" since transformers 5.24.
_NAMES = ("cache", "past_key_values")
CACHE_ARGUMENT = next(name for name in _NAMES if name in CausalLMOutputWithPast.__annotations__)
# Families whose networks count the positions of each forward pass from 0, unless they are passed.
_WITHOUT_POSITIONS = {"bamba"}


def forward_with_cache(
    network: PreTrainedModel, tokens: Tensor, cache: Any, **options: Any
) -> tuple[Any, Any]:
    """Run a network on tokens [b, t] that follow those in a cache; return output and cache.

    cache: None for the first tokens. options: further arguments of the network's forward. A
    canceled job stops before the next forward pass.
    """
    arguments = {CACHE_ARGUMENT: cache, "use_cache": True, **options}
    if cache is not None and network.config.model_type in _WITHOUT_POSITIONS:
        start = int(cache.get_seq_length())
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        arguments.setdefault("position_ids", positions[None])
    with unchecked():  # checks before thousands of small functions would distort measured speeds
        out = network(input_ids=tokens, **arguments)
    return out, getattr(out, CACHE_ARGUMENT)


BITS = (8, 4, 2)
GROUP = 32  # tokens of a channel, or at most so many channels of a token, that share a grid
RESIDUAL = 32  # newest tokens that are not quantized; 128 in the paper, for prompts of thousands


def check_kv_bits(bits: Any) -> None:
    """Raise InputError unless bits is 8, 4 or 2."""
    if bits not in BITS:
        raise InputError(f"A KV cache with {bits!r} bits is not supported. Use 8, 4 or 2.")


def check_quantizable(state_bytes: int) -> None:
    """Raise InputError for a network whose cache has states, see `ModelSize.state_bytes`."""
    if state_bytes:
        raise InputError(
            "The cache of this model cannot be quantized: some of its layers keep a state instead "
            "of keys and values. Leave out kv_bits."
        )


def quantized_cache(bits: int = 4, residual: int = RESIDUAL) -> Cache:
    """Return an empty quantized cache for forward passes and `generate` of transformers.

    Pass it as `cache`, or as `past_key_values` before transformers 5.24. All layers of the model
    must cache keys and values, or latents of them.

    bits: 8, 4 or 2. residual >= 0: newest tokens in full precision; up to GROUP - 1 further tokens
    are too, since tokens are quantized GROUP at a time. Raises InputError for other values.
    """
    check_kv_bits(bits)
    if type(residual) is not int or residual < 0:
        raise InputError(f"residual = {residual!r}: enter a whole number of tokens, 0 or more.")

    def layer() -> QuantizedLayer:
        return QuantizedLayer(bits, residual)

    return Cache(layer_class_to_replicate=layer)


class QuantizedLayer(DynamicLayer):
    """The cache of a decoder layer: `keys`, `values` [b, heads, t, size] of the newest tokens, and
    codes of older tokens.

    A forward pass on GROUP tokens gives the same result as GROUP passes on single tokens if
    residual and the position of the first token are multiples of GROUP.
    """

    is_croppable = False

    def __init__(self, bits: int, residual: int) -> None:
        super().__init__()
        self.keys: Tensor
        self.values: Tensor
        self.bits, self.residual = bits, residual
        self._older: dict[str, _Rounded] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens; return all keys and values [b, heads, T, size], dequantized if necessary.

        Then quantize tokens that are no longer among the newest.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._older = {
                "keys": _Rounded(self.bits, _over_tokens),
                "values": _Rounded(self.bits, _over_channels),
            }
        states_of_all = []
        for name, states in (("keys", key_states), ("values", value_states)):
            older, newest = self._older[name], getattr(self, name)
            newest = states if newest.dim() < 4 else torch.cat((newest, states), -2)
            states_of_all.append(torch.cat((older.states(newest), newest), -2))
            leaving = max(newest.shape[-2] - self.residual, 0) // GROUP * GROUP
            older.add(newest[..., :leaving, :])
            setattr(self, name, newest[..., leaving:, :].contiguous())
        return states_of_all[0], states_of_all[1]

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        if not self.is_initialized:
            return 0
        return int(self._older["keys"].tokens) + int(self.keys.shape[-2])

    def reset(self) -> None:
        super().reset()
        self._older = {}

    @property
    def nbytes(self) -> int:
        """Bytes of codes, grids and newest tokens."""
        newest = self.keys.nbytes + self.values.nbytes if self.is_initialized else 0
        return newest + sum(rounded.nbytes for rounded in self._older.values())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select sequences beam_idx [n] of the batch, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch."""
        self._map(lambda t: t.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences indices [n] of the batch."""
        self._map(lambda t: t[indices.to(t.device), ...])

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            self.keys, self.values = change(self.keys), change(self.values)
            for rounded in self._older.values():
                rounded.parts = [change(part) for part in rounded.parts]


class _Rounded:
    """Quantized states of older tokens, GROUP at a time.

    parts: codes uint8 [b, groups, bytes], and the grids low and step [b, groups, numbers].
    over: maps states [b, heads, GROUP, size] to rows [b, numbers, n] with a grid each, and back.
    """

    def __init__(self, bits: int, over: "_Grouping") -> None:
        self.bits, self._over = bits, over
        self.parts: list[Tensor] = []
        self._shape: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return GROUP * self.parts[0].shape[1] if self.parts else 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def add(self, states: Tensor) -> None:
        """Quantize the states [b, heads, t, size] of further tokens, t a multiple of GROUP."""
        for group in states.split(GROUP, -2) if states.numel() else ():
            self._shape = tuple(group.shape[1:])
            rows = self._over(group, None).flatten(0, 1)  # [b numbers, n]
            low, step = extremes(rows, self.bits)
            codes = nearest_codes(rows, low[:, None], step[:, None], 2**self.bits - 1)
            new = [pack(codes.to(torch.uint8).flatten(), self.bits), low, step]
            new = [part.view(len(group), 1, -1) for part in new]
            old = self.parts or [part[:, :0] for part in new]
            self.parts = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]

    def states(self, like: Tensor) -> Tensor:
        """Return all states, dequantized: [b, heads, tokens, size], in the dtype of `like`."""
        if not self.parts:
            return like[..., :0, :]
        codes, low, step = self.parts
        b, groups, numbers = low.shape
        count = b * groups * codes.shape[2] * 8 // self.bits
        rows = unpack(codes.flatten(), self.bits, count).view(b, groups, numbers, -1)
        rows = low[..., None] + step[..., None] * rows.to(low.dtype)
        groups_of_states = self._over(rows.flatten(0, 1), self._shape)
        heads, _, size = self._shape
        groups_of_states = groups_of_states.view(b, groups, heads, GROUP, size)
        return groups_of_states.transpose(1, 2).reshape(b, heads, -1, size)


# Maps states [b, heads, GROUP, size] and None to rows [b, numbers, n], and rows and the shape
# (heads, GROUP, size) to states.
_Grouping = Callable[[Tensor, "tuple[int, ...] | None"], Tensor]


def _over_tokens(tensor: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Map states to rows, or back; a row has the tokens of a channel."""
    if shape is None:
        return tensor.mT.flatten(1, 2)
    heads, _, size = shape
    return tensor.view(-1, heads, size, GROUP).mT


def _over_channels(tensor: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Map states to rows, or back; a row has up to GROUP channels of a token.

    All rows have the same length; the last channel is repeated if necessary.
    """
    size = tensor.shape[-1] if shape is None else shape[2]
    rows = -(-size // GROUP)
    width = -(-size // rows)
    if shape is None:
        last = tensor[..., -1:].expand(*tensor.shape[:-1], rows * width - size)
        return torch.cat((tensor, last), -1).view(len(tensor), -1, width)
    return tensor.view(-1, shape[0], GROUP, rows * width)[..., :size]


@torch.inference_mode()
def quantized_kv_bytes(network: PreTrainedModel, bits: int) -> float:
    """Return the bytes per token of a network's cache after quantization, including grids."""
    cache = quantized_cache(bits, residual=0)
    tokens = torch.zeros(1, GROUP, dtype=torch.long, device=network.device)
    forward_with_cache(network, tokens, cache, logits_to_keep=1)
    layers = [layer for layer in cache.layers if isinstance(layer, QuantizedLayer)]
    return sum(layer.nbytes for layer in layers) / GROUP
