"""What a rank costs: parameters and cached numbers per token of a slot, at every rank.

Biases count as parameters wherever they are stored; they take no part in FLOPs (`Cost.idle_*`).
At full rank a slot stays as it is and costs what it costs now: its projections may be low-rank
already, its heads narrower than those of the family, its keys and values cached as latents.
"""

from dataclasses import replace

from ..layer import MLP, Attention, Layer, Projection, rank_of
from ..multiply_adds import absorbed, multiplied, parts, raised_keys, weighted_values
from ..spectra import Cost


def has_bias(projection: Projection) -> int:
    """1 where a projection has a bias, else 0."""
    return int(projection.bias is not None)


def stored(*projections: Projection) -> tuple[int, int]:
    """Numbers that projections store as they are, and how many of them multiply no input."""
    whole = sum(p.parameters for p in projections)
    return whole, whole - sum(multiplied(part) for p in projections for part in parts(p))


def qk_cost(a: Attention, step: int = 1) -> Cost:
    """A rank of QK is one column of every query and key head.

    step: ranks come in multiples of it; 2 where rotary pairs stay whole.
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
        kv_dense=a.cached("k"),
        per_cached=a.n_q,
        cached_dense=a.n_q * a.qk_size + raised_keys(a),
        idle_per_rank=biases,
        idle_dense=idle,
    )


def ov_cost(a: Attention) -> Cost:
    """A rank of OV is one column of every value head, and one of every query head's part of the
    output projection.
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
        kv_dense=a.cached("v"),
        per_cached=a.n_q,
        cached_dense=weighted_values(a),
        idle_per_rank=a.n_kv * has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=idle - absorbed(a),
    )


def heads_cost(a: Attention) -> Cost:
    """A rank of heads is a whole group: a key and a value head, and the query heads and parts of
    the output projection that belong to them.
    """
    d_out, rows = a.o.weight.shape[0], {"q": a.group * a.qk_size, "k": a.qk_size, "v": a.v_size}
    own = [(getattr(a, name), size) for name, size in rows.items()]
    biases = sum(size * has_bias(p) for p, size in own)
    per_rank = sum(size * p.weight.shape[1] for p, size in own) + a.group * a.v_size * d_out
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
        cached_dense=a.n_q * a.qk_size + raised_keys(a) + weighted_values(a),
        idle_per_rank=biases,
        idle_fixed=fixed,
        idle_dense=idle - absorbed(a),
    )


def summed_ov_cost(a: Attention) -> Cost:
    """A rank of OV over all heads at once is one row of values for *every query head*, and one
    column of the output projection that they share.

    Every query head caches values of its own: n_q * rank numbers per token in place of n_kv * d_h.
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
    """A rank of the MLP is one hidden neuron."""
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
    """A rank of a factored matrix is one row of `down` and one column of `up`; the KV cache keeps
    its size, unless it holds the latents of this matrix.
    """
    projection, a = layer.matrices()[name], layer.attention
    d_out, d_in = projection.weight.shape
    dense, idle = stored(projection)
    fixed = d_out * has_bias(projection)
    cost = Cost(rank_of(projection), d_out + d_in, dense, fixed, idle_fixed=fixed, idle_dense=idle)
    if name == "kv_b":  # raises the latent of every cached token
        return replace(cost, recomputed=True, cached_dense=raised_keys(a))
    if name not in ("k", "v"):
        return cost
    if name in a.latent:
        return as_latent(cost, a, name)
    kv = a.cached(name)
    return replace(cost, kv_fixed=kv, kv_dense=kv)


def as_latent(cost: Cost, a: Attention, name: str) -> Cost:
    """The cost of keys or values ("k", "v") whose latent is cached: a rank is one cached number per
    token. Every later token multiplies the latent of keys by `up` again; of values, every query
    head weights the latents and multiplies their sum by its rows of `up`.
    """
    rows = getattr(a, name).weight.shape[0]
    cost = replace(cost, kv_per_rank=1, kv_fixed=0, kv_dense=a.cached(name), latent=True)
    if name == "k":
        return replace(cost, per_cached=rows, cached_dense=raised_keys(a))
    return replace(
        cost,
        per_cached=a.n_q,
        cached_dense=weighted_values(a),
        idle_per_rank=rows - a.n_q * a.v_size,
        idle_dense=cost.idle_dense - absorbed(a),
    )
