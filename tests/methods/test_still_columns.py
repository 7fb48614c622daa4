"""Heads of which rotary positions turn only a part: the still columns against singular values of
scores taken from the tokens themselves, and the rank shared by the best of all choices.
"""

from dataclasses import replace

import pytest
import torch
from test_ill_conditioned import CASES
from test_truncate_decomposes_nothing import Decompositions
from tiny_models import tiny
from toy_layer import HEAD, Toy, apply, relative, toy

from lrcore.layer import Attention, Linear, heads
from lrcore.methods import a3, fused, modegpt
from lrcore.methods.ranking import column_products
from lrcore.methods.scores import joint_blocks, still_pairs
from lrcore.models.layers import read_layer, write_layer
from lrcore.statistics import Moments

MHA, GQA = (3, 3, "partial", True, False), (4, 2, "partial", True, True)
SOLVE = {"a3": a3.qk_pairs, "fused": fused.qk_pairs}
STILL = HEAD // 4  # pairs of a head


def still_scores(a: Attention, x: torch.Tensor, head: int, centred: bool) -> torch.Tensor:
    """What the columns that do not turn add to the scores of a kv head, of all its query heads."""
    own = still_pairs(a)
    if own is None:
        return x.new_zeros(len(x) * a.group, len(x))
    columns = torch.cat((own[head], own[head])).nonzero().flatten()
    q, k = (apply(p, x).unflatten(-1, (n, -1)) for p, n in ((a.q, a.n_q), (a.k, a.n_kv)))
    keys = k[:, head, columns]
    keys = keys - keys.mean(0) if centred else keys
    queries = q[:, head * a.group : (head + 1) * a.group, columns].transpose(0, 1).flatten(0, 1)
    return queries @ keys.T / len(x)


