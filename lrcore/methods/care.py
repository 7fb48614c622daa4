"""CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head Latent Attention.

Keys and values become latents of all heads: `W ~ W^b W^a` for K and V of each layer (eq. 4-5). At
run time the cache holds the latents `W^a x`, r_K + r_V numbers per token instead of 2 n_kv d_h (KV
parity, eq. 1). Queries, output projection and MLP are unchanged; biases belong to `W^b`. The paper
repeats the weights of a kv head over its group, which multiplies all singular values by the same
number; the code does not repeat them.

With `U S V^T = svd(W C)` the paper's `W^ = U_r S_r V_r^T C^{-1}` equals the projection
`U_r U_r^T W`: C is never inverted, and U comes from a matrix of n_kv d_h rows, not from a `d x d`
decomposition.

Ranks: CARE-U is the policy `uniform`, CARE-E `waterfill`, with budget `kv`. With group=4,
whitening=root and shrinkage=0 the method is the grouped-head decomposition of Palu: a latent for
each group of four kv heads and a block-diagonal `W^b`, with fewer multiplications per cached number
and a larger error at the same cache size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.layer import Layer, heads
from ..layers.linalg import EPS, damped, whitened_svd
from ..layers.statistics import Moments
from ..system.errors import InputError
from ..system.settings import option
from ..system.threads import threads_for
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
        "Metric of W in the SVD: covariance (C, the paper), root (C^{1/2}, the optimum of the "
        "paper's eq. 3), or identity (no metric, TransMLA).",
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
        "A joint latent of keys and values, from the SVD of the stacked weights, as in MHA2MLA.",
    )
    group: int = option(
        0,
        "Number of kv heads that share a latent; 0: all heads of the matrix (CARE). Palu has 4, "
        "with whitening=root.",
        low=0,
    )


DEFAULT = CareOptions()


def factor(layer: Layer, moments: Moments, options: CareOptions = DEFAULT) -> LayerFactors:
    """Return the factors of K and V of a layer for all ranks.

    The loss curves are the singular values of `W C` (whitening=root: of `W C^{1/2}`; identity: of
    `W`). With joint the only slot is "kv": W is K stacked on V, and both are computed from a joint
    cached latent. With group each group of heads is solved separately, and all have the same rank
    (Palu's grouped-head decomposition).

    Raises InputError if the kv heads do not divide into groups of that size, or for group with
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
    """Return the number of groups of kv heads in a matrix; 1 if all heads share a latent.

    Raises InputError if n_kv heads do not divide into groups of `group`, or for several groups with
    joint.
    """
    if group == 0 or group >= n_kv:
        return 1
    if joint:
        raise InputError(
            "Option joint gives all heads a joint latent, so it excludes groups of heads. Choose "
            "group=0 or joint=off."
        )
    if n_kv % group:
        divisors = ", ".join(str(size) for size in range(1, n_kv) if n_kv % size == 0)
        raise InputError(
            f"group={group} does not divide the {n_kv} kv heads; use one of {divisors}, or 0 for a "
            "single group of all heads."
        )
    return n_kv // group


def grouped(
    layer: Layer, name: str, groups: int, solve: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
) -> GroupedLatent:
    """Return Palu's grouped-head decomposition (Chang et al., ICLR 2025): `svd(W_g C)` of the
    stacked heads of each group.

    solve: from a weight [rows, in] to up [rows, k], values [k] and down [k, in].
    """
    parts = [solve(weight) for weight in heads(layer.matrices()[name].weight, groups)]
    up, values, down = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return GroupedLatent(
        pooled(values), grouped_latent_cost(layer, name, groups), values, name, up, down
    )


def shrunk(second: Tensor, alpha: float) -> Tensor:
    """Return `C = (1 - alpha) S + alpha mean(diag S) I`, float64.

    second [d, d]; alpha in [0, 1]. An all-zero S becomes the identity.
    """
    return damped(second, alpha, 1 - alpha)


def covariance_svd(weight: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the solution of eq. 4 for all ranks: `W^_r = up[:, :r] @ down[:r]` minimizes
    `|(W - W^) C|_F`.

    weight [out, in]; c [in, in] symmetric, may be singular. Returns up [out, k] orthonormal, values
    [k] descending, down [k, in], k = min(out, in). Computed by QR of `C W^T` and SVD of the
    triangular factor instead of a Gram matrix, because the squares of the singular values of `W C`
    span more than the precision of float64.
    """
    weight = weight.double()
    product = c @ weight.mT
    with threads_for(weight):
        triangle = torch.linalg.qr(product, mode="r").R  # [k, out]
        up, values, _ = torch.linalg.svd(triangle.mT, full_matrices=False)
    return up, values, up.mT @ weight


def split(up: Tensor, values: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors of eq. 5 with `S^{1/2}` on both sides: `W^b = U S^{1/2}` and
    `W^a = S^{-1/2} U^T W = S^{1/2} V^T C^{-1}`.

    up [out, k], values [k], down [k, in] -> W^b, values and W^a in the same shapes.
    """
    # directions without tokens are not scaled
    scale = torch.where(values > EPS * values[0], values, 1.0).sqrt()
    return up * scale, values, down / scale.unsqueeze(-1)


METHOD = Method(
    name="care",
    paper="CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head "
    "Latent Attention (ICLR 2026)",
    summary="Caches keys and values as low-rank latents; only the KV cache shrinks.",
    notes="The keys of all heads become a low-rank latent, and so do the values. The cache holds "
    "only the latents. Queries, output projection and MLP are unchanged. Ratios refer to the KV "
    "cache. Policy uniform is CARE-U, waterfill CARE-E. With group, each group of heads has a "
    "separate latent (Palu).",
    factor=factor,
    components=("k", "v"),
    needs=NEEDS,
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=CareOptions,
)
