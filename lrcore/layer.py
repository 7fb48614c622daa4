"""One decoder layer as frozen values: the input and output of every method.

Convention: row activations and `torch.nn.Linear` weights, `y = W x + b` with `W: [out, in]`. Heads
are stacked along the rows of the query, key and value weights and along the columns of the output
weight. Tensors only; no model is needed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .forms import Form, Matrix, Sparse, count, dense, tensors_of


@dataclass(frozen=True, eq=False)
class Linear:
    """A dense projection. weight [out, in]; bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def parameters(self) -> int:
        return _kept(self)


@dataclass(frozen=True, eq=False)
class LowRank:
    """A factored projection `y = up (down x) + sparse x + bias`.

    down [r, in]; up [out, r], plain tensors or stored forms; bias [out] or None; sparse [out, in]
    or None. Several projections of a layer may share one `down`: it is stored and counted once.
    """

    down: Matrix
    up: Matrix
    bias: Tensor | None = None
    sparse: Sparse | None = None

    @property
    def weight(self) -> Tensor:
        """The dense matrix [out, in]: the product, and the sparse term."""
        product = dense(self.up) @ dense(self.down)
        return product if self.sparse is None else product + dense(self.sparse)

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def parameters(self) -> int:
        return _kept(self)


@dataclass(frozen=True, eq=False)
class Stored:
    """A projection `y = M x + bias` whose matrix [out, in] has a stored form, such as quantised.

    bias [out] or None.
    """

    form: Form
    bias: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The dense matrix, [out, in]."""
        return dense(self.form)

    @property
    def parameters(self) -> int:
        return _kept(self)


Projection = Linear | LowRank | Stored
Tables = Literal["halves", "neighbours", "once"]
# The dimension along which a matrix holds the weights of one state of a head or of the MLP: rows
# give such states, columns of o and down read them.
ACROSS = {"q": 1, "k": 1, "v": 1, "o": 0, "gate": 1, "up": 1, "down": 0}
# Multi-head latent attention (DeepSeek-V2): to the latents of queries and of keys and values, and
# from them; ACROSS has no place for these, whose rows are latents.
LATENT_MATRICES = ("q_a", "q_b", "kv_a", "kv_b")


@dataclass(frozen=True, eq=False)
class RotaryChannel:
    """A decoupled rotary channel beside the heads (CARE, section 3.5).

    q [n_q * size, d]; k [size, r], which reads the first r numbers of the cached latent of k;
    q_bias [n_q * size], k_bias [size] or None.

    The scores gain `scale (R_t q x)^T (R_s k (k_down x'))`; all heads share the key.
    """

    q: Tensor
    k: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None

    @property
    def size(self) -> int:
        """Numbers per head, d_r."""
        return self.k.shape[0]

    @property
    def biases(self) -> int:
        """Numbers that multiply no input."""
        return sum(one.numel() for one in (self.q_bias, self.k_bias) if one is not None)

    @property
    def parameters(self) -> int:
        return self.q.numel() + self.k.numel() + self.biases


@dataclass(frozen=True, eq=False)
class Attention:
    """Self-attention of one layer.

    q [n_q * qk_size, d], k [n_kv * qk_size, d], v [n_kv * v_size, d], o [d, n_q * v_size]. Query
    head i reads kv head i // group.
    scale: multiplies the scores; independent of the rank.
    position: "rotary" rotates the pairs (j, j + head_size / 2) between projection and score; "none"
    covers absolute and learned positions, which act on the input. A partial rotary embedding has
    the other columns in pairs of angle zero, in the layout of a whole rotary head.
    rotary_pairs [n_kv, qk_size / 2]: the original index of each kept pair, -1 for one that has lost
    its positions; None while all are kept.
    kept_heads [n_q]: the original index of each query head that is left; None while all are.
    qk_norm: queries and keys are normalised over a head or over the whole width before rotary;
    qk_size then stays head_size.
    softcap c: scores become c tanh(score / c). window: the most keys a query sees, where the
    attention itself applies the sliding window.
    frequencies [head_size / 2]: radians per position of the original pairs; None without rotary.
    tables: how the network's cos and sin hold the two columns of a pair: in two "halves", side by
    side ("neighbours"), or both in one ("once").
    latent: "", "k", "v" or "kv", those whose cache holds `down x` instead of the state where they
    are `LowRank`; once where they share it.
    summed: every query head has its own values, and one output projection is applied to the sum of
    the head outputs; v is then [n_q * v_size, d] and o [d, v_size].
    channel: only where k is a cached latent and positions are rotary.
    kept: the module stays the family's own, and no more than its matrices are replaced.
    factors: of attention that is kept: its projections by name in forward order. Of multi-head
    latent attention "q" or "q_a" and "q_b", "kv_a" (to the cached latent and the key that all heads
    share), "kv_b" and "o"; q is then what gives the queries, k kv_a and v kv_b. Of others "q", "k",
    "v" and "o", without "v" where k gives the values too; v is k then. Without "k" and "v" where
    the layer reads those of an earlier one; both are q then.
    cache_size: the cached numbers per token there, 0 where they are an earlier layer's.
    """

    q: Projection
    k: Projection
    v: Projection
    o: Projection
    n_q: int
    n_kv: int
    head_size: int
    qk_size: int
    v_size: int
    scale: float
    position: Literal["none", "rotary"] = "none"
    rotary_pairs: Tensor | None = None
    kept_heads: Tensor | None = None
    qk_norm: Literal["head", "width"] | None = None
    softcap: float | None = None
    window: int | None = None
    frequencies: Tensor | None = None
    tables: Tables = "halves"
    latent: str = ""
    summed: bool = False
    channel: RotaryChannel | None = None
    kept: bool = False
    factors: Mapping[str, Projection] | None = None
    cache_size: int = 0

    @property
    def named(self) -> Mapping[str, Projection]:
        """The projections by name, in forward order."""
        own = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        return own if self.factors is None else self.factors

    def with_named(self, changed: Mapping[str, Projection]) -> "Attention":
        """A copy with some projections replaced; sizes stay as they are."""
        if self.factors is None:
            outer: dict[str, Any] = dict(changed)
            return replace(self, **outer)
        f = {**self.factors, **changed}
        return replace(self, factors=f, **roles(f))

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.n_q // self.n_kv

    @property
    def turning(self) -> Tensor | None:
        """Radians per position of every pair that a kv head has, [n_kv, qk_size / 2], 0 where
        positions do not turn it; None where no frequencies are known.
        """
        if self.position != "rotary" or self.frequencies is None:
            return None
        own = self.frequencies.to(self.k.weight.device)
        if self.rotary_pairs is None:
            return own.expand(self.n_kv, -1)
        pairs = self.rotary_pairs.long().to(own.device)
        return torch.where(pairs < 0, 0, own[pairs])

    @property
    def n_v(self) -> int:
        """Value heads: one per query head where they are summed, else one per kv head."""
        return self.n_q if self.summed else self.n_kv

    def cached_latent(self, name: str) -> LowRank | None:
        """The keys' or values' projection ("k", "v") where the cache holds its latent."""
        p = getattr(self, name)
        latent = name in self.latent and isinstance(p, LowRank) and p.sparse is None
        return p if latent else None

    def cached(self, name: str) -> int:
        """Cached numbers per token of keys or values ("k", "v"), shared ones with both."""
        latent = self.cached_latent(name)
        if latent is not None:
            return latent.rank
        return self.n_kv * self.qk_size if name == "k" else self.n_v * self.v_size

    @property
    def kv_values(self) -> int:
        """Cached numbers per token."""
        if self.factors is not None:
            return self.cache_size
        k, v = self.cached_latent("k"), self.cached_latent("v")
        if k is not None and v is not None and same_matrix(k.down, v.down):
            return k.rank
        return self.cached("k") + self.cached("v")


def roles(factors: Mapping[str, Projection]) -> dict[str, Any]:
    """Which of the projections of an attention that is kept are its `q`, `k`, `v` and `o`."""
    after = {
        "q": ("q_b", "q"),
        "k": ("kv_a", "k", "q"),
        "v": ("kv_b", "v", "k", "q"),
        "o": ("o",),
    }
    return {
        role: factors[next(name for name in names if name in factors)]
        for role, names in after.items()
    }


@dataclass(frozen=True, eq=False)
class MLP:
    """down(act(gate x) * (up x)), or down(act(up x)) where gate is None.

    up, gate [d_f, d]; down [d, d_f].
    """

    up: Projection
    down: Projection
    gate: Projection | None = None
    activation: str = "silu"

    def matrices(self) -> dict[str, Projection]:
        """The projections by name, in forward order."""
        named = {"gate": self.gate, "up": self.up, "down": self.down}
        return {name: projection for name, projection in named.items() if projection is not None}


@dataclass(frozen=True, eq=False)
class Experts:
    """The routed experts of a layer, all of one shape; a token passes through `active` of them."""

    mlps: tuple[MLP, ...]
    active: int


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: its index, attention and MLP; mlp is None in a layer of experts.

    expert: where the layer stands for one of its experts, the number of the one that is its MLP.
    The attention is then no part of it.
    """

    index: int
    attention: Attention
    mlp: MLP | None
    experts: Experts | None = None
    expert: int | None = None

    def of_expert(self, number: int) -> "Layer":
        """One of the experts as a layer with nothing but an MLP."""
        assert self.experts is not None
        return replace(self, mlp=self.experts.mlps[number], experts=None, expert=number)

    def with_experts(self, mlps: Iterable[MLP]) -> "Layer":
        """A copy with other experts."""
        assert self.experts is not None
        return replace(self, experts=replace(self.experts, mlps=tuple(mlps)))

    @property
    def components(self) -> tuple[str, ...]:
        """The components that can be narrowed: no "qk" under a query-key norm, no "ov" whose heads
        are summed, neither in attention that is kept, no absent "mlp"; of an expert that alone.
        """
        a, whole = self.attention, self.expert is None
        possible = {
            "qk": whole and a.qk_norm is None and not a.kept,
            "ov": whole and not a.summed and not a.kept,
            "mlp": self.mlp is not None,
        }
        return tuple(name for name, there in possible.items() if there)

    @property
    def structures(self) -> tuple[str, ...]:
        """What can be removed whole: "heads", the groups of query heads that share a key and a
        value head, and the neurons of the "mlp". No "heads" where there is one group only, a norm
        over the width of all of them, or one output projection for their sum; nor of an expert.
        """
        a = self.attention
        groups = a.n_kv > 1 and a.qk_norm != "width" and not a.summed and self.expert is None
        groups = groups and not a.kept
        possible = {"heads": groups, "mlp": self.mlp is not None}
        return tuple(name for name, there in possible.items() if there)

    def matrices(self) -> dict[str, Projection]:
        """The projections by name, in forward order; without those that the layer lacks. Those of
        experts are not among them.
        """
        own = {**self.attention.named} if self.expert is None else {}
        return own if self.mlp is None else own | self.mlp.matrices()

    def held(self, names: Collection[str]) -> list[Projection]:
        """The projections of these names that the layer has, those of every expert included."""
        mlps = () if self.experts is None else self.experts.mlps
        named = [self.matrices(), *(mlp.matrices() for mlp in mlps)]
        return [one for own in named for name, one in own.items() if name in names]

    def with_matrices(self, **changed: Projection) -> "Layer":
        """A copy with some projections replaced; sizes stay as they are."""
        outer = {name: p for name, p in changed.items() if name in self.attention.named}
        inner: dict[str, Any] = {name: p for name, p in changed.items() if name not in outer}
        attention, mlp = self.attention.with_named(outer), self.mlp
        if inner:
            assert mlp is not None
            mlp = replace(mlp, **inner)
        return replace(self, attention=attention, mlp=mlp)

    @property
    def parameters(self) -> int:
        """Weights and biases of the projections, shared ones once, of the routed experts and of the
        rotary channel.
        """
        channel = self.attention.channel
        own = _kept(*self.matrices().values()) + (0 if channel is None else channel.parameters)
        return own + self.routed

    @property
    def routed(self) -> int:
        """Weights and biases of the routed experts."""
        mlps = () if self.experts is None else self.experts.mlps
        return sum(_kept(*mlp.matrices().values()) for mlp in mlps)