def turning_losses(method: str, case: Toy, head: int) -> torch.Tensor:
    """Squared losses of the pairs that turn, by the scores of the method."""
    a = case.layer.attention
    if method == "fused":
        squares = modegpt.column_losses(a, case.moments)
    else:
        grams = (gram.diagonal(dim1=1, dim2=2) for gram in a3.score_grams(a, case.moments))
        squares = column_products(*grams, a)
    return squares[head].unflatten(-1, (2, -1)).sum(0)[:STILL]


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("method", SOLVE)
def test_the_rank_is_shared_as_the_best_of_all_choices_and_loses_the_exact_tail(
    kind: tuple, method: str
) -> None:
    case, centred = toy(*kind, tokens=120), method == "fused"
    a = case.layer.attention
    factor = SOLVE[method](a, case.moments)
    for head in range(a.n_kv):
        dense = still_scores(a, case.x, head, centred)
        tails = torch.linalg.svdvals(dense) ** 2
        lost = turning_losses(method, case, head).sort().values
        for rank in range(2, HEAD, 2):
            small = factor.truncate(case.layer, rank).attention
            kept = int(still_pairs(small)[head].sum()) if still_pairs(small) is not None else 0
            best = min(
                float(lost[: STILL - rank // 2 + still].sum() + tails[2 * still :].sum())
                for still in range(max(rank // 2 - STILL, 0), min(rank // 2, STILL) + 1)
            )
            assert relative(float((factor.heads[head, rank // 2 :] ** 2).sum()), best) < 1e-9
            gap = dense - still_scores(small, case.x, head, centred)
            assert relative((gap**2).sum(), float(tails[2 * kept :].sum()), tails.sum()) < 1e-9


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", SOLVE)
def test_no_selection_of_columns_loses_less(method: str, case: str) -> None:
    """The columns as they stand, paired and ranked with the others, on singular moments too."""
    made = CASES[case](GQA)
    a, centred = made.layer.attention, method == "fused"
    factor = SOLVE[method](a, made.moments)
    whole = replace(a, frequencies=None)  # no column is known to be still
    before = (fused if centred else a3).qk_pairs(whole, made.moments)
    for head in range(a.n_kv):
        dense = still_scores(a, made.x, head, centred)
        turning = turning_losses(method, made, head)
        total = float(factor.heads[head].square().sum())
        for rank in range(2, HEAD, 2):
            dropped = before.order[head, rank // 2 :]
            old = replace(before.truncate(made.layer, rank).attention, frequencies=a.frequencies)
            gap = dense - still_scores(old, made.x, head, centred)
            least = float((gap**2).sum() + turning[dropped[dropped < STILL]].sum())
            new = float((factor.heads[head, rank // 2 :] ** 2).sum())
            assert new <= least * (1 + 1e-9) + 1e-12 * total


def test_a_head_narrowed_before_is_narrowed_again() -> None:
    """Every kv head has kept still directions of its own number."""
    case = toy(4, 2, "partial", True, True, tokens=120)
    rows = torch.arange(HEAD) % (HEAD // 2) >= STILL
    weight = heads(case.layer.attention.k.weight, 2).clone()
    weight[0, rows] *= 10  # the first keeps what is still, the second what turns
    weight[1, rows] /= 10
    a = replace(
        case.layer.attention, k=Linear(weight.flatten(0, 1), case.layer.attention.k.bias / 10)
    )
    layer = replace(case.layer, attention=a)
    once = a3.qk_pairs(a, case.moments).truncate(layer, 4)
    assert still_pairs(once.attention).sum(1).tolist() == [2, 0]
    twice = a3.qk_pairs(once.attention, case.moments).truncate(once, 2).attention
    direct = a3.qk_pairs(a, case.moments).truncate(layer, 2).attention
    for head in range(2):
        first, second = (still_scores(b, case.x, head, False) for b in (twice, direct))
        assert torch.allclose(first, second, atol=1e-9)
    assert torch.equal(twice.rotary_pairs[1], direct.rotary_pairs[1])


def test_modegpt_pairs_still_columns_best_with_second_best_and_decomposes_nothing() -> None:
    case = toy(*GQA)
    a = case.layer.attention
    with Decompositions() as all_of_it:
        small = modegpt.qk_cr(a, case.moments).truncate(case.layer, 6).attention
    assert all_of_it.seen == []
    scores = modegpt.column_losses(a, case.moments).sqrt()
    columns = torch.cat((torch.arange(HEAD // 2) >= STILL,) * 2).nonzero().flatten()
    for head in range(a.n_kv):
        best = columns[scores[head, columns].sort(descending=True).indices].tolist()
        kept = torch.cat((still_pairs(small)[head],) * 2).nonzero().flatten()
        rows = heads(small.k.weight, a.n_kv)[head][kept]
        wanted = heads(a.k.weight, a.n_kv)[head][best[: len(kept)]]
        assert torch.equal(rows[torch.arange(len(kept)).view(2, -1).T.flatten()], wanted)


@pytest.mark.parametrize("solve", [a3.qk_pairs, fused.qk_pairs])
def test_truncate_decomposes_nothing_of_still_columns(solve) -> None:
    case = toy(*GQA)
    factor = solve(case.layer.attention, case.moments)
    with Decompositions() as seen:
        for rank in range(2, HEAD + 1, 2):
            factor.truncate(case.layer, rank)
    assert seen.seen == []


@pytest.mark.parametrize("family", ["phi", "gpt_neox"])
def test_a_network_whose_still_keys_span_two_dimensions_loses_nothing(family: str) -> None:
    network, generator = tiny(family), torch.Generator().manual_seed(3)
    layer = read_layer(network, 0)
    a, x = layer.attention, torch.randn(200, 32, generator=generator).double()
    still = torch.cat((still_pairs(a),) * 2, dim=1).nonzero()[:, 1].view(a.n_kv, -1)
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
    """Of a layer's input alone."""
    values = {("attn_in", "second"): x.T @ x / len(x), ("attn_in", "mean"): x.mean(0)}
    return Moments(values, len(x))


def test_blocks_without_still_columns_are_left_alone() -> None:
    """Of a kv head that has lost all of them."""
    query = key = torch.eye(2, dtype=torch.float64).unsqueeze(0)
    squares, *maps = joint_blocks(query, key)(0, torch.tensor([], dtype=torch.long))
    assert [one.numel() for one in (squares, *maps)] == [0, 0, 0]
