"""One decoder layer as frozen values: the input and output of each method.

Convention: row activations and `torch.nn.Linear` weights, `y = W x + b` with `W: [out, in]`. Heads
are stacked along the rows of the query, key and value weights and along the columns of the output
weight. Values hold tensors only; no model is needed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .forms import Form, Matrix, Sparse, SparseCodes, count, dense, memory_of, tensors_of


@dataclass(frozen=True, eq=False)
class Linear:
    """A dense projection. weight [out, in]; bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def parameters(self) -> int:
        return _stored_numbers(self)


@dataclass(frozen=True, eq=False)
class LowRank:
    """A factored projection `y = up (down x) + sparse x + bias`.

    down [r, in]; up [out, r], tensors or stored forms; bias [out] or None; sparse [out, in] or
    None. Several projections of a layer may share a `down` matrix, which is then stored and counted
    once.
    """

    down: Matrix
    up: Matrix
    bias: Tensor | None = None
    sparse: Sparse | None = None

    @property
    def weight(self) -> Tensor:
        """The dense matrix [out, in]: the product plus the sparse term."""
        product = dense(self.up) @ dense(self.down)
        return product if self.sparse is None else product + dense(self.sparse)

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def parameters(self) -> int:
        return _stored_numbers(self)


@dataclass(frozen=True, eq=False)
class Stored:
    """A projection `y = M x + bias` with a matrix [out, in] in a stored form, such as quantized.

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
        return _stored_numbers(self)


Projection = Linear | LowRank | Stored
Tables = Literal["halves", "neighbours", "once"]
# The dimension of a matrix to sum over for one value per hidden state (an entry of a head, or a
# neuron). A row of q, k, v, gate and up produces a state; a column of o and down reads a state.
ACROSS = {"q": 1, "k": 1, "v": 1, "o": 0, "gate": 1, "up": 1, "down": 0}
# Multi-head latent attention (DeepSeek-V2): projections to and from the latents of queries, and of
# keys and values. They are not in ACROSS because their rows are latents.
LATENT_MATRICES = ("q_a", "q_b", "kv_a", "kv_b")
# Projections of a mixer, such as linear attention or Mamba, that read its input
MIXER_INPUTS = ("in", *(f"in_{part}" for part in ("q", "k", "v", "z", "a", "b", "ba", "f", "g")))
# Activations of MLPs whose gates and ups are clamped, followed by their values:
CLAMPED = "clamped_swiglu"  # alpha and limit, as in gpt-oss: "clamped_swiglu:1.702:7.0"
LIMITED = "limited"  # function of the gate and limit, as in DeepSeek-V4: "limited:silu:7.0"


@dataclass(frozen=True, eq=False)
class RotaryChannel:
    """A decoupled rotary channel in addition to the heads (CARE, section 3.5).

    q [n_q * size, d]; k [size, r], which reads the first r numbers of the cached latent of k;
    q_bias [n_q * size], k_bias [size] or None.

    It adds `scale (R_t q x)^T (R_s k (k_down x'))` to the scores; all heads share the key.
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
        """Number of bias entries."""
        return sum(bias.numel() for bias in (self.q_bias, self.k_bias) if bias is not None)

    @property
    def parameters(self) -> int:
        return self.q.numel() + self.k.numel() + self.biases


