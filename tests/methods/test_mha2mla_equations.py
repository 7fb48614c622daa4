"""MHA2MLA against its definition, token by token and head by head."""

from dataclasses import replace

import pytest
import torch
from through_caches import held, in_pieces
from toy_layer import HEAD, apply, toy
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import lrcore
from lrcore.layers.layer import LowRank
from lrcore.methods import METHODS, mha2mla
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import measure
from lrcore.models.stream import LayerStream

KINDS = [(3, 3, "rotary", False, True), (4, 2, "rotary", True, True)]
TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
PAIRS = {"high": [0, 1], "low": [2, 3], "uniform": [0, 2]}  # half of four pairs


def options(**values):
    return METHODS["mha2mla"].choose(values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", ["norm", "high", "low", "uniform"])
def test_rotary_pairs_are_selected_by_the_option(kind: tuple, pairs: str) -> None:
    case = toy(*kind)
    a = case.layer.attention
    selected = mha2mla.select_rotary_pairs(a, case.moments, options(pairs=pairs, rotary=0.5))
    if pairs != "norm":
        assert selected.tolist() == [PAIRS[pairs]] * a.n_kv
        return
    q, k = (apply(p, case.x).view(-1, n, 2, HEAD // 2) for p, n in ((a.q, a.n_q), (a.k, a.n_kv)))
    # the 2-norm of a pair at a token, and its root mean square over all tokens
    norms = [((s**2).sum(2).mean(0)) ** 0.5 for s in (q, k)]
    for g in range(a.n_kv):
        scores = sum(norms[0][g * a.group + i] * norms[1][g] for i in range(a.group))
        assert set(selected[g].tolist()) == set(scores.topk(2).indices.tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rank", [3, 7])
def test_keys_and_values_follow_the_definition(kind: tuple, split: bool, rank: int) -> None:
    """Truncate `[K_nope; V]`, or both parts separately, by `torch.linalg.svd`; rotated rows are
    unchanged.
    """
    case = toy(*kind)
    a = case.layer.attention
    factors = mha2mla.factor(
        case.layer, case.moments, options(pairs="uniform", rotary=0.5, split=split)
    )
    small = case.layer
    for factor in factors.values():
        small = factor.truncate(small, rank)
    small = small.attention
    rows = [g * HEAD + j + half for g in range(a.n_kv) for half in (0, HEAD // 2) for j in (0, 2)]
    nope = [row for row in range(len(a.k.weight)) if row not in rows]

    def cut(weight):
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        return u[:, :rank] @ s[:rank].diag() @ vt[:rank]

    weights = [a.k.weight[nope], a.v.weight]
    approximations = (
        map(cut, weights) if split else cut(torch.cat(weights)).split([len(nope), len(a.v.weight)])
    )
    keys, values = approximations
    expected = a.k.weight.clone()
    expected[nope] = keys
    assert torch.allclose(small.k.weight, expected, atol=1e-12)
    assert torch.allclose(small.v.weight, values, atol=1e-12)
    assert small.kv_values == len(rows) + (2 * rank if split else rank)
    assert small.rotary_pairs.tolist() == [[0, -1, 2, -1]] * a.n_kv


def converted(network, rank, chosen, full=None):
    """Return a copy with this rank in all layers; a slot of rank `full` stays dense."""
    small, row = clone(network), METHODS["mha2mla"]
    stream = LayerStream(network, TOKENS)
    for index in range(network.config.num_hidden_layers):
        layer = read_layer(small, index)
        factor = row.factor(layer, stream.run(index, row.reads(chosen)), chosen)["kv"]
        if full is not None:
            factor = replace(factor, cost=replace(factor.cost, full=full))
        write_layer(small, factor.truncate(layer, rank or len(factor.values)))
    return small


@torch.inference_mode()
def logits(network, tokens=TOKENS, **kwargs):
    return network(tokens, **kwargs).logits


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def test_full_rank_with_all_pairs_gives_the_dense_logits(request, folder: str) -> None:
    network = lrcore.load(str(request.getfixturevalue(folder))).network
    same = converted(network, None, options(rotary=1.0), full=10**6)
    assert isinstance(read_layer(same, 0).attention.k, LowRank)
    assert torch.allclose(logits(same), logits(network), atol=2e-4)


def test_yarn_scales_unrotated_pairs_at_the_first_position() -> None:
    """YaRN multiplies queries and keys by more than 1, including pairs that are not rotated."""
    rope = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(
        vocab_size=300,
        max_position_embeddings=32,
        rope_parameters=rope | {"original_max_position_embeddings": 16},
        **sizes,
        **heads,
    )
    network = LlamaForCausalLM(config).eval()
    small = converted(network, 5, options(rotary=0.25))
    x = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(1))
    angles = network.model.rotary_emb(x, torch.zeros(1, 1, dtype=torch.long))
    assert float(angles[0].max()) > 1.1
    attention, a = small.model.layers[0].self_attn, read_layer(network, 0).attention
    queries = attention.states("q", attention.q_proj(x), angles)
    assert torch.allclose(queries, angles[0].max() * apply(a.q, x).view(1, 4, 1, 8), atol=1e-6)


def test_attention_follows_the_definition_with_and_without_a_cache(tiny_llama) -> None:
    """Compute attention token by token, then compare the logits and contents of the cache."""
    network = lrcore.load(str(tiny_llama)).network
    small = converted(network, 5, options(pairs="norm", rotary=0.25))
    a, attention = read_layer(small, 0).attention, small.model.layers[0].self_attn
    x = torch.randn(1, 6, a.q.weight.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        angles = small.model.rotary_emb(x, torch.arange(6).unsqueeze(0))
        out, _ = attention(hidden_states=x, position_embeddings=angles)
    q, k, v = (apply(p, x[0]).view(6, -1, a.head_size) for p in (a.q, a.k, a.v))
    half, expected = a.head_size // 2, torch.zeros(6, a.n_q, a.head_size)
    for head in range(a.n_q):
        kv = head // a.group
        rotated = [j for j in a.rotary_pairs[kv].tolist() if j >= 0]
        assert len(rotated) == half // 4

        def turn(state, position, pairs=rotated):
            out = state.clone()
            for j in pairs:
                angle = torch.as_tensor(a.frequencies[j] * position)
                out[j] = state[j] * angle.cos() - state[j + half] * angle.sin()
                out[j + half] = state[j] * angle.sin() + state[j + half] * angle.cos()
            return out

        for t in range(6):
            scores = torch.stack([turn(q[t, head], t) @ turn(k[s, kv], s) for s in range(t + 1)])
            expected[t, head] = torch.softmax(scores * a.scale, 0) @ v[: t + 1, kv]
    assert torch.allclose(out[0], apply(a.o, expected.flatten(1)), atol=1e-5)
    full_logits, cache = logits(small), DynamicCache(config=small.config)
    result = in_pieces(small, TOKENS, [17, 1, 1, 5], cache)
    assert torch.allclose(result, full_logits, atol=1e-4)
    assert held(cache) == measure(small).kv_bytes * TOKENS.numel()
    assert a.kv_values == a.n_kv * half // 2 + 5
