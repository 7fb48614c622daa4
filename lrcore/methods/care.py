"""CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head Latent Attention. Keys and values, all heads at once.

`W ~ W^b W^a` for K and V of every layer (eq. 4-5); at run time the cache holds the latents `W^a x`, r_K + r_V numbers per token instead of
2 n_kv d_h (KV parity, eq. 1). Queries, output projection and MLP stay as they are; biases stay with `W^b`. The paper repeats the weights
of a kv head over its group; that scales every singular value by the same root of the group size, so nothing is repeated here.

With `U S V^T = svd(W C)` the paper's `W^ = U_r S_r V_r^T C^{-1}` equals the projection `U_r U_r^T W`: C is never inverted, and U comes from
a matrix of n_kv d_h rows, never from a `d x d` decomposition. Ranks: CARE-U is the policy `uniform`, CARE-E `waterfill`, with budget `kv`.
"""

import torch
from torch import Tensor

from ..layer import Layer
from ..linalg import EPS, symmetric, whitened_svd
from ..options import Option
from ..statistics import Moments
from .factors import Factors
from .latents import JointLatent, LatentMatrix, joint_latent_cost, latent_cost

NEEDS = frozenset({("attn_in", "second")})
OPTIONS = (
    Option(
        "whitening",
        "covariance",
        "What W is multiplied by before the SVD: C (the paper), root (its square root, the optimum of the paper's eq. 3), or identity "
        "(the weight alone, TransMLA).",
        ("covariance", "root", "identity"),
    ),
    Option("shrinkage", 0.01, "alpha of C = (1 - alpha) S + alpha mean(diag S) I, S the second moment of the input.", low=0, high=1),
    Option("joint", False, "One latent for keys and values together, from the SVD of both weights stacked, as in MHA2MLA."),
)


def factor(layer: Layer, moments: Moments, whitening: str = "covariance", shrinkage: float = 0.01, joint: bool = False) -> Factors:
    """Solve K and V of one layer for all ranks. values are the singular values of `W C` (of `W C^{1/2}`, of `W`).

    joint: the slot is "kv" alone, W is K above V, and both are raised from the latent that the cache holds once.
    """
    a = layer.attention
    c = None if whitening == "identity" else shrunk(moments.second("attn_in"), shrinkage)
    solve = covariance_svd if whitening == "covariance" else whitened_svd
    if joint:
        up, values, down = split(*solve(torch.cat((a.k.weight, a.v.weight)), c))
        return {"kv": JointLatent(values, joint_latent_cost(layer), None, up, down)}
    solved = {name: split(*solve(getattr(a, name).weight, c)) for name in ("k", "v")}
    return {name: LatentMatrix(values, latent_cost(layer, name), None, name, up, down) for name, (up, values, down) in solved.items()}


def shrunk(second: Tensor, alpha: float) -> Tensor:
    """`C = (1 - alpha) S + alpha mean(diag S) I`, float64. second [d, d]; alpha in [0, 1]. An all-zero S becomes the identity."""
    second = symmetric(second)
    eye = torch.eye(len(second), dtype=second.dtype, device=second.device)
    level = float(second.diagonal().mean())
    return (1 - alpha) * second + alpha * level * eye if level > 0 else eye


def covariance_svd(weight: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 4 for every rank: `W^_r = up[:, :r] @ down[:r]` minimises `|(W - W^) C|_F`. Returns up, values, down.

    weight [out, in]; c [in, in] symmetric, may be singular. up [out, k] orthonormal, values [k] descending, down [k, in], k = min(out, in).
    By QR of `C W^T` and SVD of its small triangle, not by a Gram matrix: C weighs directions twice as strongly as its root does, so the
    squares of the values span more than float64 holds.
    """
    weight = weight.double()
    triangle = torch.linalg.qr(c @ weight.mT, mode="r").R  # [k, out]
    up, values, _ = torch.linalg.svd(triangle.mT, full_matrices=False)
    return up, values, up.mT @ weight


def split(up: Tensor, values: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 5: `S^{1/2}` on both sides, so `W^b = U S^{1/2}` and `W^a = S^{-1/2} U^T W = S^{1/2} V^T C^{-1}`."""
    scale = torch.where(values > EPS * values[0], values, 1.0).sqrt()  # directions that no token has stay unscaled
    return up * scale, values, down / scale.unsqueeze(-1)
