"""Costs of a slot at every rank: parameters and cached numbers per token.

Biases count as parameters but not in FLOPs (`Cost.idle_*`). At full rank a slot is unchanged and
has its current cost: the projections may already be low-rank, the heads narrower than in the
family, and the keys and values cached as latents.
"""

from dataclasses import replace

from ..layers.layer import (
    MLP,
    Attention,
    Layer,
    Projection,
    absorption_products,
    factor_matrices,
    key_expansion_products,
    multiplied_numbers,
    rank_of,
    value_products,
)
from ..layers.spectra import Cost


def has_bias(projection: Projection) -> int:
    """Return 1 if a projection has a bias, else 0."""
    return int(projection.bias is not None)


def stored(*projections: Projection) -> tuple[int, int]:
    """Return the count of stored numbers, and how many of them multiply no input."""
    total = sum(p.parameters for p in projections)
    return total, total - sum(
        multiplied_numbers(part) for p in projections for part in factor_matrices(p)
    )


def qk_cost(a: Attention, step: int = 1) -> Cost:
    """Return the cost of QK; a rank is a column of every query and key head.

    step: ranks are multiples of it; 2 if complete rotary pairs are selected.
    """
    biases = a.n_q * has_bias(a.q) + a.n_kv * has_bias(a.k)
    per_rank = a.n_q * a.q.weight.shape[1] + a.n_kv * a.k.weight.shape[1] + biases
    dense, idle = stored(a.q, a.k)
    return Cost(
        a.qk_size,
        per_rank,
        dense,
        step=step,
        kv_per_rank=a.n_kv,
        kv_dense=a.cached_size("k"),
        per_cached=a.n_q,
        cached_dense=a.n_q * a.qk_size + key_expansion_products(a),
        idle_per_rank=biases,
        idle_dense=idle,
    )


def ov_cost(a: Attention) -> Cost:
    """Return the cost of OV; a rank is a column of every value head and a column of the part of
    every query head in the output projection.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    dense, idle = stored(a.v, a.o)
    fixed = d_out * has_bias(a.o)
    return Cost(
        a.v_size,
        a.n_kv * (d + has_bias(a.v)) + a.n_q * d_out,
        dense,
        fixed,
        kv_per_rank=a.n_kv,
        kv_dense=a.cached_size("v"),
        per_cached=a.n_q,
        cached_dense=value_products(a),
        idle_per_rank=a.n_kv * has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=idle - absorption_products(a),
    )


def heads_cost(a: Attention) -> Cost:
    """Return the cost of heads; a rank is a complete group: a key and a value head, their query
    heads, and the parts of the output projection that read them.
    """
    d_out, rows = a.o.weight.shape[0], {"q": a.group * a.qk_size, "k": a.qk_size, "v": a.v_size}
    projections = [(getattr(a, name), size) for name, size in rows.items()]
    biases = sum(size * has_bias(p) for p, size in projections)
    per_rank = sum(size * p.weight.shape[1] for p, size in projections)
    per_rank += a.group * a.v_size * d_out
    dense, idle = stored(a.q, a.k, a.v, a.o)
    fixed = d_out * has_bias(a.o)
    return Cost(
        a.n_kv,
        per_rank + biases,
        dense,
        fixed,
        kv_per_rank=a.qk_size + a.v_size,
        kv_dense=a.kv_values,
        per_cached=a.group * (a.qk_size + a.v_size),
        cached_dense=a.n_q * a.qk_size + key_expansion_products(a) + value_products(a),
        idle_per_rank=biases,
        idle_fixed=fixed,
        idle_dense=idle - absorption_products(a),
    )


def summed_ov_cost(a: Attention) -> Cost:
    """Return the cost of OV over all heads jointly.

    A rank is a row of values for *every query head* and a column of the output projection that the
    heads share. Every query head caches separate values: n_q * rank numbers per token in place of
    n_kv * d_h.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    fixed = d_out * has_bias(a.o)
    return replace(
        ov_cost(a),
        full=d_out,
        per_rank=a.n_q * (d + has_bias(a.v)) + d_out,
        fixed=fixed,
        kv_per_rank=a.n_q,
        idle_per_rank=a.n_q * has_bias(a.v),
        idle_fixed=fixed,
    )


def mlp_cost(m: MLP) -> Cost:
    """Return the cost of the MLP; a rank is a hidden neuron."""
    d_out, d_f = m.down.weight.shape
    rows = [p for p in (m.up, m.gate) if p is not None]
    dense, idle = stored(*rows, m.down)
    fixed = d_out * has_bias(m.down)
    return Cost(
        d_f,
        d_out + sum(p.weight.shape[1] + has_bias(p) for p in rows),
        dense,
        fixed,
        idle_per_rank=sum(map(has_bias, rows)),
        idle_fixed=fixed,
        idle_dense=idle,
    )


def matrix_cost(layer: Layer, name: str) -> Cost:
    """Return the cost of a factored matrix; a rank is a row of `down` and a column of `up`.

    The size of the KV cache is constant unless it holds the latents of this matrix.
    """
    projection, a = layer.matrices()[name], layer.attention
    d_out, d_in = projection.weight.shape
    dense, idle = stored(projection)
    fixed = d_out * has_bias(projection)
    cost = Cost(rank_of(projection), d_out + d_in, dense, fixed, idle_fixed=fixed, idle_dense=idle)
    if name == "kv_b":  # expands the latent of every cached token
        return replace(cost, recomputed=True, cached_dense=key_expansion_products(a))
    if name not in ("k", "v"):
        return cost
    if name in a.latent:
        return as_latent(cost, a, name)
    kv = a.cached_size(name)
    return replace(cost, kv_fixed=kv, kv_dense=kv)


def as_latent(cost: Cost, a: Attention, name: str) -> Cost:
    """Return the cost of keys or values ("k", "v") whose latent is cached; a rank is a cached
    number per token.

    The latent of keys is multiplied by `up` again for every later token. For values, every query
    head weights the latents and multiplies their sum by its rows of `up`.
    """
    rows = getattr(a, name).weight.shape[0]
    cost = replace(cost, kv_per_rank=1, kv_fixed=0, kv_dense=a.cached_size(name), latent=True)
    if name == "k":
        return replace(cost, per_cached=rows, cached_dense=key_expansion_products(a))
    return replace(
        cost,
        per_cached=a.n_q,
        cached_dense=value_products(a),
        idle_per_rank=rows - a.n_q * a.v_size,
        idle_dense=cost.idle_dense - absorption_products(a),
    )