def same_matrix(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices hold the same tensors, so that they are stored once."""
    parts = ([m] if isinstance(m, Tensor) else tensors_of(m).values() for m in (a, b))
    first, second = ([(t.data_ptr(), t.shape) for t in own] for own in parts)
    return first == second


def rank_of(projection: Projection) -> int:
    """The most ranks that a projection's weight can have."""
    full = min(projection.weight.shape)
    plain = isinstance(projection, LowRank) and projection.sparse is None
    return min(full, projection.rank) if plain else full  # type: ignore[union-attr]


def _kept(*projections: Projection) -> int:
    """How many numbers the projections store together, shared ones counted once."""
    kept: dict[Any, int] = {}
    for p in projections:
        for part in (getattr(p, field.name) for field in fields(p)):
            if part is not None:
                first = part if isinstance(part, Tensor) else next(iter(tensors_of(part).values()))
                kept[first.data_ptr(), first.shape] = count(part)
    return sum(kept.values())


def heads(weight: Tensor, count: int) -> Tensor:
    """Rows of a query, key or value weight by head, [count * size, ...] -> [count, size, ...]."""
    return weight.reshape(count, -1, *weight.shape[1:])


def output_heads(weight: Tensor, count: int) -> Tensor:
    """Columns of an output weight by head, [d, count * size] -> [count, d, size]."""
    return weight.reshape(weight.shape[0], count, -1).transpose(0, 1)


def merge_output_heads(weight: Tensor) -> Tensor:
    """The inverse of `output_heads`: [count, d, size] -> [d, count * size]."""
    return weight.transpose(0, 1).reshape(weight.shape[1], -1)


def map_rows(linear: Projection, maps: Tensor, dtype: torch.dtype | None = None) -> Linear:
    """Apply a small map to each head's state: weight `T_h W_h`, bias `T_h b_h`.

    maps T [heads, r, size]; the result's weight is [heads * r, d]. dtype: of the result, the
    linear's own by default.
    """
    dtype = dtype or linear.weight.dtype
    count = maps.shape[0]
    weight = maps @ heads(linear.weight.to(maps.dtype), count)  # [heads, r, d]
    bias = None
    if linear.bias is not None:
        bias = (maps @ heads(linear.bias.to(maps.dtype), count).unsqueeze(-1)).flatten().to(dtype)
    return Linear(weight.flatten(0, 1).to(dtype), bias)
