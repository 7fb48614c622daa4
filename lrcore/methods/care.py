"""CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head Latent Attention.

Keys and values become latents of all heads: `W ~ W^b W^a` for K and V of every layer (eq. 4-5). At
run time the cache holds the latents `W^a x`, r_K + r_V numbers per token instead of 2 n_kv d_h (KV
parity, eq. 1). Queries, output projection and MLP stay as they are; biases stay with `W^b`. The
paper repeats the weights of a kv head over its group, which multiplies every singular value by the
same number; so nothing is repeated here.

With `U S V^T = svd(W C)` the paper's `W^ = U_r S_r V_r^T C^{-1}` equals the projection
`U_r U_r^T W`: C is never inverted, and U comes from a matrix of n_kv d_h rows, not from a `d x d`
decomposition.

Ranks: CARE-U is the policy `uniform`, CARE-E `waterfill`, with budget `kv`. With group=4,
whitening=root and shrinkage=0 the method is Palu's grouped-head decomposition: one latent for every
four kv heads and a block-diagonal `W^b`, which multiplies less per cached number and has a larger
error at the same cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..layer import Layer, heads
from ..linalg import EPS, symmetric, whitened_svd
from ..options import option
from ..statistics import Moments
from ..threads import threads_for
from .factors import LayerFactors, pooled
from .latents import (
    GroupedLatent,
    JointLatent,
    LatentMatrix,
    grouped_latent_cost,
    joint_latent_cost,
    latent_cost,
)
from .method import Method

NEEDS = frozenset({("attn_in", "second")})


@dataclass(frozen=True)
class CareOptions:
    whitening: str = option(
        "covariance",
        "What W is multiplied by before the SVD: C (the paper), root (its square root, the "
        "optimum of the paper's eq. 3), or identity (the weight alone, TransMLA).",
        choices=("covariance", "root", "identity"),
    )
    shrinkage: float = option(
        0.01,
        "alpha of C = (1 - alpha) S + alpha mean(diag S) I, S the second moment of the input.",
        low=0,
        high=1,
    )
    joint: bool = option(
        False,
        "One latent for keys and values together, from the SVD of both weights stacked, as "
        "in MHA2MLA.",
    )
    group: int = option(
        0,
        "KV heads that share one latent; 0: all heads of the matrix (CARE). Palu has 4, with "
        "whitening=root.",
        low=0,
    )


DEFAULT = CareOptions()


def factor(layer: Layer, moments: Moments, options: CareOptions = DEFAULT) -> LayerFactors:
    """Solve K and V of one layer for all ranks.

    The loss curves are the singular values of `W C` (whitening=root: of `W C^{1/2}`; identity: of
    `W`). With joint the only slot is "kv": W is K stacked on V, and both are computed from one
    cached latent. With group every group of heads is solved on its own, and all have the same rank
    (Palu's grouped-head decomposition).

    Raises InputError where the kv heads do not divide into groups of that size, and for group with
    joint.
    """
    a, whitening = layer.attention, options.whitening
    c = None if whitening == "identity" else shrunk(moments.second("attn_in"), options.shrinkage)

    def solve(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if c is not None and whitening == "covariance":
            return split(*covariance_svd(weight, c))
        return split(*whitened_svd(weight, c))

    groups = count_groups(a.n_kv, options.group, options.joint)
    if options.joint:
        up, values, down = solve(torch.cat((a.k.weight, a.v.weight)))
        return {"kv": JointLatent(values, joint_latent_cost(layer), None, up, down)}
    if groups > 1:
        return {name: grouped(layer, name, groups, solve) for name in ("k", "v")}
    solved = {name: solve(getattr(a, name).weight) for name in ("k", "v")}
    costs = {name: latent_cost(layer, name) for name in solved}
    return {
        name: LatentMatrix(values[: costs[name].full], costs[name], None, name, up, down)
        for name, (up, values, down) in solved.items()
    }


def count_groups(n_kv: int, group: int, joint: bool) -> int:
    """Groups of kv heads in a matrix; 1 where all share a latent.

    Raises InputError where n_kv heads do not divide into groups of `group`, and for several groups
    with joint.
    """
    if group == 0 or group >= n_kv:
        return 1
    if joint:
        raise InputError(
            "Option joint gives all heads one latent; it does not go with groups of heads. Choose "
            "group=0 or joint=off."
        )
    if n_kv % group:
        sizes = ", ".join(str(size) for size in range(1, n_kv) if n_kv % size == 0)
        raise InputError(
            f"{n_kv} kv heads make no whole groups of {group}; sizes that do: {sizes}, or 0 for "
            "all heads together."
        )
    return n_kv // group


def grouped(
    layer: Layer, name: str, groups: int, solve: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
) -> GroupedLatent:
    """Palu's grouped-head decomposition (Chang et al., ICLR 2025): `svd(W_g C)` of the stacked
    heads of every group.

    solve: from a weight [rows, in] to up [rows, k], values [k] and down [k, in].
    """
    parts = [solve(weight) for weight in heads(layer.matrices()[name].weight, groups)]
    up, values, down = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return GroupedLatent(
        pooled(values), grouped_latent_cost(layer, name, groups), values, name, up, down
    )


def shrunk(second: Tensor, alpha: float) -> Tensor:
    """`C = (1 - alpha) S + alpha mean(diag S) I`, float64.

    second [d, d]; alpha in [0, 1]. An all-zero S becomes the identity.
    """
    second = symmetric(second)
    eye = torch.eye(len(second), dtype=second.dtype, device=second.device)
    level = float(second.diagonal().mean())
    return (1 - alpha) * second + alpha * level * eye if level > 0 else eye


def covariance_svd(weight: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 4 for every rank: `W^_r = up[:, :r] @ down[:r]` minimises `|(W - W^) C|_F`.

    weight [out, in]; c [in, in] symmetric, may be singular. Returns up [out, k] orthonormal, values
    [k] descending, down [k, in], k = min(out, in). By QR of `C W^T` and SVD of the triangular
    factor, not by a Gram matrix: the squares of the singular values of `W C` span more than float64
    resolves.
    """
    weight = weight.double()
    product = c @ weight.mT
    with threads_for(weight):
        triangle = torch.linalg.qr(product, mode="r").R  # [k, out]
        up, values, _ = torch.linalg.svd(triangle.mT, full_matrices=False)
    return up, values, up.mT @ weight


def split(up: Tensor, values: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 5: `S^{1/2}` on both sides, so `W^b = U S^{1/2}` and
    `W^a = S^{-1/2} U^T W = S^{1/2} V^T C^{-1}`.

    up [out, k], values [k], down [k, in] -> W^b, values and W^a in the same shapes.
    """
    # directions that no token has stay unscaled
    scale = torch.where(values > EPS * values[0], values, 1.0).sqrt()
    return up * scale, values, down / scale.unsqueeze(-1)


METHOD = Method(
    name="care",
    paper="CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head "
    "Latent Attention (ICLR 2026)",
    notes="Keys and values of all heads become one low-rank latent each, and the cache holds only "
    "the latents; queries, output projection and MLP stay as they are. Its ratios are shares of "
    "the KV cache. Policy uniform is CARE-U, waterfill CARE-E. group gives every few heads a "
    "latent of their own (Palu).",
    factor=factor,
    components=("k", "v"),
    needs=NEEDS,
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=CareOptions,
)
