"""Keys and values as cached latents in the metric of what reads them: a form that `fused` has under
a budget of the KV cache. Ours; in no paper.

CARE (lrcore/methods/care.py) approximates the states of keys and values. A latent here loses least
of the scores and of the attention output: with L L^T the second moments of what multiplies a state
(the queries of its group; the output projection) and C the covariance of the layer's input, the
rank r part of `svd(L^T W C^{1/2})` minimises `|L^T (W - W^) C^{1/2}|_F`. What is lost of the mean
goes into the bias, and the block identity of LatentLLM saves r^2 numbers.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layer import Attention, Layer, Linear, Projection, heads, output_heads
from ..linalg import roots, whitened_svd
from ..spectra import Cost
from ..statistics import Moments
from .costs import as_latent, stored
from .factors import LayerFactors
from .grams import by_group, head_gram
from .latentllm.junction import nested
from .latentllm.local import StackedMatrices, stacked_cost
from .latents import with_latents

JUNCTION = "right_identity"  # what is cached is then `[I, R] x`, and `up` stays plain


@dataclass(frozen=True, eq=False)
class CachedLatent(StackedMatrices):
    """K or V as a low-rank pair whose latent `down x` the cache holds."""

    def truncate(self, layer: Layer, rank: int) -> Layer:
        small = super().truncate(layer, rank)
        return small if rank >= self.cost.full else with_latents(small, self.names[0])


def cached_latents(layer: Layer, moments: Moments) -> LayerFactors:
    """Slots latent_k and latent_v, as far as keys and values are plain matrices; none of an expert,
    which is a layer without attention.
    """
    a, matrices = layer.attention, layer.matrices()
    grams = {"k": query_gram, "v": output_map_gram}
    return {
        f"latent_{name}": latent(layer, name, gram(a, moments), moments)
        for name, gram in grams.items()
        if isinstance(matrices.get(name), Linear)
    }


def latent(layer: Layer, name: str, gram: Tensor | None, moments: Moments) -> CachedLatent:
    """Keys or values ("k", "v") of all heads for all ranks.

    gram [kv heads, size, size]: second moments of what multiplies the state of a head; None for the
    identity.
    """
    old, a = layer.matrices()[name], layer.attention
    weight = old.weight.double()
    covariance, mean = moments.centred("attn_in"), moments.mean("attn_in")
    if gram is None:
        up, values, down = whitened_svd(weight, covariance)
    else:
        root, inverse = roots(gram)
        measured = (root @ heads(weight, len(gram))).flatten(0, 1)
        up, values, down = whitened_svd(measured, covariance)
        up = (inverse @ heads(up, len(gram))).flatten(0, 1)
    cost = as_latent(stacked_cost(layer, (name,), JUNCTION, old.bias is None), a, name)
    cost = with_rest(cost, a.q if name == "k" else a.o)
    product = nested(up.unsqueeze(0), down.unsqueeze(0), values.unsqueeze(0), JUNCTION)
    return CachedLatent(values[: cost.full], cost, None, (name,), product, mean)


def with_rest(cost: Cost, rest: Projection) -> Cost:
    """The cost with that of the other projection of the part, which stays as it is: every form of a
    part costs the same at full rank.
    """
    whole, idle = stored(rest)
    return replace(
        cost,
        dense=cost.dense + whole,
        fixed=cost.fixed + whole,
        idle_dense=cost.idle_dense + idle,
        idle_fixed=cost.idle_fixed + idle,
    )


def query_gram(a: Attention, moments: Moments) -> Tensor | None:
    """E[q q^T] summed over the group of a key head, [n_kv, qk_size, qk_size], float64; with rotary
    its diagonal, as columns are turned, the mean of the two of a pair. None where a norm stands
    between the projection of the keys and the score.
    """
    if a.qk_norm is not None:
        return None
    if a.position != "rotary":
        return by_group(head_gram(a, "q", moments), a).sum(1)
    squares = by_group(moments.square("q_rotated").unflatten(0, (a.n_q, -1)), a).sum(1)
    pairs = squares.unflatten(1, (2, -1)).mean(1)
    return torch.diag_embed(pairs.repeat(1, 2).double())


def output_map_gram(a: Attention, moments: Moments) -> Tensor | None:
    """`W_o,i^T W_o,i` summed over the heads i that read a value head, [value heads, v_size,
    v_size], float64.
    """
    del moments
    out = output_heads(a.o.weight.double(), a.n_q)
    grams: Tensor = out.mT @ out
    return grams if a.summed else by_group(grams, a).sum(1)
