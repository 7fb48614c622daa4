"""Q with K, and V with O, factored together for all heads (LatentLLM sections 4.1-4.2,
appendices E-G).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...forms import cast
from ...layer import Attention, Layer, LowRank, Projection
from ...linalg import pseudo_inverse
from ...spectra import Cost
from ..costs import stored
from ..factors import moved_bias
from .hosvd import Pair, alternate, pair, side
from .junction import join, per_head_identity
from .local import factored_size

# Singular values of the map of a key head below this share of the largest are not inverted for its
# bias, which would grow beyond what half precision holds.
LEAST_MAP = 1e-3


@dataclass(frozen=True, eq=False)
class JointHeads:
    """Two projections, each with one A for all heads and a B per head.

    kind "qk" or "vo": the left side is q or o, the right one k or v. A rank r gives the larger side
    r directions and the smaller one the same share of its own. The result of alternating depends on
    the rank, so `truncate` runs the rounds, starting from the eigenvectors that `factor` computed.

    values: the bound `tail_l + tail_r` on the loss; those eigenvectors lose no more. per_head:
    whether an identity block is left out of every head of k or v as well. mean [d]: where means go
    into the biases; None where the biases stay as they are.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    kind: str
    pair: Pair
    junction: str
    per_head: bool
    mean: Tensor | None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        left, right = self._solved(rank)
        return (self._truncate_qk if self.kind == "qk" else self._truncate_vo)(layer, left, right)

    def _solved(self, rank: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """B by head and A of both sides after the rounds."""
        left_basis, right_basis = alternate(
            self.pair, *side_ranks(rank, self.pair.left.full, self.pair.right.full)
        )
        return self.pair.left.factors(left_basis), self.pair.right.factors(right_basis)

    def _truncate_qk(
        self, layer: Layer, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
    ) -> Layer:
        a, dtype = layer.attention, layer.attention.q.weight.dtype
        q_bias, k_bias = (
            self._input_bias(old, *solved) for old, solved in ((a.q, left), (a.k, right))
        )
        if not self.per_head:
            return layer.with_matrices(
                q=self._stored(left, q_bias, dtype), k=self._stored(right, k_bias, dtype)
            )
        k_bias = None if k_bias is None else k_bias.double().unflatten(0, (a.n_kv, -1))
        k, maps = self._per_head(right, k_bias, dtype)
        if k_bias is not None:
            # where J is singular, or close to it, the part of the bias outside its range is lost:
            # it shifts all scores of a query alike, and softmax is invariant to that
            inverse = pseudo_inverse(maps, LEAST_MAP)
            k_bias = (inverse @ k_bias.unsqueeze(-1)).flatten()
            k = replace(k, bias=k_bias.to(dtype))
        maps = maps.mT.repeat_interleave(a.group, 0)  # q . J k' = (J^T q) . k'
        if q_bias is not None:
            q_bias = q_bias.double().unflatten(0, (a.n_q, -1)).unsqueeze(-1)
            q_bias = (maps @ q_bias).flatten().to(dtype)
        return layer.with_matrices(q=self._stored((maps @ left[0], left[1]), q_bias, dtype), k=k)

    def _truncate_vo(
        self, layer: Layer, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
    ) -> Layer:
        a = layer.attention
        if self.mean is None:
            return self._store_vo(layer, left, right, a.v.bias, a.o.bias)
        # eq. 193 with no bias in v: attention weights sum to one, so the bias of o takes all of it
        values = a.v.weight.double() @ self.mean + (0 if a.v.bias is None else a.v.bias.double())
        values = values.unflatten(0, (a.n_kv, -1)).repeat_interleave(a.group, 0).flatten()
        kept = right[0] @ (right[1] @ self.mean)  # [n_kv, s]
        kept = kept.repeat_interleave(a.group, 0).flatten()
        lost = a.o.weight.double() @ values - left[1].mT @ (left[0].flatten(0, 1).mT @ kept)
        return self._store_vo(layer, left, right, None, moved_bias(a.o, lost))

    def _store_vo(
        self,
        layer: Layer,
        left: tuple[Tensor, Tensor],
        right: tuple[Tensor, Tensor],
        v_bias: Tensor | None,
        o_bias: Tensor | None,
    ) -> Layer:
        """The layer with `W_o,i = (up_i down)^T` of left (up, down) and `W_v = up down` of
        right, under the junctions.
        """
        a, dtype = layer.attention, layer.attention.o.weight.dtype
        if self.per_head:
            v, maps = self._per_head(right, None, dtype)  # v has no bias here
            left = (maps.mT.repeat_interleave(a.group, 0) @ left[0], left[1])
        else:
            v = self._stored(right, v_bias, dtype)
        o = self._stored((left[1].mT.unsqueeze(0), left[0].flatten(0, 1).mT), o_bias, dtype)
        return layer.with_matrices(v=v, o=o)

    def _input_bias(self, old: Projection, up: Tensor, down: Tensor) -> Tensor | None:
        """eq. 121-122, which is eq. 45 for each side: `b^ = b + (W - B A) mu`."""
        if self.mean is None:
            return old.bias
        return moved_bias(
            old, old.weight.double() @ self.mean - (up @ (down @ self.mean)).flatten()
        )

    def _stored(
        self, solved: tuple[Tensor, Tensor], bias: Tensor | None, dtype: torch.dtype
    ) -> LowRank:
        """The projection `up down`, the heads of up [heads, s, r] stacked, under the junction."""
        up, down = solved[0].flatten(0, 1), solved[1]
        scale = up.norm(dim=0)
        up = up / torch.where(scale > 0, scale, 1.0)
        down = down * torch.where(scale > 0, scale, 1.0).unsqueeze(1)
        stored_up, stored_down = join(
            up.unsqueeze(0), down.unsqueeze(0), scale.unsqueeze(0), self.junction
        )
        return LowRank(cast(stored_down, dtype), cast(stored_up, dtype), bias)

    def _per_head(
        self, solved: tuple[Tensor, Tensor], bias: Tensor | None, dtype: torch.dtype
    ) -> tuple[LowRank, Tensor]:
        """The projection without both identity blocks, that of the shared A and one in every head's
        B, and the maps J [heads, s, s] that the heads are left to be multiplied by.
        """
        up, down = solved
        joined, stored_down = join(
            up.flatten(0, 1).unsqueeze(0),
            down.unsqueeze(0),
            up.new_ones(1, up.shape[2]),
            "right_identity",
        )
        assert isinstance(joined, Tensor)  # of one head, it has no form
        maps, form = per_head_identity(joined.unflatten(0, up.shape[:2]), bias)
        return LowRank(cast(stored_down, dtype), cast(form, dtype)), maps


def side_ranks(rank: int, left: int, right: int) -> tuple[int, int]:
    """The ranks of two sides of left and right directions: the larger side keeps `rank`, the
    smaller one the same share, rounded up.
    """
    full = max(left, right)
    return -(-rank * left // full), -(-rank * right // full)


def _increments(values: Tensor, full: int) -> Tensor:
    """What each step of the common rank adds of one side's eigenvalues, [full]."""
    ranks = torch.tensor([side_ranks(rank, len(values), full)[0] for rank in range(full + 1)])
    sums = torch.cat((values.new_zeros(1), values.cumsum(0)))[ranks.to(values.device)]
    return sums.diff().clamp_min(0)


def _joint_cost(
    a: Attention, kind: str, p: Pair, junction: str, per_head: bool, centred: bool
) -> Cost:
    """(r_l + r_r) (d + d_h n) numbers; with block identities r_l^2 + r_r^2 fewer, and d_h^2 fewer
    per head where every head has one (section 4.1).
    """
    left, right = (a.q, a.k) if kind == "qk" else (a.o, a.v)
    dense, idle = stored(left, right)
    size = a.qk_size if kind == "qk" else a.v_size
    fixed = sum(p.weight.shape[0] for p in (left, right) if p.bias is not None)
    if centred and kind == "qk":
        fixed = left.weight.shape[0] + right.weight.shape[0]
    elif centred:
        fixed = left.weight.shape[0]  # o takes the bias of v over
    full = max(p.left.full, p.right.full)
    shapes = [sum(projection.weight.shape) for projection in (left, right)]

    def parameters(rank: int) -> int:
        ranks = side_ranks(rank, p.left.full, p.right.full)
        total = sum(
            factored_size(r, shape, 0, junction) for r, shape in zip(ranks, shapes, strict=True)
        )
        return total - (a.n_kv * size * min(ranks[1], size) if per_head else 0)

    kv = a.cached("k" if kind == "qk" else "v")
    return Cost(
        full,
        sum(shapes),
        dense,
        fixed,
        kv_fixed=kv,
        kv_dense=kv,
        curve=tuple(parameters(rank) for rank in range(1, full)),
        idle_fixed=fixed,
        idle_dense=idle,
    )


def _joint(
    a: Attention, kind: str, p: Pair, junction: str, per_head: bool, mean: Tensor | None
) -> JointHeads:
    left, right = p.left, p.right
    # Both identities in a head need columns to spare: with heads wider than half of the model,
    # the cost would fall where the rank grows.
    spare = 2 * right.coordinates.shape[1] <= right.lift.shape[1]
    per_head = per_head and junction == "right_identity" and spare
    full = max(left.full, right.full)
    values = (_increments(p.left_values, full) + _increments(p.right_values, full)).sqrt()
    return JointHeads(
        values,
        _joint_cost(a, kind, p, junction, per_head, mean is not None),
        None,
        kind,
        p,
        junction,
        per_head,
        mean,
    )


def joint_qk(
    a: Attention, metric: Tensor | None, mean: Tensor | None, junction: str, window: int
) -> JointHeads:
    """Joint QK (algorithm 1): `G_i = P W_q,i^T W_k,i P`; with rotary, summed over the offsets up to
    `window` (eq. 181).

    metric = P^2 [d, d]. mean [d]: the biases take part (eq. 116-142), and metric is that of the
    covariance; None: they do not (eq. 13).
    """

    def mean_state(projection: Projection) -> Tensor | None:
        if mean is None:
            return None
        bias = 0 if projection.bias is None else projection.bias.double()
        return projection.weight.double() @ mean + bias

    q, k = (side(p.weight, n, metric, mean_state(p)) for p, n in ((a.q, a.n_q), (a.k, a.n_kv)))
    rotations = None
    if a.frequencies is not None and window:
        frequencies = a.frequencies.double().to(q.lift.device)
        rotations = rotary_offsets(frequencies, a.head_size, window)
        if a.rotary_pairs is not None:  # every kv head has kept pairs of its own
            assert a.turning is not None  # as there are frequencies
            kept = a.turning.double().to(frequencies.device)
            rotations = torch.stack([rotary_offsets(own, a.qk_size, window) for own in kept], 1)
    return _joint(a, "qk", pair(q, k, rotations), junction, a.position == "none", mean)


def joint_vo(a: Attention, metric: Tensor | None, mean: Tensor | None, junction: str) -> JointHeads:
    """Joint VO (eq. 184-188): `G_i = W_o,i W_v,i P`, metric = P^2 [d, d].

    mean [d]: what is lost of the mean, and the bias of v, go into the bias of o (eq. 193).
    """
    o = side(a.o.weight.mT, a.n_q, None, None)
    v = side(a.v.weight, a.n_kv, metric, None)
    per_head = mean is not None or a.v.bias is None
    return _joint(a, "vo", pair(o, v, None), junction, per_head, mean)


def rotary_offsets(frequencies: Tensor, size: int, window: int) -> Tensor:
    """`Theta_delta` for keys 0, 1, ..., window positions before the query (eq. 174; later keys are
    masked), [window + 1, size, size].

    frequencies [p]: radians per position of the pairs (j, j + p); columns from 2 p on are not
    rotated.
    """
    pairs, device, dtype = len(frequencies), frequencies.device, frequencies.dtype
    rotations = torch.eye(size, dtype=dtype, device=device).repeat(window + 1, 1, 1)
    offsets = torch.arange(window + 1, dtype=dtype, device=device)
    angle = -offsets.unsqueeze(1) * frequencies  # [window + 1, p]
    j = torch.arange(pairs, device=device)
    rotations[:, j, j] = rotations[:, j + pairs, j + pairs] = angle.cos()
    rotations[:, j + pairs, j] = angle.sin()
    rotations[:, j, j + pairs] = -angle.sin()
    return rotations
