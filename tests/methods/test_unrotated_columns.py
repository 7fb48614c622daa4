"""Heads with partial rotary embeddings: errors of unrotated columns and the choice of ranks."""

from dataclasses import replace

import pytest
import torch
from test_ill_conditioned import CASES
from test_truncate_decomposes_nothing import Decompositions
from tiny_models import tiny
from toy_layer import HEAD, Toy, apply, relative, toy

from lrcore.layers.layer import Attention, Linear, heads
from lrcore.layers.statistics import Moments
from lrcore.methods import a3, fused, modegpt
from lrcore.methods.attention_scores import joint_blocks, unrotated_pairs
from lrcore.methods.ranking import column_products
from lrcore.models.layers import read_layer, write_layer

MHA, GQA = (3, 3, "partial", True, False), (4, 2, "partial", True, True)
SOLVE = {"a3": a3.qk_pairs, "fused": fused.qk_pairs}
UNROTATED_PAIRS = HEAD // 4  # pairs of a head


def unrotated_scores(a: Attention, x: torch.Tensor, head: int, centered: bool) -> torch.Tensor:
    """Return the part of the scores [query heads, keys] of a kv head from unrotated columns."""
    unrotated = unrotated_pairs(a)
    if unrotated is None:
        return x.new_zeros(len(x) * a.group, len(x))
    columns = torch.cat((unrotated[head], unrotated[head])).nonzero().flatten()
    q, k = (apply(p, x).unflatten(-1, (n, -1)) for p, n in ((a.q, a.n_q), (a.k, a.n_kv)))
    keys = k[:, head, columns]
    keys = keys - keys.mean(0) if centered else keys
    queries = q[:, head * a.group : (head + 1) * a.group, columns].transpose(0, 1).flatten(0, 1)
    return queries @ keys.T / len(x)


