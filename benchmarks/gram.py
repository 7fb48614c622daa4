"""Gram-space formulas against the `d x d` formulas of the papers, on a random layer."""

import torch

from lrcore.layers.layer import MLP, Attention, Layer, Linear, heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import Moments
from lrcore.methods import a3 as a3_method
from lrcore.methods import modegpt as modegpt_method
from lrcore.methods import truncate

from .machine import machine
from .report import log, table, write_section
from .timing import median_seconds


def random_llama_layer(
    d: int = 1024, d_f: int = 2816, n_q: int = 16, n_kv: int = 8, tokens: int = 6000
) -> tuple[Layer, Moments]:
    """Return a Llama layer with random weights and the moments of random, correlated inputs."""
    g = torch.Generator().manual_seed(0)
    size = d // n_q

    def linear(out: int, inp: int) -> Linear:
        return Linear(torch.randn(out, inp, generator=g) / inp**0.5)

    attention = Attention(
        q=linear(n_q * size, d),
        k=linear(n_kv * size, d),
        v=linear(n_kv * size, d),
        o=linear(d, n_q * size),
        n_q=n_q,
        n_kv=n_kv,
        head_size=size,
        qk_size=size,
        v_size=size,
        scale=size**-0.5,
        position="none",
    )
    layer = Layer(0, attention, MLP(up=linear(d_f, d), gate=linear(d_f, d), down=linear(d, d_f)))
    values = {}
    for tap, width in {"attn_in": d, "attn_out": n_q * size, "mlp_hidden": d_f}.items():
        x = torch.randn(tokens, width, generator=g) @ (
            torch.randn(width, width, generator=g) / width**0.5
        )
        values[tap, "second"], values[tap, "mean"] = (x.T @ x).double() / tokens, x.double().mean(0)
    for name, count in (("q", n_q), ("k", n_kv)):
        states = (
            heads(getattr(attention, name).weight.double(), count) @ values["attn_in", "second"]
        )
        squares = (
            (states * heads(getattr(attention, name).weight.double(), count)).sum(-1).flatten()
        )
        values[f"{name}_rotated", "square"] = squares
    return layer, Moments(values, tokens)


def literal_a3(layer: Layer, moments: Moments, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the QK and OV products of group 0 by A3 for GQA without rotary as printed: `d x d`
    roots and stacked `d x d` SVDs.
    """
    a = layer.attention
    root, inverse = roots(moments.second("attn_in"))
    wq, wk, wv = (
        heads(p.weight.double(), n) for p, n in ((a.q, a.n_q), (a.k, a.n_kv), (a.v, a.n_kv))
    )
    out = output_heads(a.o.weight.double(), a.n_q)
    products = []
    for g in range(a.n_kv):
        group = range(g * a.group, (g + 1) * a.group)
        stacked = torch.cat([root @ wq[i].T @ wk[g] @ root for i in group])  # [group * d, d]
        u, s, vt = torch.linalg.svd(stacked, full_matrices=False)
        qk = (u[:, :rank] * s[:rank]) @ vt[:rank] @ inverse
        stacked = torch.cat([root @ wv[g].T @ out[i].T for i in group], 1)  # [d, group * d]
        u, s, vt = torch.linalg.svd(stacked, full_matrices=False)
        ov = inverse @ (u[:, :rank] * s[:rank]) @ vt[:rank]
        if g == 0:
            products = [inverse @ qk[: root.shape[0]], ov[:, : root.shape[0]]]
    second_root, _ = roots(moments.second("mlp_hidden"))
    ((second_root**2).sum(0) * (layer.mlp.down.weight.double() ** 2).sum(0)).sort(descending=True)
    return products[0], products[1]


def gram_a3(layer: Layer, moments: Moments, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same products by `factor` and `truncate`."""
    factors = a3_method.factor(layer, moments)
    b = truncate(
        layer, factors, {"qk": rank, "ov": rank, "mlp": layer.mlp.down.weight.shape[1] // 2}
    ).attention
    q, k = heads(b.q.weight.double(), b.n_q)[0], heads(b.k.weight.double(), b.n_kv)[0]
    return q.T @ k, heads(b.v.weight.double(), b.n_kv)[0].T @ output_heads(
        b.o.weight.double(), b.n_q
    )[0].T


def literal_modegpt(layer: Layer, moments: Moments, keep: int) -> torch.Tensor:
    """Return the down projection by MoDeGPT as printed: a `d x d` root for QK and VO, inverse and
    pseudo-inverse for the MLP.
    """
    a = layer.attention
    root, _ = roots(moments.second("attn_in"))
    for projection, count in ((a.q, a.n_q), (a.k, a.n_kv)):
        for weight in heads(projection.weight.double(), count):
            (root @ weight.T).norm(dim=0)
    for g in range(a.n_kv):
        torch.linalg.svd(root @ heads(a.v.weight.double(), a.n_kv)[g].T, full_matrices=False)
    gram = moments.second("mlp_hidden") * moments.tokens
    leverage = (gram @ torch.linalg.inv(gram + torch.eye(len(gram), dtype=gram.dtype))).diagonal()
    retained = leverage.topk(keep).indices.sort().values
    return (
        layer.mlp.down.weight.double()
        @ gram[:, retained]
        @ torch.linalg.pinv(gram[retained][:, retained], hermitian=True)
    )


def gram_modegpt(layer: Layer, moments: Moments, keep: int) -> torch.Tensor:
    """Return the same down projection by `factor` and `truncate`."""
    factors = modegpt_method.factor(layer, moments)
    truncated = truncate(layer, factors, {"qk": 32, "ov": 32, "mlp": keep})
    order = factors["mlp"].order[:keep].sort().indices
    return truncated.mlp.down.weight.double()[:, order]


def gram(models: list[str]) -> None:
    """Time both formulas on a layer with random weights."""
    layer, moments = random_llama_layer()
    rows = []
    for name, literal, gram_space, rank in (
        ("a3", literal_a3, gram_a3, 32),
        ("modegpt", literal_modegpt, gram_modegpt, 1408),
    ):
        slow, quick = literal(layer, moments, rank), gram_space(layer, moments, rank)
        pairs = zip(slow, quick, strict=True) if isinstance(slow, tuple) else [(slow, quick)]
        gap = max(float((x - y).norm() / x.norm()) for x, y in pairs)
        slow_s = median_seconds(lambda f=literal, r=rank: f(layer, moments, r), 1)  # minutes
        quick_s = median_seconds(lambda f=gram_space, r=rank: f(layer, moments, r), 3)
        rows.append(
            [name, f"{slow_s:.2f}", f"{quick_s:.2f}", f"{slow_s / quick_s:.1f}", f"{gap:.1e}"]
        )
        log(f"gram {rows[-1]}")
    header = [
        "method",
        "`d x d` formulas, s",
        "`factor` + `truncate`, s",
        "ratio",
        "largest relative difference of the result",
    ]
    text = f"One layer, d 1024, d_f 2816, 16 query and 8 kv heads, no rotary; {machine()}."
    write_section("gram", f"{text}\n\n{table(header, rows)}")
