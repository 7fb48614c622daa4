"""Q with K, and V with O, factorized jointly for all heads (LatentLLM sections 4.1-4.2, appendices
E-G).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.forms import cast
from ...layers.layer import Attention, Layer, LowRank, Projection
from ...layers.linalg import pseudo_inverse
from ...layers.spectra import Cost
from ..costs import stored
from ..factors import moved_bias
from .hosvd import Pair, alternate, pair, side
from .junction import join, per_head_identity
from .local import factored_size

# The bias of a key head is mapped by a pseudo-inverse. Singular values below this fraction of the
# largest are not inverted, because the bias would overflow half precision.
MIN_MAP = 1e-3


@dataclass(frozen=True, eq=False)
class JointHeads:
    """Two projections, each with a common A for all heads and a B per head.

    kind "qk" or "vo": the left side is q or o, the right side k or v. pair: the eigenvectors of
    both sides, see hosvd.py. junction: the form in which A and B are stored, see junction.py. A
    rank r gives the larger side r directions and the smaller side the same fraction of its
    directions. The result of alternating depends on the rank, so `truncate` runs the rounds,
    starting from these eigenvectors.

    values: the bound `tail_l + tail_r` on the loss; the eigenvectors of `factor` attain at most
    this loss. per_head: whether an identity block is also omitted from each head of k or v, not
    only from A. mean [d]: input mean, which moves into the biases; None if the biases are
    unchanged.
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
        left_factors, right_factors = self._solved(rank)
        return (self._truncate_qk if self.kind == "qk" else self._truncate_vo)(
            layer, left_factors, right_factors
        )

    def _solved(self, rank: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return B by head and A of both sides after the rounds."""
        left_basis, right_basis = alternate(
            self.pair, *side_ranks(rank, self.pair.left_side.full, self.pair.right_side.full)
        )
        return self.pair.left_side.factors(left_basis), self.pair.right_side.factors(right_basis)

    def _truncate_qk(
        self,
        layer: Layer,
        left_factors: tuple[Tensor, Tensor],
        right_factors: tuple[Tensor, Tensor],
    ) -> Layer:
        a, dtype = layer.attention, layer.attention.q.weight.dtype
        q_bias, k_bias = (
            self._input_bias(old, *solved)
            for old, solved in ((a.q, left_factors), (a.k, right_factors))
        )
        if not self.per_head:
            return layer.with_matrices(
                q=self._stored(left_factors, q_bias, dtype),
                k=self._stored(right_factors, k_bias, dtype),
            )
        k_bias = None if k_bias is None else k_bias.double().unflatten(0, (a.n_kv, -1))
        k, maps = self._per_head(right_factors, k_bias, dtype)
        if k_bias is not None:
            # If J is nearly singular, the part of the bias outside its range is lost. This part
            # shifts all scores of a query equally, so it does not change the softmax.
            inverse = pseudo_inverse(maps, MIN_MAP)
            k_bias = (inverse @ k_bias.unsqueeze(-1)).flatten()
            k = replace(k, bias=k_bias.to(dtype))
        maps = maps.mT.repeat_interleave(a.group, 0)  # q . J k' = (J^T q) . k'
        if q_bias is not None:
            q_bias = q_bias.double().unflatten(0, (a.n_q, -1)).unsqueeze(-1)
            q_bias = (maps @ q_bias).flatten().to(dtype)
        return layer.with_matrices(
            q=self._stored((maps @ left_factors[0], left_factors[1]), q_bias, dtype), k=k
        )

    def _truncate_vo(
        self,
        layer: Layer,
        left_factors: tuple[Tensor, Tensor],
        right_factors: tuple[Tensor, Tensor],
    ) -> Layer:
        a = layer.attention
        if self.mean is None:
            return self._store_vo(layer, left_factors, right_factors, a.v.bias, a.o.bias)
        # eq. 193 without a bias of v: attention weights sum to 1, so it moves into the bias of o
        values = a.v.weight.double() @ self.mean + (0 if a.v.bias is None else a.v.bias.double())
        values = values.unflatten(0, (a.n_kv, -1)).repeat_interleave(a.group, 0).flatten()
        approximated = right_factors[0] @ (right_factors[1] @ self.mean)  # [n_kv, s]
        approximated = approximated.repeat_interleave(a.group, 0).flatten()
        shift = a.o.weight.double() @ values - left_factors[1].mT @ (
            left_factors[0].flatten(0, 1).mT @ approximated
        )
        return self._store_vo(layer, left_factors, right_factors, None, moved_bias(a.o, shift))

    def _store_vo(
        self,
        layer: Layer,
        left_factors: tuple[Tensor, Tensor],
        right_factors: tuple[Tensor, Tensor],
        v_bias: Tensor | None,
        o_bias: Tensor | None,
    ) -> Layer:
        """Return the layer with `W_o,i = (up_i down)^T` of left_factors (up, down) and
        `W_v = up down` of right_factors, under the junctions.
        """
        a, dtype = layer.attention, layer.attention.o.weight.dtype
        if self.per_head:
            v, maps = self._per_head(right_factors, None, dtype)  # v has no bias here
            left_factors = (
                maps.mT.repeat_interleave(a.group, 0) @ left_factors[0],
                left_factors[1],
            )
        else:
            v = self._stored(right_factors, v_bias, dtype)
        o = self._stored(
            (left_factors[1].mT.unsqueeze(0), left_factors[0].flatten(0, 1).mT), o_bias, dtype
        )
        return layer.with_matrices(v=v, o=o)

    def _input_bias(self, old: Projection, up: Tensor, down: Tensor) -> Tensor | None:
        """Return the bias of eq. 121-122, which is eq. 45 for each side:
        `b^ = b + (W - B A) mu`.
        """
        if self.mean is None:
            return old.bias
        return moved_bias(
            old, old.weight.double() @ self.mean - (up @ (down @ self.mean)).flatten()
        )

    def _stored(
        self, solved: tuple[Tensor, Tensor], bias: Tensor | None, dtype: torch.dtype
    ) -> LowRank:
        """Return the projection `up down`, the heads of up [heads, s, r] stacked, under the
        junction.
        """
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
        """Return a projection with an identity block in A and in each head of B, and maps J.

        Identity blocks are not stored. Head i of the exact projection is J_i [s, s] times head i of
        the returned projection; the caller applies J [heads, s, s] to the opposite side.
        """
        up, down = solved
        joined, stored_down = join(
            up.flatten(0, 1).unsqueeze(0),
            down.unsqueeze(0),
            up.new_ones(1, up.shape[2]),
            "right_identity",
        )
        assert isinstance(joined, Tensor)  # the product of a single head has a plain B
        maps, form = per_head_identity(joined.unflatten(0, up.shape[:2]), bias)
        return LowRank(cast(stored_down, dtype), cast(form, dtype)), maps


def side_ranks(rank: int, left_size: int, right_size: int) -> tuple[int, int]:
    """Return the ranks of two sides with left_size and right_size directions.

    The larger side has `rank`, the smaller side the same fraction, rounded up.
    """
    full = max(left_size, right_size)
    return -(-rank * left_size // full), -(-rank * right_size // full)


def _increments(values: Tensor, full: int) -> Tensor:
    """Return the increase of the sum of the eigenvalues of a side with each step of the common
    rank, [full].
    """
    ranks = torch.tensor([side_ranks(rank, len(values), full)[0] for rank in range(full + 1)])
    sums = torch.cat((values.new_zeros(1), values.cumsum(0)))[ranks.to(values.device)]
    return sums.diff().clamp_min(0)


def _joint_cost(
    a: Attention, kind: str, p: Pair, junction: str, per_head: bool, centered: bool
) -> Cost:
    """Return the cost of both sides: (r_l + r_r) (d + d_h n) numbers.

    Identity blocks in A save r_l^2 + r_r^2 numbers, and identity blocks in the heads of the right
    side save up to d_h^2 numbers per head (section 4.1).
    """
    left_projection, right_projection = (a.q, a.k) if kind == "qk" else (a.o, a.v)
    dense, idle = stored(left_projection, right_projection)
    size = a.qk_size if kind == "qk" else a.v_size
    fixed = sum(
        p.weight.shape[0] for p in (left_projection, right_projection) if p.bias is not None
    )
    if centered and kind == "qk":
        fixed = left_projection.weight.shape[0] + right_projection.weight.shape[0]
    elif centered:
        fixed = left_projection.weight.shape[0]  # the bias of v moves into that of o
    full = max(p.left_side.full, p.right_side.full)
    shapes = [sum(projection.weight.shape) for projection in (left_projection, right_projection)]

    def parameters(rank: int) -> int:
        ranks = side_ranks(rank, p.left_side.full, p.right_side.full)
        total = sum(
            factored_size(r, shape, 0, junction) for r, shape in zip(ranks, shapes, strict=True)
        )
        return total - (a.n_kv * size * min(ranks[1], size) if per_head else 0)

    kv = a.cached_size("k" if kind == "qk" else "v")
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
    left_side, right_side = p.left_side, p.right_side
    # Both identities of a head need spare columns: with heads wider than half of the model, the
    # cost would decrease with the rank.
    spare = 2 * right_side.coordinates.shape[1] <= right_side.lift.shape[1]
    per_head = per_head and junction == "right_identity" and spare
    full = max(left_side.full, right_side.full)
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
    """Return the factor of joint QK (algorithm 1): `G_i = P W_q,i^T W_k,i P`; with rotary, summed
    over the offsets up to `window` (eq. 181).

    metric: P^2 [d, d]. mean [d]: if given, the loss includes the biases (eq. 116-142), and metric
    is computed from the covariance; None for a loss without biases (eq. 13).
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
        if a.rotary_pairs is not None:  # each kv head has different pairs
            assert a.pair_frequencies is not None  # since the layer has frequencies
            frequencies_by_head = a.pair_frequencies.double().to(frequencies.device)
            rotations = torch.stack(
                [
                    rotary_offsets(head_frequencies, a.qk_size, window)
                    for head_frequencies in frequencies_by_head
                ],
                1,
            )
    return _joint(a, "qk", pair(q, k, rotations), junction, a.position == "none", mean)


def joint_vo(a: Attention, metric: Tensor | None, mean: Tensor | None, junction: str) -> JointHeads:
    """Return the factor of joint VO (eq. 184-188): `G_i = W_o,i W_v,i P`, metric = P^2 [d, d].

    mean [d]: the lost mean and the bias of v move into the bias of o (eq. 193).
    """
    o = side(a.o.weight.mT, a.n_q, None, None)
    v = side(a.v.weight, a.n_kv, metric, None)
    per_head = mean is not None or a.v.bias is None
    return _joint(a, "vo", pair(o, v, None), junction, per_head, mean)


def rotary_offsets(frequencies: Tensor, size: int, window: int) -> Tensor:
    """Return `Theta_delta` for keys 0, 1, ..., window positions before the query (eq. 174; later
    keys are masked), [window + 1, size, size].

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
