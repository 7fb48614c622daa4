"""Palu's groups of heads: the decomposition of each group, and the cache."""

import pytest
import torch
from elsewhere import TOKENS as ELSEWHERE
from elsewhere import loaded_elsewhere
from through_caches import held, in_pieces
from toy_layer import HEAD, D, toy
from transformers import DynamicCache

import lrcore
from lrcore.layers.forms import BlockDiagonal
from lrcore.layers.layer import heads
from lrcore.methods import care
from lrcore.models.layers import read_layer
from lrcore.system.errors import InputError

PALU = {"whitening": "root", "shrinkage": 0.0}
TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("n_q", "n_kv", "group"), [(4, 4, 1), (4, 4, 2), (4, 2, 1), (3, 3, 1)])
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("rank", [1, 4, 7])
def test_every_group_is_whitened_and_truncated_separately(
    n_q: int, n_kv: int, group: int, name: str, rank: int
) -> None:
    """Compute `svd(W_g L)` with `S = L L^T`, unwhitened by `L^{-1}`, group by group."""
    case = toy(n_q, n_kv, "none", True, True)
    factor = care.factor(case.layer, case.moments, care.CareOptions(group=group, **PALU))[name]
    groups, weight = n_kv // group, getattr(case.layer.attention, name).weight
    lower = torch.linalg.cholesky(case.moments.second("attn_in"))
    small = getattr(factor.truncate(case.layer, groups * rank).attention, name)
    losses = torch.zeros(min(group * HEAD, D), dtype=torch.float64)
    for dense, result in zip(heads(weight, groups), heads(small.weight, groups), strict=True):
        u, s, vt = torch.linalg.svd(dense @ lower, full_matrices=False)
        literal = u[:, :rank] @ s[:rank].diag() @ vt[:rank] @ torch.linalg.inv(lower)
        assert torch.allclose(result, literal, atol=1e-7)
        losses += s**2
    assert torch.allclose(factor.values, losses.sqrt(), atol=1e-9)
    assert torch.equal(small.bias, getattr(case.layer.attention, name).bias)
    assert isinstance(small.up, BlockDiagonal)
    assert small.up.shape == (n_kv * HEAD, groups * rank)
    cost = factor.cost
    assert (cost.full, cost.step) == (groups * min(group * HEAD, D), groups)
    assert cost.per_cached == group * HEAD  # a cached number is expanded to a single group
    assert (
        small.parameters
        == cost.parameters(groups * rank)
        == groups * rank * (D + group * HEAD) + n_kv * HEAD
    )


def test_single_group_is_the_full_matrix_and_larger_groups_lose_less() -> None:
    """More heads per latent give a smaller error at the same cache size (Palu: J, G, M)."""
    case = toy(4, 4, "none", False, True)
    single = care.factor(case.layer, case.moments, care.CareOptions(**PALU))["v"]
    assert torch.equal(
        care.factor(case.layer, case.moments, care.CareOptions(group=4, **PALU))["v"].up, single.up
    )
    tails = []
    for group in (1, 2, 4):
        factor = care.factor(case.layer, case.moments, care.CareOptions(group=group, **PALU))["v"]
        small = factor.truncate(case.layer, 8).attention.v
        gap = case.layer.attention.v.weight - small.weight
        tails.append(float((gap @ case.moments.second("attn_in") @ gap.T).trace()))
    assert tails == sorted(tails, reverse=True)


def test_group_must_divide_the_number_of_heads() -> None:
    case = toy(3, 3, "none", False, False)
    with pytest.raises(InputError, match="use one of 1,"):
        care.factor(case.layer, case.moments, care.CareOptions(group=2))
    with pytest.raises(InputError, match="joint"):
        care.factor(case.layer, case.moments, care.CareOptions(group=1, joint=True))


@pytest.mark.parametrize(("name", "group"), [("tiny_llama", 1), ("tiny_opt", 2), ("tiny_opt", 1)])
@pytest.mark.parametrize("policy", ["uniform", "waterfill", "probed"])
def test_model_caches_the_latents_of_all_groups(
    request, story_file, tmp_path, name: str, group: int, policy: str
) -> None:
    model = lrcore.load(str(request.getfixturevalue(name)))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=4, seq_len=32, method="care", policy=policy, ratio=0.4
    )
    small = lrcore.compress(model, recipe.with_(options={"group": group, **PALU}))
    summary, attention = small.account.to_dict(), read_layer(small.network, 0).attention
    assert small.size.kv_bytes == summary["kv_bytes_per_token"] <= 0.6 * model.size.kv_bytes
    assert small.size.parameters == summary["parameters"]
    groups = attention.n_kv // group
    assert all(row.rank % groups == 0 for row in small.ranks)
    cache, ids = DynamicCache(config=small.network.config), TOKENS
    with torch.inference_mode():
        full_logits = small.network(ids).logits
    assert torch.allclose(in_pieces(small.network, ids, [10, 1, 13], cache), full_logits, atol=2e-5)
    assert held(cache) == small.size.kv_bytes * ids.numel()
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    with torch.inference_mode():
        assert torch.equal(back.network(ids).logits, full_logits)
    assert back.size == small.size


def test_groups_are_exported_quantized_and_healed(tiny_llama, story_file, tmp_path) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model.name,
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        ratio=0.4,
        options={"group": 1},
    )
    small = lrcore.compress(model, recipe)
    lrcore.export(small, tmp_path / "out")
    with torch.inference_mode():
        assert torch.equal(
            loaded_elsewhere([tmp_path / "out"], tmp_path)[0], small.network(ELSEWHERE).logits
        )
        coded = lrcore.quantize(small, 8, 8).network(TOKENS).logits
        assert torch.allclose(coded, small.network(TOKENS).logits, atol=0.5)
    healed = lrcore.heal(
        small, samples=8, seq_len=24, steps=4, batch=3, lr=1e-2, test_samples=0, rotary_channel=4
    )
    assert isinstance(read_layer(healed.network, 0).attention.k.up, BlockDiagonal)
    assert not torch.equal(
        read_layer(healed.network, 0).attention.k.up.blocks,
        read_layer(small.network, 0).attention.k.up.blocks,
    )
