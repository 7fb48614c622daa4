"""TransMLA against its definition on samples, token by token."""

from dataclasses import replace

import pytest
import torch
from through_caches import held, in_pieces
from toy_layer import apply, moments_of
from transformers import DynamicCache

import lrcore
from lrcore.layers.layer import LowRank
from lrcore.methods import METHODS, transmla
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import measure
from lrcore.models.stream import LayerStream
from lrcore.system.errors import InputError

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
ROW = METHODS["transmla"]


def write_at_rank(small, layer, factor, rank):
    """Write the layer at a rank, including the highest, into a network."""
    factor = replace(factor, cost=replace(factor.cost, full=10**6))
    write_layer(small, factor.truncate(layer, rank))


def converted(network, rank, **options):
    small, stream, chosen = clone(network), LayerStream(network, TOKENS), ROW.choose(options)
    for index in range(network.config.num_hidden_layers):
        layer = read_layer(small, index)
        factor = ROW.factor(layer, stream.run(index, ROW.needs), chosen)["kv"]
        write_at_rank(small, layer, factor, rank or len(factor.values))
    return small


@torch.inference_mode()
def logits(network, tokens=TOKENS, **kwargs):
    return network(tokens, **kwargs).logits


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def test_full_rank_with_all_axes_gives_the_dense_logits(request, folder: str) -> None:
    """RoRoPE within single frequencies commutes with the rotary positions."""
    network = lrcore.load(str(request.getfixturevalue(folder)), dtype="float64").network
    same = converted(network, None, fold=1, rotary=64.0)
    assert isinstance(read_layer(same, 0).attention.k, LowRank)
    # rotary tables are in float32
    assert torch.allclose(logits(same), logits(network), atol=1e-5)


