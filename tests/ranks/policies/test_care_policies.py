"""CARE's allocations, multiples of ranks, and the account of the cache."""

import math
from itertools import product

import pytest
import torch
from plans import cached, plan_ranks, probes

import lrcore
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.layers.statistics import STREAM_TAPS
from lrcore.ranks.budget import make_budget
from lrcore.ranks.evidence import ErrorModel, Evidence, LossCurve, Probe, Probes
from lrcore.ranks.policies import POLICIES

WIDTH = 6  # n_kv d_h
COST = Cost(WIDTH, 8 + WIDTH, 8 * WIDTH, kv_per_rank=1, kv_dense=WIDTH, per_cached=WIDTH)

INFLUENCES = {part: [0.1, 0.3, 0.2, 0.4] for part in STREAM_TAPS}
OUTLIERS = [[0.1 / m * (1 + i % 3) for m in range(1, 21)] for i in range(4)]


def keys_and_values(layers: int, seed: int = 0, cost: Cost = COST) -> dict:
    """Return spectra as from `care`, uneven between layers and larger for V."""
    g, spectra = torch.Generator().manual_seed(seed), {}
    for layer in range(layers):
        for name in ("k", "v"):
            values = (
                torch.rand(cost.full, generator=g, dtype=torch.float64).sort(descending=True).values
            )
            values *= (1 + layer) * (2 if name == "v" else 1)
            spectra[layer, name] = Spectrum((layer, name), values, cost, unit="kv")
    return spectra


def evidence_of(spectra: dict, ranks: list[int]) -> Evidence:
    """Return all evidence of four layers; the probes were measured at these ranks."""
    increase = torch.linspace(1, 0, len(ranks), dtype=torch.float64)
    return (
        Evidence(spectra, INFLUENCES)
        .with_measurement("outliers", OUTLIERS)
        .with_measurement("probes", Probes(1.0, dict.fromkeys(spectra, LossCurve(ranks, increase))))
        .with_measurement("gradients", {slot: 1e-6 * (1 + slot[0]) for slot in spectra})
        .with_measurement("search", [0.6] * 4)
        .with_measurement("type_weights", {"qk": 0.4, "v": 1.0})
        .with_measurement("angles", [0.1, 0.3, 0.2, 0.4])
        .with_measurement(
            "slopes", {slot: s.values * (-1) ** slot[0] for slot, s in spectra.items()}
        )
        .with_measurement(
            "error_model",
            ErrorModel(dict.fromkeys(spectra, Probe(ranks[0], 1.0, 0.0)), 4, 0.0, 7.0),
        )
    )


def kept_sum(spectra: dict, ranks) -> float:
    return sum(float(s.values[:r].sum()) for s, r in zip(spectra.values(), ranks, strict=True))


def plan(policy: str, spectra: dict, ratio: float, **arguments) -> dict:
    evidence = Evidence(spectra, {"block": [0.1] * 8})
    return plan_ranks(
        policy, evidence, make_budget("kv", ratio, spectra, cached(spectra)), **arguments
    )


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("seed", [0, 1])
def test_waterfill_maximizes_the_sum_of_singular_values_over_keys_and_values(
    ratio: float, seed: int
) -> None:
    """Check equation 2 by brute force over all choices of ranks that spend the budget."""
    spectra = keys_and_values(2, seed)
    total = math.floor((1 - ratio) * 4 * WIDTH + 1e-9)
    ranks = plan("waterfill", spectra, ratio)
    best = max(
        kept_sum(spectra, choice)
        for choice in product(range(1, WIDTH + 1), repeat=4)
        if sum(choice) == total
    )
    assert sum(ranks.values()) == total
    assert kept_sum(spectra, [ranks[slot] for slot in spectra]) == pytest.approx(best, rel=1e-12)


def test_relative_values_do_not_depend_on_the_scale_of_a_slot() -> None:
    """A slot with values scaled by 1/100 keeps its ranks; by eq. 2 it would have rank 1."""
    spectra = keys_and_values(2)
    small = dict(spectra)
    first = spectra[0, "v"]
    small[0, "v"] = Spectrum((0, "v"), first.values / 100, COST, unit="kv")
    ranks, of_small = (
        plan("waterfill", spectra_case, 0.5, options={"relative": True})
        for spectra_case in (spectra, small)
    )
    assert ranks == of_small
    assert of_small[0, "v"] > 1 == plan("waterfill", small, 0.5)[0, "v"]
    zero = Spectrum((0, "v"), torch.zeros_like(first.values), COST, unit="kv")
    ranks = plan("waterfill", small | {(0, "v"): zero}, 0.5, options={"relative": True})
    assert ranks[0, "v"] == 1


