"""Layers filled with zeros: heads of the full size, as many in every layer, and MLPs of one width.

A row of zeros gives a state of zero, which adds nothing to a score and passes through a norm of
queries or keys as it is; a column of zeros reads nothing. A head of zeros attends to values of
zero. So what a model computes stays the same.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..forms import dense
from ..layer import MLP, Attention, Layer, Linear, LowRank, Projection, Stored


def head_misfit(a: Attention) -> str:
    """What of an attention has no place in heads of the family's own; "" where all has one."""
    if a.kept:
        return ""
    if a.summed:
        return "heads are summed before the output projection"
    if a.channel is not None:
        return "there is a decoupled rotary channel"
    if a.rotary_pairs is not None and (lost := _lost(a)) > int((_angles(a) == 0).sum()):
        return f"{lost} rotary pairs of a head have lost their positions"
    return ""


def has_whole_heads(a: Attention) -> bool:
    """Whether queries, keys and values have the head size of the family."""
    return a.kept or (a.qk_size, a.v_size) == (a.head_size, a.head_size)


def filled_heads(a: Attention, kv_heads: int, in_place: bool = False) -> Attention:
    """The attention with `kv_heads` heads of keys and values, and the queries that read them, all
    of the full size; its cache holds keys and values.

    in_place: heads that are left have the numbers that they had in the dense model; else they come
    first. A pair stays one where it can.
    """
    if a.kept:
        return a
    own: dict[str, Projection] = {}
    for name in "qkvo":
        count = kv_heads if name in "kv" else kv_heads * a.group
        own[name] = _spread(getattr(a, name), _index(a, name, in_place), count * a.head_size, name)
    sizes = {"n_q": kv_heads * a.group, "n_kv": kv_heads}
    sizes |= {"qk_size": a.head_size, "v_size": a.head_size}
    whole = replace(a, **own, **sizes)  # type: ignore[arg-type]
    return replace(whole, rotary_pairs=None, kept_heads=None, latent="")


def filled_mlp(m: MLP, width: int) -> MLP:
    """The MLP with neurons of zero up to a width."""
    own = rows_in(m.up)
    if own == width:
        return m
    index = torch.arange(own)
    parts = {
        name: _spread(p, index, width, "o" if name == "down" else "")
        for name, p in m.matrices().items()
    }
    return replace(m, **parts)  # type: ignore[arg-type]


def rows_in(p: Projection) -> int:
    """How many numbers a projection gives; nothing is multiplied out for it."""
    if isinstance(p, LowRank):
        return p.up.shape[0]
    return p.form.shape[0] if isinstance(p, Stored) else p.weight.shape[0]


def width_of(layer: Layer) -> int:
    """Of the MLP; 0 where there is none."""
    return 0 if layer.mlp is None else rows_in(layer.mlp.up)


def expert_width_of(layer: Layer) -> int:
    """The most of a routed expert; 0 where there is none."""
    mlps = () if layer.experts is None else layer.experts.mlps
    return max((rows_in(mlp.up) for mlp in mlps), default=0)


def dense_projection(p: Projection) -> Linear:
    """The projection with its matrix multiplied out."""
    return p if isinstance(p, Linear) else Linear(p.weight, p.bias)


def _spread(p: Projection, index: Tensor, total: int, name: str) -> Projection:
    """A projection whose rows, of "o" whose columns, stand at `index` [n] of `total`."""
    if len(index) == total and torch.equal(index, torch.arange(total)):
        return p

    def rows(tensor: Tensor) -> Tensor:
        whole = tensor.new_zeros(total, *tensor.shape[1:])
        whole[index.to(tensor.device)] = tensor
        return whole

    def columns(tensor: Tensor) -> Tensor:
        return rows(tensor.T).T.contiguous()

    if name == "o":
        return _mapped(p, lambda up: up, columns, p.bias)
    return _mapped(p, rows, lambda down: down, None if p.bias is None else rows(p.bias))


def _mapped(
    p: Projection,
    left: Callable[[Tensor], Tensor],
    right: Callable[[Tensor], Tensor],
    bias: Tensor | None,
) -> Projection:
    """A projection with maps of the rows and columns of its matrix."""
    if isinstance(p, LowRank) and p.sparse is None:
        return LowRank(right(dense(p.down)), left(dense(p.up)), bias)
    return Linear(left(right(p.weight)), bias)


def _index(a: Attention, name: str, in_place: bool) -> Tensor:
    """Where the rows of queries, keys or values, and the columns of outputs, stand in whole heads,
    [heads * size].
    """
    places = torch.arange(a.n_kv)
    if in_place and a.kept_heads is not None:
        places = a.kept_heads.long().cpu()[:: a.group] // a.group
    if name in "qo":
        places = (places.unsqueeze(1) * a.group + torch.arange(a.group)).flatten()
    return (places.unsqueeze(1) * a.head_size + _rows_of_a_head(a, name)).flatten()


def _rows_of_a_head(a: Attention, name: str) -> Tensor:
    """The places in a whole head of the rows that a head has, [heads, size] or [size]."""
    if name in "vo":
        return torch.arange(a.v_size)
    if a.rotary_pairs is None:
        return torch.arange(a.qk_size)
    pairs = torch.stack([_places_of_pairs(a, own) for own in a.rotary_pairs.long().cpu()])
    rows = torch.cat((pairs, pairs + a.head_size // 2), dim=1)
    return rows.repeat_interleave(a.group, dim=0) if name == "q" else rows


def _places_of_pairs(a: Attention, pairs: Tensor) -> Tensor:
    """The pairs of a whole head that those of a head become, [k]: their own, and for those that do
    not turn, whichever of the whole head do not turn either.
    """
    still = _still(a, pairs)
    if not still.any():
        return pairs
    free = (_angles(a) == 0).nonzero().flatten()
    return pairs.masked_scatter(still, free[: int(still.sum())])


def _still(a: Attention, pairs: Tensor) -> Tensor:
    """Which pairs [..., k] positions do not turn."""
    return (pairs < 0) | (_angles(a)[pairs.clamp(min=0)] == 0)


def _lost(a: Attention) -> int:
    """The most pairs of a head that positions do not turn."""
    assert a.rotary_pairs is not None
    return int(_still(a, a.rotary_pairs.long().cpu()).sum(dim=1).max())


def _angles(a: Attention) -> Tensor:
    """Radians per position of the pairs of a whole head, [head_size / 2]; ones where unknown."""
    if a.frequencies is None:
        return torch.ones(a.head_size // 2, dtype=torch.float32)
    return a.frequencies.cpu()