@dataclass(frozen=True, eq=False)
class Attention:
    """Self-attention of a layer.

    q [n_q * qk_size, d], k [n_kv * qk_size, d], v [n_kv * v_size, d], o [d, n_q * v_size]. Query
    head i reads kv head i // group.
    scale: factor of the scores; independent of the rank.
    position: "rotary" rotates the pairs (j, j + head_size / 2) between projection and score; "none"
    covers absolute and learned positions, which act on the input. A partial rotary embedding holds
    the remaining columns in pairs of angle zero, in the layout of a full rotary head.
    rotary_pairs [n_kv, qk_size / 2]: the original index of each retained pair, -1 for a pair
    without positions; None if all pairs are retained.
    kept_heads [n_q]: the original index of each retained query head; None if all are retained.
    qk_norm: queries and keys are normalized over a head or over the full width before the rotation;
    qk_size then stays head_size.
    softcap c: scores become c tanh(score / c). window: the largest number of keys that a query
    attends to, if the attention applies the sliding window itself.
    frequencies [head_size / 2]: radians per position of the original pairs; None without rotary.
    tables: layout of a pair in the network's cos and sin tables: "halves", "neighbours" (adjacent
    columns), or "once" (one column for both).
    latent: "", "k", "v" or "kv": the cache holds `down x` of these projections instead of the
    states, if they are `LowRank`. A shared latent is cached once.
    summed: each query head has separate values, and a common output projection is applied to the
    sum of the head outputs; v is then [n_q * v_size, d] and o [d, v_size].
    channel: decoupled rotary channel, or None; it requires that k is a cached latent and that
    positions are rotary.
    is_native: the attention runs in the family's module of transformers, in which only the matrices
    are replaced.
    factors: projections of native attention by name, in forward order. In multi-head latent
    attention: "q" or "q_a" and "q_b", "kv_a" (to the cached latent and the key that all heads
    share), "kv_b" and "o"; the field q then holds the projection that produces queries, k holds
    kv_a and v holds kv_b. In other families: "q", "k", "v" and "o". "v" is missing if k also
    produces the values; v is then k. "k" and "v" are missing if the layer reads the cache of an
    earlier layer; both are then q. In a layer that was found by structure, all linear modules by
    their paths; the fields q, k, v and o then have no meaning.
    cache_size: cached numbers per token of native attention, 0 if the layer reads an earlier
    layer's cache.
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
    is_native: bool = False
    factors: Mapping[str, Projection] | None = None
    cache_size: int = 0

    @property
    def projections(self) -> Mapping[str, Projection]:
        """The projections by name, in forward order."""
        attention_projections = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        return attention_projections if self.factors is None else self.factors

    def with_projections(self, changed: Mapping[str, Projection]) -> "Attention":
        """Return a copy with some projections replaced; sizes do not change."""
        if self.factors is None:
            projections: dict[str, Any] = dict(changed)
            return replace(self, **projections)
        factors = {**self.factors, **changed}
        return replace(self, factors=factors, **projection_roles(factors))

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.n_q // self.n_kv

    @property
    def pair_frequencies(self) -> Tensor | None:
        """Radians per position of each pair of each kv head, [n_kv, qk_size / 2].

        0 for pairs without positions; None if the frequencies are unknown.
        """
        if self.position != "rotary" or self.frequencies is None:
            return None
        frequencies = self.frequencies.to(self.k.weight.device)
        if self.rotary_pairs is None:
            return frequencies.expand(self.n_kv, -1)
        pairs = self.rotary_pairs.long().to(frequencies.device)
        return torch.where(pairs < 0, 0, frequencies[pairs])

    @property
    def n_v(self) -> int:
        """Number of value heads: one per query head if they are summed, else one per kv head."""
        return self.n_q if self.summed else self.n_kv

    def cached_latent(self, name: str) -> LowRank | None:
        """Return the projection of keys or values ("k", "v") if the cache holds the latent, else
        None.
        """
        p = getattr(self, name)
        latent = name in self.latent and isinstance(p, LowRank) and p.sparse is None
        return p if latent else None

    def cached_size(self, name: str) -> int:
        """Return the cached numbers per token of keys or values ("k", "v"); both count a shared
        latent.
        """
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
        return self.cached_size("k") + self.cached_size("v")


def projection_roles(factors: Mapping[str, Projection]) -> dict[str, Any]:
    """Return the projections of native attention that serve as `q`, `k`, `v` and `o`."""
    candidates = {
        "q": ("q_b", "q"),
        "k": ("kv_a", "k", "q"),
        "v": ("kv_b", "v", "k", "q"),
        "o": ("o",),
    }
    # a layer that was found by structure has other names, or no matrix
    other = next(iter(factors.values()), Linear(torch.empty(0, 0, dtype=torch.float32)))
    return {
        role: next((factors[name] for name in names if name in factors), other)
        for role, names in candidates.items()
    }


@dataclass(frozen=True, eq=False)
class MLP:
    """down(act(gate x) * (up x)), or down(act(up x)) if gate is None.

    up, gate [d_f, d]; down [d, d_f].
    """

    up: Projection
    down: Projection
    gate: Projection | None = None
    activation: str = "silu"

    def matrices(self) -> dict[str, Projection]:
        """Return the projections by name, in forward order."""
        named = {"gate": self.gate, "up": self.up, "down": self.down}
        return {name: projection for name, projection in named.items() if projection is not None}


@dataclass(frozen=True, eq=False)
class Experts:
    """The routed experts of a layer, of equal shape.

    A token is routed to `active` experts. identities: number of further experts, after `mlps`,
    whose output is their input.
    """

    mlps: tuple[MLP, ...]
    active: int
    identities: int = 0


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: index, attention and MLP; mlp is None in a layer of experts.

    expert: the number of the expert if the layer stands for a single expert. Its MLP is then that
    of the expert, and it has no attention.
    """

    index: int
    attention: Attention
    mlp: MLP | None
    experts: Experts | None = None
    expert: int | None = None

    def of_expert(self, number: int) -> "Layer":
        """Return an expert as a layer with only an MLP."""
        assert self.experts is not None
        return replace(self, mlp=self.experts.mlps[number], experts=None, expert=number)

    def with_experts(self, mlps: Iterable[MLP]) -> "Layer":
        """Return a copy with other experts."""
        assert self.experts is not None
        return replace(self, experts=replace(self.experts, mlps=tuple(mlps)))

    @property
    def components(self) -> tuple[str, ...]:
        """Components that can be narrowed.

        "qk" is missing under a query-key norm, "ov" if heads are summed, and both in native
        attention. A single expert has only "mlp".
        """
        a, is_layer = self.attention, self.expert is None
        possible = {
            "qk": is_layer and a.qk_norm is None and not a.is_native,
            "ov": is_layer and not a.summed and not a.is_native,
            "mlp": self.mlp is not None,
        }
        return tuple(name for name, is_present in possible.items() if is_present)

    @property
    def structures(self) -> tuple[str, ...]:
        """Structures that can be removed: "heads" (groups of query heads that share a kv head) and
        "mlp" (neurons).

        "heads" is missing if there is only one group, if a norm spans all heads, if heads are
        summed, in native attention and in a single expert.
        """
        a = self.attention
        has_groups = a.n_kv > 1 and a.qk_norm != "width" and not a.summed and self.expert is None
        has_groups = has_groups and not a.is_native
        possible = {"heads": has_groups, "mlp": self.mlp is not None}
        return tuple(name for name, is_present in possible.items() if is_present)

    def matrices(self) -> dict[str, Projection]:
        """Return the projections by name, in forward order, without those of routed experts."""
        matrices = {**self.attention.projections} if self.expert is None else {}
        return matrices if self.mlp is None else matrices | self.mlp.matrices()

    def can_have_bias(self, name: str) -> bool:
        """Return whether a projection has a bias, or can have one.

        Only those of attention and MLP get one. A mixer sets its inputs at padding to zero, which a
        bias would undo, and a matrix that was found by structure may be that of a mixer.
        """
        is_known = name in ACROSS or name in LATENT_MATRICES
        return is_known or self.matrices()[name].bias is not None

    def projections_named(self, names: Collection[str]) -> list[Projection]:
        """Return the projections with these names, including those of all experts."""
        mlps = () if self.experts is None else self.experts.mlps
        by_module = [self.matrices(), *(mlp.matrices() for mlp in mlps)]
        return [
            projection
            for matrices in by_module
            for name, projection in matrices.items()
            if name in names
        ]

    def with_matrices(self, **changed: Projection) -> "Layer":
        """Return a copy with some projections replaced; sizes do not change."""
        attention_changes = {
            name: p for name, p in changed.items() if name in self.attention.projections
        }
        mlp_changes: dict[str, Any] = {
            name: p for name, p in changed.items() if name not in attention_changes
        }
        attention, mlp = self.attention.with_projections(attention_changes), self.mlp
        if mlp_changes:
            assert mlp is not None
            mlp = replace(mlp, **mlp_changes)
        return replace(self, attention=attention, mlp=mlp)

    @property
    def parameters(self) -> int:
        """Weights and biases of projections, routed experts and rotary channel, shared tensors
        once.
        """
        channel = self.attention.channel
        numbers = _stored_numbers(*self.matrices().values()) + (
            0 if channel is None else channel.parameters
        )
        return numbers + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Weights and biases of the routed experts."""
        mlps = () if self.experts is None else self.experts.mlps
        return sum(_stored_numbers(*mlp.matrices().values()) for mlp in mlps)


def same_matrix(a: Matrix, b: Matrix) -> bool:
    """Return True if two matrices hold the same tensors, so that they are stored once."""
    return memory_of(a) == memory_of(b)


def rank_of(projection: Projection) -> int:
    """Return the largest rank that the weight of a projection can have."""
    full = min(projection.weight.shape)
    plain = isinstance(projection, LowRank) and projection.sparse is None
    return min(full, projection.rank) if plain else full  # type: ignore[union-attr]


def _stored_numbers(*projections: Projection) -> int:
    """Return how many numbers the projections store together; shared tensors count once."""
    counts: dict[Any, int] = {}
    for p in projections:
        for part in (getattr(p, field.name) for field in fields(p)):
            if part is not None:
                tensor = part if isinstance(part, Tensor) else next(iter(tensors_of(part).values()))
                counts[tensor.data_ptr(), tensor.shape] = count(part)
    return sum(counts.values())


def heads(weight: Tensor, count: int) -> Tensor:
    """Split the rows of a query, key or value weight by head, [count * size, ...] -> [count, size,
    ...].
    """
    return weight.reshape(count, -1, *weight.shape[1:])


def output_heads(weight: Tensor, count: int) -> Tensor:
    """Split the columns of an output weight by head, [d, count * size] -> [count, d, size]."""
    return weight.reshape(weight.shape[0], count, -1).transpose(0, 1)


def merge_output_heads(weight: Tensor) -> Tensor:
    """Invert `output_heads`: [count, d, size] -> [d, count * size]."""
    return weight.transpose(0, 1).reshape(weight.shape[1], -1)


def map_rows(linear: Projection, maps: Tensor, dtype: torch.dtype | None = None) -> Linear:
    """Apply a small map to the state of each head: weight `T_h W_h`, bias `T_h b_h`.

    maps T [heads, r, size]; the weight of the result is [heads * r, d]. dtype: of the result, by
    default the dtype of the projection.
    """
    dtype = dtype or linear.weight.dtype
    count = maps.shape[0]
    weight = maps @ heads(linear.weight.to(maps.dtype), count)  # [heads, r, d]
    bias = None
    if linear.bias is not None:
        bias = (maps @ heads(linear.bias.to(maps.dtype), count).unsqueeze(-1)).flatten().to(dtype)
    return Linear(weight.flatten(0, 1).to(dtype), bias)


def gate_function(activation: str) -> str:
    """Return the function of transformers that an activation applies to gates."""
    name, *values = activation.split(":")
    return {CLAMPED: "silu", LIMITED: values[0] if values else ""}.get(name, activation)


def gated_states(
    activation: str, function: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor
) -> Tensor:
    """Return the hidden states of an MLP with gates g and ups u, [n, d_f]: `function(g) u`.

    CLAMPED and LIMITED clamp g from above and u on both sides. CLAMPED then returns
    `(u + 1) g sigmoid(alpha g)`. function: see `gate_function`.
    """
    name, *values = activation.split(":")
    if name not in (CLAMPED, LIMITED):
        return function(gate) * up
    limit = float(values[-1])
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    if name == LIMITED:
        return function(gate) * up
    return (up + 1) * gate * torch.sigmoid(float(values[0]) * gate)


def key_expansion_products(a: Attention) -> int:
    """Return the multiply-adds that expand the keys of a cached token from their latent.

    0 without a latent. In native multi-head latent attention this includes the values.
    """
    if a.factors is not None:
        expansion = a.factors.get("kv_b")
        return (
            0
            if expansion is None
            else sum(multiplied_numbers(matrix) for matrix in factor_matrices(expansion))
        )
    latent = a.cached_latent("k")
    return 0 if latent is None else count(latent.up)


def value_products(a: Attention) -> int:
    """Return the multiply-adds that weight the values of a cached token for all query heads.

    If a latent of values is cached and the up-projection is dense, the latent is weighted and the
    sum is expanded later. Otherwise the expansion of the values is included.
    """
    latent = a.cached_latent("v")
    if latent is None:
        return a.n_q * a.v_size
    is_dense = isinstance(latent.up, Tensor)
    return a.n_q * latent.rank if is_dense else a.n_q * a.v_size + count(latent.up)


def absorption_products(a: Attention) -> int:
    """Return the additional multiply-adds per token of the values' up-projection under a latent.

    With a dense up-projection, each query head expands its weighted sum of latents. Each number of
    the matrix is then multiplied once per query head of the group instead of once per token.
    """
    latent = a.cached_latent("v")
    if latent is None or not isinstance(latent.up, Tensor):
        return 0
    return a.n_q * a.v_size * latent.rank - latent.up.numel()


def factor_matrices(projection: Projection) -> list[Matrix]:
    """Return the matrices that multiply the input of a projection, one after another or added."""
    if isinstance(projection, Linear):
        return [projection.weight]
    if isinstance(projection, Stored):
        return [projection.form]
    factors = [projection.down, projection.up]
    return factors if projection.sparse is None else [*factors, projection.sparse]


def multiplied_numbers(matrix: Matrix) -> int:
    """Return how many numbers of a matrix multiply the input; positions of sparse entries do not
    count.
    """
    return matrix.values.numel() if isinstance(matrix, Sparse | SparseCodes) else count(matrix)
