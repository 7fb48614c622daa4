"""A KV cache in few bits: keys per channel, values per token (KIVI, Liu et al., ICML 2024).

The newest tokens stay as they are. Of the older ones, keys share a scale and a zero point over
GROUP tokens of a channel, since their large entries lie in a few channels, and values over the
channels of a token. transformers has a quantised cache as well; it groups keys and values alike,
rounds all tokens again each time, and needs a library for the codes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import InputError
from ..forms import extremes, pack, unpack
from .cached import cached
from .load import LoadedModel

BITS = (8, 4, 2)
GROUP = 32  # tokens of a channel, and at most so many channels of a token, that share a grid
RESIDUAL = 32  # newest tokens that stay as they are; 128 in the paper, of prompts of thousands


def check_kv_bits(bits: Any) -> None:
    """Raise InputError for other than 8, 4 or 2 bits."""
    if bits not in BITS:
        raise InputError(f"A KV cache of {bits!r} bits is not offered. Use 8, 4 or 2.")


def quantised_cache(bits: int = 4, residual: int = RESIDUAL) -> Cache:
    """An empty cache for a network's forward pass and transformers' `generate`, which take it as
    `cache`, before transformers 5.24 as `past_key_values`; for any model whose layers all cache
    keys and values or latents of them.

    bits: 8, 4 or 2. residual >= 0: newest tokens that stay in full precision; up to GROUP - 1 more
    do, as tokens are rounded GROUP at a time. Raises InputError for other values.
    """
    check_kv_bits(bits)
    if type(residual) is not int or residual < 0:
        raise InputError(f"residual = {residual!r}: give a whole number of tokens, 0 or more.")

    def layer() -> QuantisedLayer:
        return QuantisedLayer(bits, residual)

    return Cache(layer_class_to_replicate=layer)


class QuantisedLayer(DynamicLayer):
    """The cache of one decoder layer: `keys`, `values` [b, heads, t, size] of the newest tokens,
    and the older ones as codes.

    GROUP tokens given at once see what they see one by one, where residual is a multiple of GROUP
    and they begin at one.
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
        """All keys and values [b, heads, T, size], the older ones as they are rounded; then those
        that are no longer among the newest are rounded.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._older = {
                "keys": _Rounded(self.bits, _over_tokens),
                "values": _Rounded(self.bits, _over_channels),
            }
        whole = []
        for name, states in (("keys", key_states), ("values", value_states)):
            older, newest = self._older[name], getattr(self, name)
            newest = states if newest.dim() < 4 else torch.cat((newest, states), -2)
            whole.append(torch.cat((older.states(newest), newest), -2))
            leaving = max(newest.shape[-2] - self.residual, 0) // GROUP * GROUP
            older.add(newest[..., :leaving, :])
            setattr(self, name, newest[..., leaving:, :].contiguous())
        return whole[0], whole[1]

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
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
        return newest + sum(one.nbytes for one in self._older.values())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Choose sequences beam_idx [n] of the batch, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence of the batch so many times."""
        self._map(lambda t: t.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """The sequences indices [n] of the batch alone."""
        self._map(lambda t: t[indices.to(t.device), ...])

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            self.keys, self.values = change(self.keys), change(self.values)
            for one in self._older.values():
                one.parts = [change(part) for part in one.parts]


class _Rounded:
    """States of older tokens, GROUP at a time: codes uint8 [b, groups, bytes], and the grids low
    and step [b, groups, numbers].

    grouped: states [b, heads, GROUP, size] as [b, numbers, n], a row for each grid; and back, from
    the rows and the shape.
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
        """Round the states [b, heads, t, size] of further tokens, t a multiple of GROUP."""
        for group in states.split(GROUP, -2) if states.numel() else ():
            self._shape = tuple(group.shape[1:])
            rows = self._over(group, None)  # [b, numbers, n]
            low, step = extremes(rows.flatten(0, 1), self.bits)
            scaled = (rows.flatten(0, 1) - low[:, None]) / torch.where(step > 0, step, 1)[:, None]
            codes = scaled.round().clamp(0, 2**self.bits - 1).to(torch.uint8)
            new = [pack(codes.flatten(), self.bits), low, step]
            new = [part.view(len(group), 1, -1) for part in new]
            old = self.parts or [part[:, :0] for part in new]
            self.parts = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]

    def states(self, like: Tensor) -> Tensor:
        """All of them, dequantised: [b, heads, tokens, size], in the dtype of `like`."""
        if not self.parts:
            return like[..., :0, :]
        codes, low, step = self.parts
        b, groups, numbers = low.shape
        count = b * groups * codes.shape[2] * 8 // self.bits
        rows = unpack(codes.flatten(), self.bits, count).view(b, groups, numbers, -1)
        rows = low[..., None] + step[..., None] * rows.to(low.dtype)
        each = self._over(rows.flatten(0, 1), self._shape)  # [b * groups, heads, GROUP, size]
        heads, _, size = self._shape
        return each.view(b, groups, heads, GROUP, size).transpose(1, 2).reshape(b, heads, -1, size)


# States [b, heads, GROUP, size] and None as rows [b, numbers, n]; rows and the shape
# [heads, GROUP, size] as states.
_Grouping = Callable[[Tensor, "tuple[int, ...] | None"], Tensor]


def _over_tokens(given: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """A row is the tokens of a channel."""
    if shape is None:
        return given.mT.flatten(1, 2)
    heads, _, size = shape
    return given.view(-1, heads, size, GROUP).mT


def _over_channels(given: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """A row is up to GROUP channels of a token; rows are equally long, the last channel repeated
    where they are too few.
    """
    size = given.shape[-1] if shape is None else shape[2]
    rows = -(-size // GROUP)
    width = -(-size // rows)
    if shape is None:
        last = given[..., -1:].expand(*given.shape[:-1], rows * width - size)
        return torch.cat((given, last), -1).view(len(given), -1, width)
    return given.view(-1, shape[0], GROUP, rows * width)[..., :size]


@torch.inference_mode()
def quantised_kv_bytes(model: LoadedModel, bits: int) -> float:
    """Bytes per token that the model's cache takes once they are rounded, grids counted."""
    cache = quantised_cache(bits, residual=0)
    tokens = torch.zeros(1, GROUP, dtype=torch.long, device=model.device)
    cached(model.network, tokens, cache, logits_to_keep=1)
    layers = [layer for layer in cache.layers if isinstance(layer, QuantisedLayer)]
    return sum(layer.nbytes for layer in layers) / GROUP