def test_waterfill_keeps_the_largest_values_up_to_the_caps() -> None:
    spectra = keys_and_values(3)
    spectra[2, "v"] = Spectrum(
        (2, "v"), torch.full((WIDTH,), 100.0, dtype=torch.float64), COST, unit="kv"
    )
    ranks = plan("waterfill", spectra, 0.5)
    assert ranks[2, "v"] == WIDTH  # its cap
    chosen_values = torch.cat([s.values[: ranks[slot]] for slot, s in spectra.items()])
    remaining_values = torch.cat([s.values[max(1, ranks[slot]) :] for slot, s in spectra.items()])
    free = torch.cat(
        [s.values[1 : ranks[slot]] for slot, s in spectra.items()]
    )  # beyond the first rank of each slot
    assert len(chosen_values) == 3 * WIDTH
    assert float(free.min()) >= float(remaining_values.max())


def test_ties_favor_values() -> None:
    flat = torch.ones(WIDTH, dtype=torch.float64)
    spectra = {
        (layer, name): Spectrum((layer, name), flat, COST, unit="kv")
        for layer in range(2)
        for name in ("k", "v")
    }
    ranks = plan("waterfill", spectra, 1 - 14 / 24)
    assert ranks == {(0, "k"): 1, (0, "v"): 6, (1, "k"): 1, (1, "v"): 6}


def test_slots_without_a_common_unit_keep_equal_shares() -> None:
    spectra = {slot: Spectrum(slot, s.values, s.cost) for slot, s in keys_and_values(4).items()}
    ranks = plan("waterfill", spectra, 0.5)
    for name in ("k", "v"):
        assert (
            sum(rank for (_, part_name), rank in ranks.items() if part_name == name)
            == 4 * WIDTH // 2
        )


def test_greedy_follows_the_released_code() -> None:
    """Each rank maximizes residual reduction times propagation horizon over rank cost.

    K and V are separate, with ranks between half and twice the even share.
    """
    cost = Cost(20, 50, 20 * 30, kv_per_rank=1, kv_dense=20)
    spectra, ranks, layers = keys_and_values(4, cost=cost), {}, 4
    for name in ("k", "v"):
        part_name = [spectra[layer, name].values.square() for layer in range(layers)]
        chosen = [4] * layers  # half of the even share of 8
        for _ in range(8 * layers - sum(chosen)):
            scores = [
                float(s[r] / s[r:].sum())
                * math.sqrt((layers - i) / ((layers + 1) / 2))
                / math.sqrt(r / 4)
                if r < 16
                else -1.0
                for i, (s, r) in enumerate(zip(part_name, chosen, strict=True))
            ]
            chosen[max(range(layers), key=scores.__getitem__)] += 1
        ranks |= {(layer, name): rank for layer, rank in enumerate(chosen)}
    budget = make_budget("kv", 0.6, spectra, cached(spectra))
    assert plan_ranks("greedy", Evidence(spectra, {"block": [0.1] * layers}), budget) == ranks


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("multiple", [2, 4])
@pytest.mark.parametrize("kind", ["params", "kv"])
def test_all_policies_return_multiples_or_full_ranks(policy: str, multiple: int, kind: str) -> None:
    cost = Cost(18, 18 + 64, 18 * 64, kv_per_rank=1, kv_dense=18)
    spectra = {slot: s.in_multiples(multiple) for slot, s in keys_and_values(4, cost=cost).items()}
    dense = sum(s.cost.dense for s in spectra.values())
    budget = make_budget(kind, 0.4, spectra, dense if kind == "params" else cached(spectra))
    ranks = plan_ranks(policy, evidence_of(spectra, cost.ranks()), budget, 0.1)
    assert all(rank % multiple == 0 or rank == 18 for rank in ranks.values())
    spent = sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items())
    assert spent <= budget.limit < spent + multiple * budget.price(cost, 1)


