"""What a rank costs: parameters and cached numbers per token of a slot, at every rank.

Biases count as parameters wherever they are stored; they take no part in FLOPs (`Cost.idle_*`).
"""

from ..layer import MLP, Attention, Layer, Projection
from ..spectra import Cost


def has_bias(projection: Projection) -> int:
    """1 where a projection has a bias, else 0."""
    return int(projection.bias is not None)


def qk_cost(a: Attention, step: int = 1) -> Cost:
    """A rank of QK is one column of every query and key head.

    step: ranks come in multiples of it; 2 where rotary pairs stay whole.
    """
    biases = a.n_q * has_bias(a.q) + a.n_kv * has_bias(a.k)
    per_rank = a.n_q * a.q.weight.shape[1] + a.n_kv * a.k.weight.shape[1] + biases
    return Cost(
        a.head_size,
        per_rank,
        per_rank * a.head_size,
        step=step,
        kv_per_rank=a.n_kv,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=biases,
        idle_dense=biases * a.head_size,
    )


def ov_cost(a: Attention) -> Cost:
    """A rank of OV is one column of every value head, and one of every query head's part of the
    output projection.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    per_rank = a.n_kv * (d + has_bias(a.v)) + a.n_q * d_out
    fixed = d_out * has_bias(a.o)
    return Cost(
        a.head_size,
        per_rank,
        per_rank * a.head_size + fixed,
        fixed,
        kv_per_rank=a.n_kv,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=a.n_kv * has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=a.n_kv * has_bias(a.v) * a.head_size + fixed,
    )


def summed_ov_cost(a: Attention) -> Cost:
    """A rank of OV over all heads at once is one row of values for *every query head*, and one
    column of the output projection that they share.

    Every query head caches values of its own: n_q * rank numbers per token in place of n_kv * d_h.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    per_rank = a.n_q * (d + has_bias(a.v)) + d_out
    fixed = d_out * has_bias(a.o)
    dense = a.v.parameters + a.o.parameters
    return Cost(
        d_out,
        per_rank,
        dense,
        fixed,
        kv_per_rank=a.n_q,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=a.n_q * has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=a.n_kv * a.head_size * has_bias(a.v) + fixed,
    )


def mlp_cost(m: MLP) -> Cost:
    """A rank of the MLP is one hidden neuron."""
    d_out, d_f = m.down.weight.shape
    rows = [p for p in (m.up, m.gate) if p is not None]
    per_rank = d_out + sum(p.weight.shape[1] + has_bias(p) for p in rows)
    fixed, biases = d_out * has_bias(m.down), sum(map(has_bias, rows))
    return Cost(
        d_f,
        per_rank,
        per_rank * d_f + fixed,
        fixed,
        idle_per_rank=biases,
        idle_fixed=fixed,
        idle_dense=biases * d_f + fixed,
    )


def matrix_cost(layer: Layer, name: str) -> Cost:
    """A rank of a factored matrix is one row of `down` and one column of `up`; the KV cache
    keeps its size.
    """
    projection = layer.matrices()[name]
    d_out, d_in = projection.weight.shape
    fixed = d_out * has_bias(projection)
    kv = layer.attention.n_kv * layer.attention.head_size if name in ("k", "v") else 0
    return Cost(
        min(d_out, d_in),
        d_out + d_in,
        d_out * d_in + fixed,
        fixed,
        kv_fixed=kv,
        kv_dense=kv,
        idle_fixed=fixed,
        idle_dense=fixed,
    )