def rotated_losses(method: str, case: Toy, head: int) -> torch.Tensor:
    """Return the squared losses of the rotated pairs, by the scores of the method."""
    a = case.layer.attention
    if method == "fused":
        squares = modegpt.column_losses(a, case.moments)
    else:
        grams = (gram.diagonal(dim1=1, dim2=2) for gram in a3.score_grams(a, case.moments))
        squares = column_products(*grams, a)
    return squares[head].unflatten(-1, (2, -1)).sum(0)[:UNROTATED_PAIRS]


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("method", SOLVE)
def test_rank_is_split_optimally_and_loses_the_exact_tail(kind: tuple, method: str) -> None:
    case, centered = toy(*kind, tokens=120), method == "fused"
    a = case.layer.attention
    factor = SOLVE[method](a, case.moments)
    for head in range(a.n_kv):
        dense = unrotated_scores(a, case.x, head, centered)
        tails = torch.linalg.svdvals(dense) ** 2
        lost = rotated_losses(method, case, head).sort().values
        for rank in range(2, HEAD, 2):
            small = factor.truncate(case.layer, rank).attention
            retained = (
                int(unrotated_pairs(small)[head].sum()) if unrotated_pairs(small) is not None else 0
            )
            best = min(
                float(lost[: UNROTATED_PAIRS - rank // 2 + still].sum() + tails[2 * still :].sum())
                for still in range(
                    max(rank // 2 - UNROTATED_PAIRS, 0), min(rank // 2, UNROTATED_PAIRS) + 1
                )
            )
            assert relative(float((factor.heads[head, rank // 2 :] ** 2).sum()), best) < 1e-9
            gap = dense - unrotated_scores(small, case.x, head, centered)
            assert relative((gap**2).sum(), float(tails[2 * retained :].sum()), tails.sum()) < 1e-9


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", SOLVE)
def test_no_selection_of_columns_has_a_lower_loss(method: str, case: str) -> None:
    """Rank unrotated columns as pairs among the rotated pairs, also for singular moments."""
    made = CASES[case](GQA)
    a, centered = made.layer.attention, method == "fused"
    factor = SOLVE[method](a, made.moments)
    without_frequencies = replace(a, frequencies=None)  # no column is marked as unrotated
    before = (fused if centered else a3).qk_pairs(without_frequencies, made.moments)
    for head in range(a.n_kv):
        dense = unrotated_scores(a, made.x, head, centered)
        pair_losses = rotated_losses(method, made, head)
        total = float(factor.heads[head].square().sum())
        for rank in range(2, HEAD, 2):
            dropped = before.order[head, rank // 2 :]
            old = replace(before.truncate(made.layer, rank).attention, frequencies=a.frequencies)
            gap = dense - unrotated_scores(old, made.x, head, centered)
            optimum = float((gap**2).sum() + pair_losses[dropped[dropped < UNROTATED_PAIRS]].sum())
            new = float((factor.heads[head, rank // 2 :] ** 2).sum())
            assert new <= optimum * (1 + 1e-9) + 1e-12 * total


def test_narrowed_head_can_be_narrowed_again() -> None:
    """Each kv head has a different number of unrotated directions."""
    case = toy(4, 2, "partial", True, True, tokens=120)
    rows = torch.arange(HEAD) % (HEAD // 2) >= UNROTATED_PAIRS
    weight = heads(case.layer.attention.k.weight, 2).clone()
    weight[0, rows] *= 10  # the first head retains unrotated columns, the second rotated ones
    weight[1, rows] /= 10
    a = replace(
        case.layer.attention, k=Linear(weight.flatten(0, 1), case.layer.attention.k.bias / 10)
    )
    layer = replace(case.layer, attention=a)
    once = a3.qk_pairs(a, case.moments).truncate(layer, 4)
    assert unrotated_pairs(once.attention).sum(1).tolist() == [2, 0]
    twice = a3.qk_pairs(once.attention, case.moments).truncate(once, 2).attention
    direct = a3.qk_pairs(a, case.moments).truncate(layer, 2).attention
    for head in range(2):
        first, second = (unrotated_scores(b, case.x, head, False) for b in (twice, direct))
        assert torch.allclose(first, second, atol=1e-9)
    assert torch.equal(twice.rotary_pairs[1], direct.rotary_pairs[1])


def test_modegpt_pairs_the_best_unrotated_columns_without_decompositions() -> None:
    case = toy(*GQA)
    a = case.layer.attention
    with Decompositions() as recorded:
        small = modegpt.qk_cr(a, case.moments).truncate(case.layer, 6).attention
    assert recorded.seen == []
    scores = modegpt.column_losses(a, case.moments).sqrt()
    columns = torch.cat((torch.arange(HEAD // 2) >= UNROTATED_PAIRS,) * 2).nonzero().flatten()
    for head in range(a.n_kv):
        best = columns[scores[head, columns].sort(descending=True).indices].tolist()
        remaining = torch.cat((unrotated_pairs(small)[head],) * 2).nonzero().flatten()
        rows = heads(small.k.weight, a.n_kv)[head][remaining]
        expected = heads(a.k.weight, a.n_kv)[head][best[: len(remaining)]]
        assert torch.equal(rows[torch.arange(len(remaining)).view(2, -1).T.flatten()], expected)


@pytest.mark.parametrize("solve", [a3.qk_pairs, fused.qk_pairs])
def test_truncate_makes_no_decompositions_of_unrotated_columns(solve) -> None:
    case = toy(*GQA)
    factor = solve(case.layer.attention, case.moments)
    with Decompositions() as seen:
        for rank in range(2, HEAD + 1, 2):
            factor.truncate(case.layer, rank)
    assert seen.seen == []


@pytest.mark.parametrize("family", ["phi", "gpt_neox"])
def test_unrotated_keys_of_two_dimensions_are_truncated_without_loss(family: str) -> None:
    network, generator = tiny(family), torch.Generator().manual_seed(3)
    layer = read_layer(network, 0)
    a, x = layer.attention, torch.randn(200, 32, generator=generator).double()
    still = torch.cat((unrotated_pairs(a),) * 2, dim=1).nonzero()[:, 1].view(a.n_kv, -1)
    weight, bias = heads(a.k.weight, a.n_kv).clone(), heads(a.k.bias, a.n_kv).clone()
    for head, columns in enumerate(still):
        mixed = torch.randn(len(columns), 2, generator=generator)
        weight[head, columns] = mixed @ weight[head, columns[:2]]
        bias[head, columns] = mixed @ bias[head, columns[:2]]
    layer = replace(layer, attention=replace(a, k=Linear(weight.flatten(0, 1), bias.flatten())))
    write_layer(network, layer)
    tokens = torch.randint(3, 300, (2, 12), generator=generator)
    with torch.inference_mode():
        dense = network(tokens).logits
        moments = toy_moments(x)
        write_layer(network, a3.qk_pairs(layer.attention, moments).truncate(layer, a.qk_size - 2))
        assert torch.allclose(network(tokens).logits, dense, atol=1e-5)


def toy_moments(x: torch.Tensor) -> Moments:
    """Return the second moment and mean of the input of a layer."""
    values = {("attn_in", "second"): x.T @ x / len(x), ("attn_in", "mean"): x.mean(0)}
    return Moments(values, len(x))


def test_joint_blocks_without_unrotated_columns_are_empty() -> None:
    query = key = torch.eye(2, dtype=torch.float64).unsqueeze(0)
    squares, *maps = joint_blocks(query, key)(0, torch.tensor([], dtype=torch.long))
    assert [tensor.numel() for tensor in (squares, *maps)] == [0, 0, 0]