def definition(a, x, fold, per_group, rank, balance):
    """Return functions for the scores and the values of states, computed from samples x [N, d].

    They use eigenvectors of the keys, group by group, and of the remaining parts.
    """
    k, v = apply(a.k, x), apply(a.v, x)
    size, half = a.qk_size, a.qk_size // 2
    kinds = []  # (axes of real parts, axes of imaginary parts, index of the frequency or None)
    for start in range(0, half, fold):
        columns = [(h, j) for h in range(a.n_kv) for j in range(start, start + fold)]
        real, imaginary = ([h * size + j + half * part for h, j in columns] for part in (0, 1))
        second = k[:, real].T @ k[:, real] + k[:, imaginary].T @ k[:, imaginary]
        vectors = torch.linalg.eigh(second).eigenvectors.flip(1)
        for s in range(len(columns)):
            axes = torch.zeros(2, len(k.T), dtype=k.dtype)
            axes[0, real], axes[1, imaginary] = vectors[:, s], vectors[:, s]
            kinds.append((*axes, start + s * fold // per_group if s < per_group else None))
    unrotated = torch.stack([axis for *parts, j in kinds if j is None for axis in parts])
    ratio = (k @ unrotated.T).norm(dim=0).mean() / (v.norm(dim=0).mean() * balance)
    joint = torch.cat((k @ unrotated.T / ratio, v), 1)
    top = torch.linalg.eigh(joint.T @ joint).eigenvectors.flip(1)[:, :rank]

    def score(head, query, key, t, s):
        """Return the score of query [d_h] of a head at t with the long key at s."""
        long_query = torch.zeros(len(k.T), dtype=k.dtype)
        kv = head // a.group
        long_query[kv * size : (kv + 1) * size] = query
        total = long_query @ (unrotated.T @ seen(key)[: len(unrotated)]) * ratio
        for u, w, j in kinds:
            if j is not None:
                first = torch.complex(u @ long_query, w @ long_query)
                second = torch.complex(u @ key[: len(k.T)], w @ key[: len(k.T)])
                angle = torch.as_tensor(a.frequencies[j] * (t - s), dtype=k.dtype)
                total += (first * second.conj() * torch.exp(1j * angle)).real
        return total * a.scale

    def seen(key):
        outputs = torch.cat((unrotated @ key[: len(k.T)] / ratio, key[len(k.T) :]))
        return top @ (top.T @ outputs)

    return score, lambda key: seen(key)[len(unrotated) :]


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_llama_bias"])
@pytest.mark.parametrize(("fold", "share"), [(2, 0.5), (4, 0.5), (1, 1.0)])
def test_attention_follows_the_definition(request, folder, fold: int, share: float) -> None:
    network = lrcore.load(str(request.getfixturevalue(folder)), dtype="float64").network
    layer = read_layer(network, 0)
    a, g = layer.attention, torch.Generator().manual_seed(1)
    width = a.q.weight.shape[1]
    samples = torch.randn(200, width, generator=g, dtype=torch.float64) + 0.3
    heads = torch.zeros(200, a.n_q * a.v_size, dtype=samples.dtype)
    hidden = torch.zeros(200, layer.mlp.down.weight.shape[1], dtype=samples.dtype)
    factor = ROW.factor(
        layer,
        moments_of(layer, samples, heads, hidden),
        ROW.choose({"fold": fold, "rotary": share, "balance": 0.7}),
    )["kv"]
    small = clone(network)
    write_at_rank(small, layer, factor, 9)
    cut = read_layer(small, 0).attention
    assert cut.kv_values == 9 + (a.head_size if share == 1 else a.head_size // 2)
    x = samples[:5]
    with torch.inference_mode():
        angles = small.model.rotary_emb(x.unsqueeze(0), torch.arange(5).unsqueeze(0))
        arguments = {"hidden_states": x.unsqueeze(0), "position_embeddings": angles}
        out, _ = small.model.layers[0].self_attn(**arguments)
    score, value = definition(a, samples, fold, max(1, round(share * fold)), 9, 0.7)
    q = apply(a.q, x).view(5, a.n_q, -1)
    key = torch.cat((apply(a.k, x), apply(a.v, x)), 1)
    expected = torch.zeros(5, a.n_q, a.v_size, dtype=x.dtype)
    for head in range(a.n_q):
        kv = head // a.group
        for t in range(5):
            scores = torch.stack([score(head, q[t, head], key[s], t, s) for s in range(t + 1)])
            values = torch.stack([value(row).view(a.n_kv, -1)[kv] for row in key[: t + 1]])
            expected[t, head] = torch.softmax(scores, 0) @ values
    assert torch.allclose(out[0], apply(a.o, expected.flatten(1)), atol=1e-5)


def test_cache_holds_the_shared_key_and_the_latent(tiny_llama_bias, tmp_path) -> None:
    model = lrcore.load(str(tiny_llama_bias))
    small = converted(model.network, 6)
    full_logits, cache = logits(small), DynamicCache(config=small.config)
    result = in_pieces(small, TOKENS, [17, 1, 1, 5], cache)
    assert torch.allclose(result, full_logits, atol=1e-4)
    assert held(cache) == measure(small).kv_bytes * TOKENS.numel()
    folder = lrcore.save(replace(model, network=small), tmp_path / "small")
    assert torch.equal(logits(lrcore.load(str(folder)).network), full_logits)


def test_fold_must_divide_the_pairs(tiny_llama) -> None:
    with pytest.raises(InputError, match="use one of"):
        converted(lrcore.load(str(tiny_llama)).network, 5, fold=3)


def test_balance_equalizes_the_norms_of_keys_and_values(tiny_llama) -> None:
    """Without balance, larger keys have a larger part of the latent."""
    layer = read_layer(lrcore.load(str(tiny_llama)).network, 0)
    a = layer.attention
    x = torch.randn(200, a.q.weight.shape[1], generator=torch.Generator().manual_seed(1))
    larger = layer.with_matrices(k=replace(a.k, weight=10 * a.k.weight))
    moments = moments_of(larger, x, x.new_zeros(200, a.n_q * a.v_size), x.new_zeros(200, 4))
    lost = []
    for balance in (0.0, 1.0):
        factor = transmla.factor(larger, moments, ROW.choose({"balance": balance}))["kv"]
        v = factor.truncate(larger, 6).attention.v.weight
        lost.append(float((v - a.v.weight).norm()))
    assert lost[1] < lost[0]
