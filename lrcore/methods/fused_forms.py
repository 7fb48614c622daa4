"""Alternative forms of the parts of `fused`: low-rank pairs, sparse codes and cached latents.

* Low-rank pairs are those of LatentLLM, in the metric of the centered inputs: queries with keys by
  `latentllm/joint.py`, the remaining matrices separately by `latentllm/local.py`, with the block
  identity in A. Heads, neurons and the KV cache keep their shapes.
* Sparse codes (lrcore/methods/codes.py) take the place of the pairs of gate and up, which share a
  dictionary. With twice as many outputs the dictionary costs half as much per output. Matrices with
  about as many outputs as inputs lose more as codes than as pairs.
* Cached latents of keys and values are the form under a budget of the KV cache; they are from this
  project, not from a paper. CARE (lrcore/methods/care.py) approximates the states of keys and
  values. The latents here minimize the loss of the scores and of the attention output: with L L^T
  the second moments of the factor that multiplies a state (the queries of its group; the output
  projection) and C the covariance of the input of the layer, the rank r part of
  `svd(L^T W C^{1/2})` minimizes `|L^T (W - W^) C^{1/2}|_F`. The block identity of LatentLLM saves
  r^2 numbers.

The lost mean moves into the bias; a projection without a bias gets one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..layers.layer import Attention, Layer, Linear, Projection, heads, output_heads
from ..layers.linalg import roots, whitened_svd
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from .codes import Coding, coded_matrices
from .costs import as_latent, stored
from .factors import Factor, LayerFactors, input_metric
from .grams import by_group, head_gram
from .latentllm import DEFAULT
from .latentllm.joint import joint_qk
from .latentllm.junction import nested
from .latentllm.local import StackedMatrices, stacked, stacked_cost
from .latents import with_latents
from .method import JOINT_GATE_UP

PAIR_JUNCTION = "right_identity"  # a refit solves `up` again, so `up` must be a plain matrix
# The smallest losses at 20 to 60 % were at two to three atoms per nonzero number; after 10 rounds,
# 60 rounds reduce them by less than a fifth.
CODING = Coding(atoms=3, rounds=10, is_orthogonal=False)
LATENT_JUNCTION = "right_identity"  # the cache holds `[I, R] x`, and `up` is a plain matrix


def pairs(
    layer: Layer, moments: Moments, with_codes: bool = False
) -> dict[str, Callable[[], Factor]]:
    """Return a function per slot that solves it: joint_qk (q and k if they are normalized), and
    each other matrix.

    with_codes: gate and up (or up, without a gate) are a dictionary and sparse codes. Matrices that
    the layer lacks, or that are not plain, have no slot.
    """
    matrices = layer.matrices()
    plain = [name for name, matrix in matrices.items() if isinstance(matrix, Linear)]
    joint = ("q", "k") if layer.attention.qk_norm is None and {"q", "k"} <= {*plain} else ()
    in_codes = tuple(name for name in ("gate", "up") if name in plain) if with_codes else ()

    def solve(name: str) -> Factor:
        if name == "joint_qk":
            metric = input_metric(layer, "q", moments)
            return joint_qk(layer.attention, *metric, PAIR_JUNCTION, DEFAULT.window)
        return stacked(layer, (name,), *input_metric(layer, name, moments), PAIR_JUNCTION)

    def solve_codes() -> Factor:
        return coded_matrices(layer, in_codes, *input_metric(layer, "up", moments), CODING)

    slots = ["joint_qk"] * bool(joint) + [name for name in plain if name not in joint + in_codes]
    solvers: dict[str, Callable[[], Factor]] = {name: partial(solve, name) for name in slots}
    if in_codes:
        solvers[JOINT_GATE_UP if len(in_codes) > 1 else in_codes[0]] = solve_codes
    return solvers


@dataclass(frozen=True, eq=False)
class CachedLatent(StackedMatrices):
    """K or V as a low-rank pair; the cache holds the latent `down x`."""

    def truncate(self, layer: Layer, rank: int) -> Layer:
        small = super().truncate(layer, rank)
        return small if rank >= self.cost.full else with_latents(small, self.names[0])


def cached_latents(layer: Layer, moments: Moments) -> LayerFactors:
    """Return slots latent_k and latent_v, if keys and values are plain matrices.

    An expert is a layer without attention and has no such slots.
    """
    a, matrices = layer.attention, layer.matrices()
    grams = {"k": query_gram, "v": output_map_gram}
    return {
        f"latent_{name}": latent(layer, name, gram(a, moments), moments)
        for name, gram in grams.items()
        if isinstance(matrices.get(name), Linear)
    }


def latent(layer: Layer, name: str, gram: Tensor | None, moments: Moments) -> CachedLatent:
    """Return the factor of the keys or values ("k", "v") of all heads for all ranks.

    gram [kv heads, size, size]: second moments of the factor that multiplies the state of a head;
    None for the identity.
    """
    old, a = layer.matrices()[name], layer.attention
    weight = old.weight.double()
    covariance, mean = moments.centered("attn_in"), moments.mean("attn_in")
    if gram is None:
        up, values, down = whitened_svd(weight, covariance)
    else:
        root, inverse = roots(gram)
        weighted = (root @ heads(weight, len(gram))).flatten(0, 1)  # [heads * size, d]
        up, values, down = whitened_svd(weighted, covariance)
        up = (inverse @ heads(up, len(gram))).flatten(0, 1)  # [heads * size, k]
    cost = as_latent(stacked_cost(layer, (name,), LATENT_JUNCTION, old.bias is None), a, name)
    cost = with_unchanged(cost, a.q if name == "k" else a.o)
    product = nested(up.unsqueeze(0), down.unsqueeze(0), values.unsqueeze(0), LATENT_JUNCTION)
    return CachedLatent(values[: cost.full], cost, None, (name,), product, mean)


def with_unchanged(cost: Cost, projection: Projection) -> Cost:
    """Return the cost plus that of the unchanged projection of the part.

    All forms of a part must have the same cost at full rank.
    """
    total, idle = stored(projection)
    return replace(
        cost,
        dense=cost.dense + total,
        fixed=cost.fixed + total,
        idle_dense=cost.idle_dense + idle,
        idle_fixed=cost.idle_fixed + idle,
    )


def query_gram(a: Attention, moments: Moments) -> Tensor | None:
    """Return E[q q^T] summed over the group of a key head, [n_kv, qk_size, qk_size], float64.

    With rotary, only its diagonal, averaged over the two columns of a pair, because columns are
    rotated. None if a norm is applied between the projection of the keys and the score.
    """
    if a.qk_norm is not None:
        return None
    if a.position != "rotary":
        return by_group(head_gram(a, "q", moments), a).sum(1)
    squares = by_group(moments.square("q_rotated").unflatten(0, (a.n_q, -1)), a).sum(1)
    pair_means = squares.unflatten(1, (2, -1)).mean(1)  # [n_kv, qk_size / 2]
    return torch.diag_embed(pair_means.repeat(1, 2).double())


def output_map_gram(a: Attention, moments: Moments) -> Tensor | None:
    """Return `W_o,i^T W_o,i` summed over the heads i that read a value head, [value heads, v_size,
    v_size], float64.
    """
    del moments
    out = output_heads(a.o.weight.double(), a.n_q)
    grams: Tensor = out.mT @ out
    return grams if a.summed else by_group(grams, a).sum(1)
