"""Rank plans: budgets are met within a rank step, and policies follow their papers."""

import inspect
import math
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from plans import cached, chosen, plan_ranks, probes
from tiny_models import family_folder

import lrcore
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.ranks.budget import Budget, make_budget, rank_for
from lrcore.ranks.evidence import ErrorModel, Evidence, Probe
from lrcore.ranks.policies import POLICIES, find_policy
from lrcore.ranks.policies.softmax import softmax_sparsity, suggested_temperature
from lrcore.ranks.policies.waterfill import fill_by_value
from lrcore.system.errors import InputError

INFLUENCE = [0.6, 0.2, 0.1, 0.15, 0.3, 0.5]
INFLUENCES = {"block": INFLUENCE, "attention": [0.5 * s for s in INFLUENCE], "mlp": INFLUENCE[::-1]}
OUTLIERS = [[0.4 * s / m for m in range(1, 21)] for s in INFLUENCE]
TYPE_WEIGHTS = {
    "qk": 0.5,
    "ov": 0.9,
    "mlp": 0.3,
    "o": 0.2,
    "v": 1.0,
    "gate": 0.7,
    "up": 0.6,
    "down": 0.8,
}


@cache
def model_like(factored: bool = False, layers: int = 6) -> Evidence:
    """Return the slots of a small Llama: rotary pairs, value heads and neurons, or factored
    matrices.
    """
    g = torch.Generator().manual_seed(3)
    if factored:
        shapes = {
            "q": (256, 256),
            "k": (128, 256),
            "v": (128, 256),
            "o": (256, 256),
            "gate": (688, 256),
            "up": (688, 256),
            "down": (256, 688),
        }
        costs = {
            name: Cost(
                min(s),
                sum(s),
                s[0] * s[1],
                kv_fixed=128 * (name in "kv"),
                kv_dense=128 * (name in "kv"),
            )
            for name, s in shapes.items()
        }
    else:
        costs = {
            "qk": Cost(32, 12 * 256, 12 * 256 * 32, step=2, kv_per_rank=4, kv_dense=128),
            "ov": Cost(32, 12 * 256, 12 * 256 * 32, kv_per_rank=4, kv_dense=128),
            "mlp": Cost(688, 768, 768 * 688),
        }
    spectra, increases, information, slopes, references = {}, {}, {}, {}, {}
    for layer in range(layers):
        for name, cost in costs.items():
            values = (
                torch.rand(cost.full // cost.step, generator=g, dtype=torch.float64)
                .sort(descending=True)
                .values
            )
            increase = (
                torch.rand(len(cost.ranks()), generator=g, dtype=torch.float64)
                .sort(descending=True)
                .values
            )
            spectra[layer, name] = Spectrum((layer, name), values, cost)
            increases[layer, name] = increase - increase[-1]
            information[layer, name] = 1e-6 / (1 + layer)
            references[layer, name] = Probe(cost.ranks()[0], float(increase[0]), 0.0)
            if factored:
                slopes[layer, name] = torch.randn(len(values), generator=g, dtype=torch.float64)
    return (
        Evidence(spectra, INFLUENCES)
        .with_measurement("outliers", OUTLIERS)
        .with_measurement("probes", probes(spectra, increases))
        .with_measurement("gradients", information)
        .with_measurement("search", [0.5 + 0.05 * layer for layer in range(layers)])
        .with_measurement("type_weights", TYPE_WEIGHTS)
        .with_measurement("angles", INFLUENCE[:layers])
        .with_measurement("slopes", slopes)
        .with_measurement("error_model", ErrorModel(references, layers, 1.5, 7 / 3))
    )


def total(spectra: dict) -> int:
    return sum(s.cost.dense for s in spectra.values())


@pytest.mark.parametrize(
    ("factored", "kind"),
    [
        (False, "params"),
        (False, "all_params"),
        (False, "kv"),
        (True, "params"),
        (True, "all_params"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.237, 0.5, 0.8])
def test_plan_is_within_one_step_below_its_budget(
    factored: bool, kind: str, policy: str, ratio: float
) -> None:
    evidence = model_like(factored)
    spectra = evidence.spectra
    base = (
        cached(spectra)
        if kind == "kv"
        else total(spectra) * (6 if kind == "all_params" else 5) // 5
    )
    budget = make_budget(kind, ratio, spectra, base)
    ranks = plan_ranks(policy, evidence, budget, 0.1)
    spent = sum(
        budget.price(s.cost, ranks[slot]) for slot, s in spectra.items() if budget.counts(s.cost)
    )
    assert spent <= budget.limit
    steps = [
        budget.price(s.cost, following) - budget.price(s.cost, ranks[slot])
        for slot, s in spectra.items()
        if budget.counts(s.cost)
        and (following := budget.next_rank(s.cost, ranks[slot])) is not None
    ]
    assert budget.limit - spent < min(steps)
    for slot, rank in ranks.items():
        assert rank in spectra[slot].cost.ranks()


def test_kv_budget_keeps_the_mlp_dense_and_needs_narrowed_heads() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    budget = make_budget("kv", 0.5, spectra, cached(spectra))
    ranks = plan_ranks("uniform", evidence, budget, 1.0)
    assert all(rank == 688 for (_, name), rank in ranks.items() if name == "mlp")
    with pytest.raises(InputError, match="KV cache"):
        make_budget("kv", 0.5, model_like(factored=True).spectra, 1)


def test_uniform_gives_all_layers_the_same_rank_up_to_one_step() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    ranks = plan_ranks(
        "uniform",
        evidence,
        make_budget("params", 0.3, spectra, total(spectra)),
        1.0,
    )
    for component, step in {"qk": 2, "ov": 1, "mlp": 1}.items():
        component_ranks = [rank for (_, name), rank in ranks.items() if name == component]
        assert max(component_ranks) - min(component_ranks) <= step


def test_nearest_rounds_each_slot_separately() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    ranks = plan_ranks(
        "uniform",
        evidence,
        make_budget("params", 0.1, spectra, total(spectra)),
        1,
        nearest=True,
    )
    assert {ranks[layer, "qk"] for layer in range(6)} == {2 * round(0.9 * 16)}
    assert {ranks[layer, "mlp"] for layer in range(6)} == {round(0.9 * 688)}


@pytest.mark.parametrize("mean", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 0.3, 100.0])
def test_softmax_sparsity_keeps_the_mean_the_cap_and_the_order(
    mean: float, temperature: float
) -> None:
    phi = softmax_sparsity(INFLUENCE, mean, temperature)
    assert sum(phi) / len(phi) == pytest.approx(mean, abs=1e-9)
    assert 0 <= min(phi) <= max(phi) <= 0.95 + 1e-12
    by_influence = [p for _, p in sorted(zip(INFLUENCE, phi, strict=True))]
    assert by_influence == sorted(by_influence, reverse=True)


def test_softmax_sparsity_follows_the_formula_without_clipping() -> None:
    s = torch.tensor(INFLUENCE, dtype=torch.float64)
    expected = len(s) * 0.2 * torch.exp(-s / 0.5) / torch.exp(-s / 0.5).sum()
    assert softmax_sparsity(INFLUENCE, 0.2, 0.5) == pytest.approx(expected.tolist(), abs=1e-12)


def test_suggested_temperature_gives_the_largest_sparsity_of_the_rule_of_thumb() -> None:
    assert max(
        softmax_sparsity(INFLUENCE, 0.4, suggested_temperature(INFLUENCE, 0.4))
    ) == pytest.approx(0.8, abs=1e-3)


def test_waterfill_keeps_the_largest_sum_within_the_budget() -> None:
    g = torch.Generator().manual_seed(0)
    cost = Cost(5, 7, 35)
    pool = {
        (i, "k"): Spectrum(
            (i, "k"),
            torch.rand(5, generator=g, dtype=torch.float64).sort(descending=True).values,
            cost,
        )
        for i in range(3)
    }
    spectra_total = 3 * 35
    budget = make_budget("params", 0.4, pool, spectra_total)
    for limit in (21, 35, 56, 70, 98):
        ranks = fill_by_value(pool, limit, budget)
        best = max(
            sum(float(s.values[:r].sum()) for s, r in zip(pool.values(), choice, strict=True))
            for choice in product(range(1, 6), repeat=3)
            if sum(cost.parameters(r) for r in choice) <= limit
        )
        assert sum(
            float(s.values[: ranks[slot]].sum()) for slot, s in pool.items()
        ) == pytest.approx(best)


def test_fixed_ranks_are_kept_and_the_policy_shares_the_remainder() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    budget = make_budget("params", 0.3, spectra, total(spectra))
    ranks = plan_ranks("uniform", evidence, budget, 1.0, fixed={(0, "mlp"): 688, (3, "ov"): 4})
    assert ranks[0, "mlp"] == 688
    assert ranks[3, "ov"] == 4
    assert ranks[1, "mlp"] < 0.7 * 688
    assert sum(s.cost.parameters(ranks[slot]) for slot, s in spectra.items()) <= budget.limit
    everything = {slot: s.cost.full for slot, s in spectra.items() if slot[0] < 5}
    with pytest.raises(InputError, match="manual ranks"):
        plan_ranks("uniform", evidence, budget, 1.0, fixed=everything)


def test_unknown_policies_and_impossible_ratios_raise() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    budget = make_budget("params", 0.3, spectra, total(spectra))
    with pytest.raises(InputError, match="Did you mean 'uniform'"):
        plan_ranks("unifrom", evidence, budget, 1.0)
    with pytest.raises(InputError, match="at most"):
        make_budget("params", 0.999, spectra, total(spectra))


def test_every_policy_file_has_a_row():
    files = {path.stem for path in Path(inspect.getfile(find_policy)).parent.glob("*.py")}
    files -= {"__init__", "exact", "multiplier", "policy", "shares"}
    rows = {row.targets.__module__.rpartition(".")[2] for row in POLICIES.values()}
    assert files == rows, "a policy is a file and a row: see 'A policy' in docs/extending.md"


@pytest.mark.parametrize("nearest", [False, True])
def test_rank_for_follows_a_curved_price(nearest):
    cost = Cost(
        full=16, per_rank=0, dense=16 * 24, curve=tuple(r * 40 - r * r for r in range(1, 16))
    )
    budget = Budget("params", 1, cost.dense)
    for target in (0.05, 0.2, 0.5, 0.73, 0.97):
        rank = rank_for(cost, target, budget, nearest)
        aim = target * cost.dense
        if nearest:
            assert abs(cost.parameters(rank) - aim) == min(
                abs(cost.parameters(r) - aim) for r in cost.ranks()
            )
        else:
            assert rank == max([1, *(r for r in cost.ranks() if cost.parameters(r) <= aim)])


def test_softmax_cap_and_weighted_mean_are_exact() -> None:
    prices = [1.0, 2.0, 3.0, 1.0, 5.0, 2.0]
    for cap in (0.6, 0.8, 0.95):
        phi = softmax_sparsity(INFLUENCE, 0.5, 0.02, cap, prices)
        assert max(phi) == pytest.approx(cap, abs=1e-12)
        assert sum(p * w for p, w in zip(phi, prices, strict=True)) / sum(prices) == pytest.approx(
            0.5, abs=1e-12
        )
    evidence = model_like()
    spectra = evidence.spectra
    budget = make_budget("params", 0.4, spectra, total(spectra))
    for policy in ("softmax", "softmax_dual"):
        options = chosen(policy, 0.02, cap=0.7)
        targets = find_policy(policy).targets(evidence, budget, options)
        assert min(targets.values()) == pytest.approx(0.3, abs=1e-12)
    with pytest.raises(InputError, match="at most 1"):
        plan_ranks("softmax", evidence, budget, 0.1, options={"cap": 2})


def test_dual_scores_follow_equations_42_and_43() -> None:
    """`phi_ij` is proportional to `exp(-w_j s_ij / eps)`, with the requested mean weighted by
    parameters; w = 1 and 2 here.
    """
    spectra = {}
    for layer in range(6):
        for name, size in (("qk", 50), ("ov", 50), ("mlp", 200)):
            spectra[layer, name] = Spectrum(
                (layer, name), torch.ones(size, dtype=torch.float64), Cost(size, 3, 3 * size)
            )
    budget = make_budget("params", 0.3, spectra, total(spectra))
    eps = 2.0
    evidence = Evidence(spectra, INFLUENCES)
    targets = find_policy("softmax_dual").targets(evidence, budget, chosen("softmax_dual", eps))
    raw = {
        (i, part): math.exp(-w * INFLUENCES[part][i] / eps)
        for i in range(6)
        for part, w in (("attention", 1), ("mlp", 2))
    }
    scale = (
        0.3
        * 6
        * (2 + 1)
        / sum((2 if part == "mlp" else 1) * value for (_, part), value in raw.items())
    )
    for (layer, name), kept_share in targets.items():
        assert 1 - kept_share == pytest.approx(
            scale * raw[layer, "mlp" if name == "mlp" else "attention"], abs=1e-12
        )
    spent = sum(targets[slot] * s.cost.dense for slot, s in spectra.items())
    assert spent == pytest.approx(0.7 * total(spectra), abs=1e-6)


def test_energy_keeps_the_same_share_of_energy_in_all_slots() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    budget = make_budget("params", 0.4, spectra, total(spectra))
    ranks = plan_ranks("energy", evidence, budget, 1.0)
    held = {slot: s.energy(ranks[slot]) for slot, s in spectra.items()}
    below = [
        s.energy(ranks[slot] - s.cost.step)
        for slot, s in spectra.items()
        if ranks[slot] > s.cost.step
    ]
    assert (
        max(below) <= min(held.values()) + 0.02
    )  # remaining steps raise a few slots above the threshold


def test_marginal_minimizes_the_relative_loss() -> None:
    g = torch.Generator().manual_seed(4)
    spectra = {}
    for layer in range(3):
        values = (
            torch.rand(6, generator=g, dtype=torch.float64).sort(descending=True).values * 10**layer
        )
        spectra[layer, "mlp"] = Spectrum(
            (layer, "mlp"), values, Cost(6, 5 + layer, (5 + layer) * 6)
        )
    for ratio in (0.2, 0.35, 0.5, 0.7):
        budget = make_budget("params", ratio, spectra, total(spectra))
        ranks = plan_ranks("marginal", Evidence(spectra, INFLUENCES), budget, 1.0)

        def loss(choice) -> float:
            return sum(s.tail(r) / s.tail(0) for s, r in zip(spectra.values(), choice, strict=True))

        def price(choice) -> int:
            return sum(s.cost.parameters(r) for s, r in zip(spectra.values(), choice, strict=True))

        result = [ranks[slot] for slot in spectra]
        all_ranks = list(product(range(1, 7), repeat=3))
        step = max(s.cost.per_rank for s in spectra.values())
        assert price(result) <= budget.limit
        assert (
            loss(result)
            <= min(loss(c) for c in all_ranks if price(c) <= budget.limit - step) + 1e-12
        )


def test_marginal_keeps_slots_with_their_energy_in_one_direction() -> None:
    one_direction = torch.ones(100, dtype=torch.float64)
    one_direction[0] = 1e4
    values = {(0, "mlp"): one_direction, (1, "mlp"): torch.ones(100, dtype=torch.float64)}
    spectra = {slot: Spectrum(slot, row, Cost(100, 10, 1000)) for slot, row in values.items()}
    evidence = Evidence(spectra, INFLUENCES)

    def lowest(ratio: float, **options: float) -> int:
        budget = make_budget("params", ratio, spectra, total(spectra))
        return plan_ranks("marginal", evidence, budget, 1.0, options=options)[0, "mlp"]

    assert lowest(0.5) == 5
    assert lowest(0.5, cap=1.0) == 1
    assert lowest(0.5, cap=0.8) == 20
    assert lowest(0.97) == 3  # the budget leaves less than the cap


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("factored", [False, True])
def test_component_ratios_are_met_separately(policy: str, factored: bool) -> None:
    evidence = model_like(factored)
    spectra = evidence.spectra
    dense_total, name = total(spectra), "q" if factored else "qk"
    budget = make_budget("params", 0.3, spectra, dense_total)

    def price_of(ranks, component: str | None = None) -> int:
        return sum(
            s.cost.parameters(ranks[slot])
            for slot, s in spectra.items()
            if component in (None, slot[1])
        )

    dense = price_of({slot: s.cost.full for slot, s in spectra.items()}, name)
    for ratio in (0.0, 0.15, 0.6):
        ranks = plan_ranks(policy, evidence, budget, 0.2, ratios={name: ratio})
        step = 2 * max(
            s.cost.dense - s.cost.parameters(s.cost.cap) if ratio == 0 else s.cost.per_rank
            for s in spectra.values()
        )
        assert (
            dense * (1 - ratio) - max(step, dense * (1 - ratio) * 0.02)
            <= price_of(ranks, name)
            <= dense * (1 - ratio) + 1e-9
        )
        assert price_of(ranks) <= budget.limit
        assert price_of(ranks) > 0.97 * budget.limit
    everything = {component: 0.5 for _, component in spectra}
    ranks = plan_ranks(policy, evidence, budget, 0.2, ratios=everything)
    assert 0.47 * dense_total <= price_of(ranks) <= 0.5 * dense_total


def test_unknown_component_ratios_and_impossible_budgets_raise() -> None:
    evidence = model_like()
    spectra = evidence.spectra
    dense_total = total(spectra)
    budget = make_budget("params", 0.5, spectra, dense_total)
    with pytest.raises(InputError, match="Did you mean 'mlp'"):
        plan_ranks("uniform", evidence, budget, 1.0, ratios={"mpl": 0.3})
    with pytest.raises(InputError, match="too little"):
        plan_ranks(
            "uniform",
            evidence,
            make_budget("params", 0.9, spectra, dense_total),
            1.0,
            ratios={"mlp": 0.0},
        )
    with pytest.raises(InputError, match="kv"):
        plan_ranks(
            "uniform",
            evidence,
            make_budget("kv", 0.3, spectra, cached(spectra)),
            1.0,
            ratios={"mlp": 0.3},
        )


@pytest.mark.parametrize(
    ("family", "method", "remedy"),
    [("llama", "svd", "choose one that shrinks it: a3"), ("deepseek_v3", "a3", "another budget")],
)
def test_kv_budget_raises_for_methods_that_do_not_shrink_the_cache(
    family, method, remedy, tiny_llama, story_file, tmp_path
) -> None:
    """Heads that read cached latents are narrowed after the cache."""
    model = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / family)))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=24, method=method, budget="kv")
    factors = lrcore.prepare(model, recipe)
    with pytest.raises(lrcore.InputError, match=remedy) as refused:
        lrcore.allocate(factors, recipe)
    assert method != "a3" or "a3" not in str(refused.value)
