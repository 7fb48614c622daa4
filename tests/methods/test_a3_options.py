"""A3's variants against the formulas of Appendices B.2.3 and E, and the cache of overall OV."""

from dataclasses import replace

import pytest
import torch
from test_a3_equations import augmented, score_error
from toy_layer import HEAD, D, apply, relative, toy
from transformers import DynamicCache

import lrcore
from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import Moments
from lrcore.methods import a3, clover
from lrcore.models.layers import read_layer
from lrcore.models.model_size import measure

RANKS = [1, 3, 6]


def sides(case, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return augmented query and key weights of head i, and the root of the input moment."""
    a = case.layer.attention
    wq, x = augmented(
        heads(a.q.weight, a.n_q)[i], None if a.q.bias is None else heads(a.q.bias, a.n_q)[i], case.x
    )
    wk, _ = augmented(
        heads(a.k.weight, a.n_kv)[i],
        None if a.k.bias is None else heads(a.k.bias, a.n_kv)[i],
        case.x,
    )
    return wq, wk, roots(x.T @ x / len(x))[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("qk", ["q_only", "k_only", "weights"])
def test_one_sided_qk_is_equation_8_with_an_identity(qk: str, bias: bool) -> None:
    """`svd(R_q^{1/2} W_q^T W_k R_k^{1/2})` with R_k (q_only), R_q (k_only) or both (weights)
    replaced by the identity.
    """
    case = toy(3, 3, "none", bias, False)
    factor = a3.qk_svd(case.layer.attention, case.moments, qk)
    for i in range(3):
        wq, wk, root = sides(case, i)
        left_root = root if qk == "q_only" else torch.eye(len(root))
        right_root = root if qk == "k_only" else torch.eye(len(root))
        u, s, vt = torch.linalg.svd(left_root.double() @ wq.T @ wk @ right_root.double())
        assert torch.allclose(factor.heads[i], s[:HEAD], atol=1e-8)
        for rank in RANKS:
            small = factor.truncate(case.layer, rank).attention
            new_q, _ = augmented(
                heads(small.q.weight, 3)[i],
                None if small.q.bias is None else heads(small.q.bias, 3)[i],
                case.x,
            )
            new_k, _ = augmented(
                heads(small.k.weight, 3)[i],
                None if small.k.bias is None else heads(small.k.bias, 3)[i],
                case.x,
            )
            literal = (
                torch.linalg.solve(left_root.double(), u[:, :rank] * s[:rank])
                @ torch.linalg.solve(right_root.double(), vt[:rank].T).T
            )
            assert torch.allclose(new_q.T @ new_k, literal, atol=1e-7)


@pytest.mark.parametrize("rank", RANKS)
def test_a3_with_identity_moments_is_clover(rank: int) -> None:
    """CLOVER computes `svd(W_q^T W_k)` of each head, from the weights only."""
    case = toy(3, 3, "none", False, False)
    a = case.layer.attention
    factors = clover.factor(case.layer, Moments({}, 0))
    assert list(factors) == ["qk", "ov"]
    weights_only = a3.qk_svd(a, case.moments, "weights").truncate(case.layer, rank).attention
    without_moments = factors["qk"].truncate(case.layer, rank).attention
    assert torch.equal(without_moments.q.weight, weights_only.q.weight)
    assert torch.equal(without_moments.k.weight, weights_only.k.weight)
    for i in range(3):
        product = heads(a.q.weight, 3)[i].T @ heads(a.k.weight, 3)[i]
        u, s, vt = torch.linalg.svd(product)
        assert torch.allclose(
            heads(weights_only.q.weight, 3)[i].T @ heads(weights_only.k.weight, 3)[i],
            u[:, :rank] * s[:rank] @ vt[:rank],
            atol=1e-8,
        )


@pytest.mark.parametrize("position", ["none", "rotary"])
@pytest.mark.parametrize("rank", RANKS)
def test_ov_from_the_weights_only_is_clover(rank: int, position: str) -> None:
    """CLOVER computes `svd(W_o W_v)` of each head; full rank gives the dense layer."""
    case = toy(3, 3, position, False, True)
    a = case.layer.attention
    factors = clover.factor(case.layer, Moments({}, 0))
    assert ("qk" in factors) == (position == "none")
    factor = factors["ov"]
    option = a3.factor(case.layer, case.moments, a3.A3Options(ov="weights"))["ov"]
    assert torch.equal(option.v_maps, factor.v_maps)

    def products(v, o):
        return output_heads(o.weight, 3) @ heads(v.weight, 3)

    small = factor.truncate(case.layer, rank).attention
    for product, dense_product, values in zip(
        products(small.v, small.o), products(a.v, a.o), factor.heads, strict=True
    ):
        u, s, vt = torch.linalg.svd(dense_product)
        assert torch.allclose(product, u[:, :rank] * s[:rank] @ vt[:rank], atol=1e-8)
        assert torch.allclose(values, s[:HEAD], atol=1e-8)
    full = replace(factor, cost=replace(factor.cost, full=HEAD + 1)).truncate(case.layer, HEAD)
    assert torch.allclose(
        products(full.attention.v, full.attention.o), products(a.v, a.o), atol=1e-9
    )


@pytest.mark.parametrize("kind", ["abs", "wanda", "taylor"])
def test_value_columns_are_ranked_by_the_baseline_scores(kind: str) -> None:
    case = toy(4, 2, "rotary", True, True)
    a, values = case.layer.attention, case.moments.values
    factor = a3.factor(case.layer, case.moments, a3.A3Options(ov=kind))["ov"]
    small = factor.truncate(case.layer, 3).attention
    for g in range(2):
        scores = []
        for j in range(HEAD):
            row, columns = g * HEAD + j, [(2 * g + i) * HEAD + j for i in range(2)]
            scores.append(
                {
                    "abs": a.v.weight[row].abs().sum() + a.o.weight[:, columns].abs().sum(),
                    "wanda": sum(
                        a.o.weight[:, c].abs().sum() * case.a[:, c].square().mean().sqrt()
                        for c in columns
                    ),
                    "taylor": values["v", "taylor"][row].abs()
                    + values["o", "taylor"][columns].abs().sum(),
                }[kind]
            )
        best = torch.tensor(scores).topk(3).indices
        assert torch.equal(heads(small.v.weight, 2)[g], heads(a.v.weight, 2)[g][best])
        for i in range(2 * g, 2 * g + 2):
            dense_columns = output_heads(a.o.weight, 4)[i]
            assert torch.equal(output_heads(small.o.weight, 4)[i], dense_columns[:, best])


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "none", True, True)])
@pytest.mark.parametrize("rank", RANKS)
def test_whitening_both_sides_has_the_lowest_score_error(kind: tuple, rank: int) -> None:
    case = toy(*kind)
    a = case.layer.attention
    solve = a3.qk_svd if a.group == 1 else a3.qk_joint
    errors = {}
    for qk in ("both", "q_only", "k_only", "weights"):
        small = solve(a, case.moments, qk).truncate(case.layer, rank)
        errors[qk] = sum(score_error(case, small, i) for i in range(a.n_q))
    assert min(errors, key=errors.get) == "both"


@pytest.mark.parametrize("scores", ["a3", "abs", "wanda", "random"])
@pytest.mark.parametrize("qk", ["both", "weights"])
def test_rotary_pairs_are_ranked_by_the_selected_scores(scores: str, qk: str) -> None:
    case = toy(4, 2, "rotary", True, True)
    a = case.layer.attention
    factor = a3.qk_pairs(a, case.moments, qk, scores, seed=3)
    diagonal = (case.x**2).mean(0)

    def side(projection, count: int) -> torch.Tensor:
        weight, bias = heads(projection.weight, count), heads(projection.bias, count)
        if scores == "abs":
            return weight.abs().sum(-1) + bias.abs()
        if qk == "weights":
            return (weight**2).sum(-1) + bias**2
        if scores == "wanda":
            return (weight**2 * diagonal).sum(-1) + bias**2
        return (apply(projection, case.x) ** 2).mean(0).view(count, HEAD)

    products = (side(a.q, 4).view(2, 2, HEAD) * side(a.k, 2).unsqueeze(1)).sum(1)
    pairs = products[:, : HEAD // 2] + products[:, HEAD // 2 :]
    if scores == "random":
        assert torch.equal(factor.order, a3.qk_pairs(a, case.moments, qk, scores, seed=3).order)
        orders = {
            tuple(a3.qk_pairs(a, case.moments, qk, scores, seed).order.flatten().tolist())
            for seed in range(8)
        }
        assert len(orders) > 1
    else:
        assert torch.equal(factor.order, pairs.sort(dim=-1, descending=True).indices)
    plain = a3.qk_pairs(a, case.moments, qk)
    assert float((factor.values**2).sum()) == pytest.approx(float((plain.values**2).sum()))
    assert all(
        float((factor.values[r:] ** 2).sum()) >= float((plain.values[r:] ** 2).sum()) - 1e-12
        for r in range(HEAD // 2)
    )


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", True, True)])
@pytest.mark.parametrize("rank", [1, 5, 11])
def test_overall_ov_is_theorem_b_1_on_the_stacked_heads(kind: tuple, rank: int) -> None:
    """Compute `R^{-1/2} svd_r(R^{1/2} W_cat)` on P_cat, the attention-weighted inputs of all heads
    side by side.
    """
    case = toy(*kind)
    a = case.layer.attention
    g = torch.Generator().manual_seed(1)
    x = torch.cat((case.x[:60], torch.ones(60, 1)), 1)
    mixtures = [
        torch.softmax(torch.randn(200, 60, generator=g, dtype=torch.float64), -1)
        for _ in range(a.n_q)
    ]
    stacked = torch.cat([m @ x for m in mixtures], 1)  # [200, n_q * (d + 1)]
    values = [
        torch.cat(
            (
                heads(a.v.weight, a.n_kv)[i // a.group],
                heads(a.v.bias, a.n_kv)[i // a.group][:, None],
            ),
            1,
        )
        for i in range(a.n_q)
    ]
    outputs = output_heads(a.o.weight, a.n_q)
    weight = torch.cat([(outputs[i] @ values[i]).T for i in range(a.n_q)])  # [n_q * (d + 1), d]
    head_outputs = torch.cat([m @ x @ v.T for m, v in zip(mixtures, values, strict=True)], 1)
    moments = Moments({("attn_out", "second"): head_outputs.T @ head_outputs / 200}, 200)
    root, inverse = roots(stacked.T @ stacked)
    u, s, vt = torch.linalg.svd(root @ weight, full_matrices=False)
    literal = stacked @ (inverse @ (u[:, :rank] * s[:rank]) @ vt[:rank])
    factor = a3.ov_overall(a, moments)
    small = factor.truncate(case.layer, rank).attention
    values_by_head = apply(small.v, case.x[:60]).unflatten(-1, (a.n_q, rank))
    summed = sum(m @ values_by_head[:, i] for i, m in enumerate(mixtures))
    result, dense = summed @ small.o.weight.T, stacked @ weight
    total = float((dense**2).sum())
    assert float(((result - literal) ** 2).sum()) < 1e-9 * total
    assert (
        relative(
            float(((result - dense) ** 2).sum()),
            200 * float((factor.values[rank:] ** 2).sum()),
            total,
        )
        < 1e-9
    )
    assert factor.cost.full == D


def test_overall_ov_is_cached_per_query_head_and_saved(
    tiny_llama, tiny_opt, story_file, tmp_path
) -> None:
    for folder in (tiny_llama, tiny_opt):
        model = lrcore.load(str(folder))
        recipe = lrcore.Recipe(
            data=str(story_file), samples=6, seq_len=32, ratio=0.3, options={"ov": "overall"}
        )
        small = lrcore.compress(model, recipe)
        tokens = torch.arange(3, 43).unsqueeze(0)
        with torch.inference_mode():
            full_logits = small.network(tokens).logits
            cache = DynamicCache(config=small.network.config)
            steps = [
                small.network(part, past_key_values=cache).logits
                for part in tokens.split([30, 1, 9], dim=1)
            ]
        assert torch.allclose(torch.cat(steps, 1), full_logits, atol=1e-4)
        a = read_layer(small.network, 0).attention
        assert a.summed
        assert cache.layers[0].values.shape[1] * cache.layers[0].values.shape[3] == a.n_q * a.v_size
        held = sum(
            layer.keys[0, :, 0].numel() + layer.values[0, :, 0].numel() for layer in cache.layers
        )
        assert (
            held * 4
            == measure(small.network).kv_bytes
            == small.account.to_dict()["kv_bytes_per_token"]
        )
        reloaded = lrcore.load(str(lrcore.save(small, tmp_path / folder.name)))
        with torch.inference_mode():
            assert torch.equal(reloaded.network(tokens).logits, full_logits)


def test_overall_ov_caches_more_than_the_dense_model_except_at_tiny_ranks() -> None:
    case = toy(4, 2, "rotary", False, True)
    cost = a3.factor(case.layer, case.moments, a3.A3Options(ov="overall"))["ov"].cost
    assert cost.kv(cost.cap) > cost.kv_dense > cost.kv(cost.kv_cap)
    assert cost.kv(cost.kv_cap) == 4 * cost.kv_cap


def test_kv_ratio_counts_the_full_cache_if_keys_are_dense(tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16, method="clover")
    half = recipe.with_(budget="kv", ratio=0.5)
    factors = lrcore.prepare(model, half)
    with pytest.raises(lrcore.InputError, match=r"0\.5 of 'kv'.*at most 0\.4"):
        lrcore.allocate(factors, half)
    assert lrcore.allocate(factors, half.with_(ratio=0.4)).account.achieved >= 0.4


def test_clover_keeps_the_mlp_and_shrinks_the_cache(tiny_opt, story_file, tmp_path) -> None:
    model = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16, method="clover", ratio=0.15)
    small = lrcore.compress(model, recipe)
    assert small.account.to_dict()["achieved"] >= 0.15
    assert small.size.kv_bytes < model.size.kv_bytes
    dense, cut = (read_layer(loaded.network, 0).matrices() for loaded in (model, small))
    assert torch.equal(dense["up"].weight, cut["up"].weight)
    reloaded, tokens = lrcore.load(str(lrcore.save(small, tmp_path / "small"))), torch.arange(3, 35)
    with torch.inference_mode():
        logits = [loaded.network(tokens[None]).logits for loaded in (small, reloaded)]
    assert torch.equal(*logits)