def test_multiples_keep_the_curve_and_the_prices() -> None:
    curve = tuple(r * 40 - r * r for r in range(1, 16))
    s = Spectrum(
        (0, "qk"),
        torch.arange(8, 0, -1).double(),
        Cost(16, 0, 16 * 24, step=2, curve=curve[1::2]),
    )
    coarse = s.in_multiples(8)
    assert coarse.cost.ranks() == [8, 16]
    assert [coarse.cost.parameters(r) for r in (8, 16)] == [s.cost.parameters(r) for r in (8, 16)]
    assert [coarse.tail(r) for r in (8, 16)] == [s.tail(r) for r in (8, 16)]
    assert probes({0: s}, {0: torch.arange(8.0).flip(0)}).curves[0].at([8, 16]).tolist() == [4, 0]
    assert [coarse.cost.parameters(r) for r in range(2, 16, 2)] == list(
        s.cost.curve
    )  # ranks set by hand
    assert s.in_multiples(2) is s
    assert s.in_multiples(32).cost.ranks() == [16]  # only the full rank remains


def test_waterfill_in_multiples_maximizes_the_sum() -> None:
    cost = Cost(8, 16, 64, kv_per_rank=1, kv_dense=8)
    spectra = {slot: s.in_multiples(2) for slot, s in keys_and_values(2, cost=cost).items()}
    ranks = plan("waterfill", spectra, 0.5)
    best = max(
        kept_sum(spectra, choice) for choice in product((2, 4, 6, 8), repeat=4) if sum(choice) <= 16
    )
    assert kept_sum(spectra, [ranks[slot] for slot in spectra]) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("method", ["care", "a3", "svd"])
def test_rank_multiple_of_a_recipe_reaches_the_model(tiny_llama, story_file, method: str) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model.name,
        data=str(story_file),
        samples=4,
        seq_len=32,
        method=method,
        rank_multiple=4,
        ratio=0.4,
    )
    recipe = recipe.with_(
        budget="kv" if method == "care" else "params",
        rank_overrides={"0.k": 3} if method == "care" else {},
    )
    assert "--rank-multiple 4" in recipe.command()
    small = lrcore.compress(model, recipe)
    by_hand = [
        row.rank
        for row in small.ranks
        if (row.layer, row.component) == (0, "k") and method == "care"
    ]
    assert by_hand in ([3], [])  # a rank set by hand is not rounded
    other_rows = [row for row in small.ranks if by_hand != [row.rank] or row.layer]
    assert all(row.rank % 4 == 0 or row.rank == row.full for row in other_rows)
    with pytest.raises(lrcore.InputError, match="rank_multiple must be a whole number"):
        recipe.with_(rank_multiple=0)


def test_flops_include_other_weights_and_the_expansion_of_the_cache(tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(model.name, data=str(story_file), samples=4, seq_len=32, ratio=0.5)
    a3_factors, care_factors = (
        lrcore.prepare(model, recipe.with_(method=method)) for method in ("a3", "care")
    )
    plans = [
        lrcore.allocate(factors, recipe.with_(method=factors.method, budget="kv"))
        for factors in (a3_factors, care_factors)
    ]
    summaries = [part_name.summary() for part_name in plans]
    assert summaries[0]["dense_flops_per_token"] == summaries[1]["dense_flops_per_token"]
    k, v = (
        sum(rank for (_, name), rank in plans[1].ranks.items() if name == part) for part in "kv"
    )
    d, width, heads, size, context = 32, 16, 4, 8, 32
    # each query head expands its weighted sum of latents of values
    weights = 3 * 2 * d * width - (k * (d + width) + v * (d + heads * size))
    # keys are expanded for the complete cache; latents of values are weighted instead of values
    cached = 3 * heads * size - (width * k + heads * v)
    assert summaries[1]["dense_flops_per_token"] - summaries[1]["flops_per_token"] == 2 * (
        weights + context * cached
    )


def test_parameter_budget_beyond_keys_and_values_raises(tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model.name,
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        ratio=0.5,
        budget="params",
    )
    with pytest.raises(lrcore.InputError, match="choose budget 'kv'"):
        lrcore.compress(model, recipe)
    small = lrcore.compress(model, recipe.with_(ratio=0.1))
    assert small.account.to_dict()["removed_params"] >= 0.1
