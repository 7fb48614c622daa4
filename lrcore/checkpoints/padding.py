"""Padding of layers with zeros to full-size heads, equal numbers of heads and equal MLP widths.

A zero row gives a zero state, which adds nothing to a score and passes through the norm of queries
or keys unchanged. A zero column ignores its input, and the values of a zero head are zero.
Therefore padding does not change the outputs of a model.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..layers.forms import dense
from ..layers.layer import MLP, Attention, Layer, Linear, LowRank, Projection, Stored


def has_full_heads(a: Attention) -> bool:
    """Return True if queries, keys and values have the head size of the family."""
    return a.is_native or (a.qk_size, a.v_size) == (a.head_size, a.head_size)


def pad_heads(a: Attention, kv_heads: int, in_place: bool = False) -> Attention:
    """Pad an attention to `kv_heads` full-size heads of keys and values, and their query heads.

    Its cache holds keys and values. Matrices stay low-rank if possible.

    in_place: remaining heads keep their index in the dense model; otherwise they come first.
    """
    if a.is_native:
        return a
    padded: dict[str, Projection] = {}
    for name in "qkvo":
        total = a.head_size * (kv_heads if name in "kv" else kv_heads * a.group)
        padded[name] = _pad(getattr(a, name), _index(a, name, in_place), total, name == "o")
    sizes = {"n_q": kv_heads * a.group, "n_kv": kv_heads}
    sizes |= {"qk_size": a.head_size, "v_size": a.head_size}
    full = replace(a, **padded, **sizes)  # type: ignore[arg-type]
    return replace(full, rotary_pairs=None, kept_heads=None, latent="")


def pad_mlp(m: MLP, width: int) -> MLP:
    """Pad an MLP with zero neurons to a width."""
    neurons = output_size(m.up)
    if neurons == width:
        return m
    index = torch.arange(neurons)
    padded = {name: _pad(p, index, width, name == "down") for name, p in m.matrices().items()}
    return replace(m, **padded)  # type: ignore[arg-type]


def output_size(p: Projection) -> int:
    """Return the number of outputs of a projection without multiplying its factors."""
    if isinstance(p, LowRank):
        return p.up.shape[0]
    return p.form.shape[0] if isinstance(p, Stored) else p.weight.shape[0]


def mlp_width(layer: Layer) -> int:
    """Return the width of the MLP; 0 for a layer of experts."""
    return 0 if layer.mlp is None else output_size(layer.mlp.up)


def expert_width(layer: Layer) -> int:
    """Return the largest width of a routed expert; 0 without experts."""
    mlps = () if layer.experts is None else layer.experts.mlps
    return max((output_size(mlp.up) for mlp in mlps), default=0)


def dense_projection(p: Projection) -> Linear:
    """Return a projection with its factors multiplied out."""
    return p if isinstance(p, Linear) else Linear(p.weight, p.bias)


def unrotated_pairs(a: Attention) -> int:
    """Return the largest number of pairs of a head that positions do not rotate."""
    assert a.rotary_pairs is not None
    return int(_is_unrotated(a, a.rotary_pairs.long().cpu()).sum(dim=1).max())


def frequencies(a: Attention) -> Tensor:
    """Return radians per position for the pairs of a full head, [head_size / 2]; 1 if unknown."""
    if a.frequencies is None:
        return torch.ones(a.head_size // 2, dtype=torch.float32)
    return a.frequencies.cpu()


def _pad(p: Projection, index: Tensor, total: int, columns: bool) -> Projection:
    """Move the rows of a projection, or its columns, to `index` [n] of `total`, with zeros."""
    if len(index) == total and torch.equal(index, torch.arange(total)):
        return p

    def pad_rows(tensor: Tensor) -> Tensor:
        padded = tensor.new_zeros(total, *tensor.shape[1:])
        padded[index.to(tensor.device)] = tensor
        return padded

    def pad_columns(tensor: Tensor) -> Tensor:
        return pad_rows(tensor.T).T.contiguous()

    if columns:
        return _map(p, lambda up: up, pad_columns, p.bias)
    return _map(p, pad_rows, lambda down: down, None if p.bias is None else pad_rows(p.bias))


def _map(
    p: Projection,
    map_rows: Callable[[Tensor], Tensor],
    map_columns: Callable[[Tensor], Tensor],
    bias: Tensor | None,
) -> Projection:
    """Apply functions to the rows and columns of a projection's matrix."""
    if isinstance(p, LowRank) and p.sparse is None:
        return LowRank(map_columns(dense(p.down)), map_rows(dense(p.up)), bias)
    return Linear(map_rows(map_columns(p.weight)), bias)


def _index(a: Attention, name: str, in_place: bool) -> Tensor:
    """Return the positions in full heads of the rows of q, k, v, or the columns of o.

    Returns [heads * size].
    """
    heads = torch.arange(a.n_kv)
    if in_place and a.kept_heads is not None:
        heads = a.kept_heads.long().cpu()[:: a.group] // a.group
    if name in "qo":
        heads = (heads.unsqueeze(1) * a.group + torch.arange(a.group)).flatten()
    return (heads.unsqueeze(1) * a.head_size + _positions_in_head(a, name)).flatten()


def _positions_in_head(a: Attention, name: str) -> Tensor:
    """Return the positions in a full head of a head's rows, [heads, size] or [size]."""
    if name in "vo":
        return torch.arange(a.v_size)
    if a.rotary_pairs is None:
        return torch.arange(a.qk_size)
    pairs = torch.stack([_positions_of_pairs(a, pairs) for pairs in a.rotary_pairs.long().cpu()])
    rows = torch.cat((pairs, pairs + a.head_size // 2), dim=1)
    return rows.repeat_interleave(a.group, dim=0) if name == "q" else rows


def _positions_of_pairs(a: Attention, pairs: Tensor) -> Tensor:
    """Return the pairs of a full head that represent the pairs [k] of a head.

    Rotated pairs keep their index. Unrotated pairs take any unrotated pairs of the full head.
    """
    unrotated = _is_unrotated(a, pairs)
    if not unrotated.any():
        return pairs
    free = (frequencies(a) == 0).nonzero().flatten()
    return pairs.masked_scatter(unrotated, free[: int(unrotated.sum())])


def _is_unrotated(a: Attention, pairs: Tensor) -> Tensor:
    """Return a mask of the pairs [..., k] that positions do not rotate."""
    return (pairs < 0) | (frequencies(a)[pairs.clamp(min=0)] == 0)
