"""The allocations of OWL, ASVD, Palu and SVD-LLM v2, compared with slow implementations."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from plans import cached, chosen, plan_ranks, probes
from tiny_models import STRUCTURES

import lrcore
from lrcore.compression.calibration.gradients import fisher_information
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.layers.statistics import TAPS
from lrcore.methods import find_method
from lrcore.models.layers import read_layer
from lrcore.ranks.budget import make_budget
from lrcore.ranks.evidence import Evidence
from lrcore.ranks.policies import find_policy, multiplier
from lrcore.ranks.policies.multiplier import least_sum

LAYERS = 5
RATIOS = [0.05, 0.1, 0.3, 0.5, 0.9]
OUTLIERS = [[0.2 * d**m for m in range(1, 21)] for d in (0.5, 0.1, 0.3, 0.35, 0.9)]


def uneven(seed: int = 0) -> Evidence:
    """Return two types of slots, the second more expensive in later layers, losses 1e-3 to 1e3."""
    g, spectra = torch.Generator().manual_seed(seed), {}
    increases, information = {}, {}
    for layer in range(LAYERS):
        for name, cost in (
            ("q", Cost(24, 40, 24 * 40)),
            ("up", Cost(16, 30 + layer, 16 * (30 + layer))),
        ):
            values = torch.rand(cost.full, generator=g, dtype=torch.float64).sort(
                descending=True
            ).values * 10 ** (layer - 2)
            increase = (
                torch.rand(len(cost.ranks()), generator=g, dtype=torch.float64).cumsum(0).flip(0)
            )
            increases[layer, name] = (increase - increase[-1]) * (1 + layer)
            information[layer, name] = float(torch.rand(1, generator=g)) ** 2 * 1e-5
            spectra[layer, name] = Spectrum((layer, name), values, cost)
    return (
        Evidence(spectra)
        .with_measurement("outliers", OUTLIERS)
        .with_measurement("probes", probes(spectra, increases))
        .with_measurement("gradients", information)
    )


def requested(evidence: Evidence, ratio: float):
    dense = sum(s.cost.dense for s in evidence.spectra.values())
    return make_budget("params", ratio, evidence.spectra, dense)


def targets(
    policy: str, ratio: float, evidence: Evidence | None = None, **options
) -> tuple[dict, dict, float]:
    """Return the shares of a policy, the prices of the slots, and the weighted mean share."""
    evidence = evidence or uneven()
    row, budget = find_policy(policy), requested(evidence, ratio)
    shares = row.targets(evidence, budget, row.choose(options))
    prices = {slot: s.cost.dense for slot, s in evidence.spectra.items()}
    return (
        shares,
        prices,
        sum(shares[slot] * prices[slot] for slot in shares) / sum(prices.values()),
    )


@pytest.mark.parametrize("threshold", [1, 3, 5, 20])
@pytest.mark.parametrize("ratio", RATIOS)
def test_owl_is_linear_in_the_outliers_within_its_band(ratio: float, threshold: int) -> None:
    shares, prices, mean = targets("owl", ratio, threshold=threshold, spread=0.2)
    keep = requested(uneven(), ratio).keep
    band = min(0.2, keep, 1 - keep)
    assert mean == pytest.approx(keep, abs=1e-12)
    assert max(abs(share - keep) for share in shares.values()) == pytest.approx(band, abs=1e-12)
    result = [row[threshold - 1] for row in OUTLIERS]
    center = sum(result[slot[0]] * price for slot, price in prices.items()) / sum(prices.values())
    slope = band / max(abs(d - center) for d in result)
    for (layer, _), share in shares.items():
        assert share == pytest.approx(keep + slope * (result[layer] - center), abs=1e-12)


def test_owl_is_uniform_without_spread_or_differences_and_needs_outliers() -> None:
    assert set(targets("owl", 0.3, spread=0.0)[0].values()) == {requested(uneven(), 0.3).keep}
    evidence = uneven().with_measurement("outliers", [OUTLIERS[0]] * LAYERS)
    same = find_policy("owl").targets(evidence, requested(evidence, 0.3), chosen("owl", 1.0))
    assert set(same.values()) == {requested(evidence, 0.3).keep}
    with pytest.raises(lrcore.InputError, match="'outliers'"):
        plan_ranks("owl", Evidence(evidence.spectra), requested(evidence, 0.3))


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_opt"])
def test_outliers_are_counted_over_all_matrices_of_a_layer(request, story_file, name: str) -> None:
    model = lrcore.load(str(request.getfixturevalue(name)))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, policy="owl", ratio=0.3)
    factors = lrcore.prepare(model, recipe)
    outliers = factors.evidence.get("outliers")
    for index, result in enumerate(outliers):
        layer, moments = read_layer(model.network, index), factors.calibration.moments(index)
        entries = torch.cat(
            [
                (p.weight.double().abs() * moments.square(TAPS[n]).sqrt()).flatten()
                for n, p in layer.matrices().items()
            ]
        )
        for m in range(1, 21):
            assert result[m - 1] == pytest.approx(
                float((entries > m * entries.mean()).double().mean()), abs=1.5 / len(entries)
            )
    assert (
        lrcore.factorize(model, factors.calibration, "svd").evidence.get("outliers") == outliers
    )  # counted once for all methods
    plan = lrcore.allocate(factors, recipe)
    shares_kept = plan.kept_by_layer()
    assert shares_kept.index(max(shares_kept)) == max(
        range(len(shares_kept)), key=lambda layer: outliers[layer][4]
    )


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sensitivity_uses_the_smallest_threshold_within_the_budget(ratio: float, seed: int) -> None:
    """Compare with all possible thresholds and all ranks of all slots."""
    evidence = uneven(seed)
    spectra, budget = evidence.spectra, requested(evidence, ratio)
    curves = {slot: curve.increase for slot, curve in evidence.get("probes").curves.items()}

    def ranks_at(threshold: float) -> dict:
        return {
            slot: next(
                r for i, r in enumerate(s.cost.ranks()) if float(curves[slot][i]) <= threshold
            )
            for slot, s in spectra.items()
        }

    def price(ranks: dict) -> int:
        return sum(s.cost.parameters(ranks[slot]) for slot, s in spectra.items())

    best = min(
        float(rise)
        for curve in curves.values()
        for rise in curve
        if price(ranks_at(float(rise))) <= budget.limit
    )
    smallest, result = ranks_at(best), plan_ranks("sensitivity", evidence, budget)
    assert all(result[slot] >= smallest[slot] for slot in spectra)
    raised = [slot for slot in spectra if result[slot] > smallest[slot]]
    assert price(result) <= budget.limit
    step = max(s.cost.per_rank for s in spectra.values())
    assert price(result) - price(smallest) <= step * len(
        raised
    )  # at most the last step of the threshold is undone


@pytest.mark.parametrize("policy", ["owl", "sensitivity", "fisher"])
def test_larger_ratio_never_raises_a_share(policy: str) -> None:
    shares = [targets(policy, ratio)[0] for ratio in (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)]
    for larger, less in pairwise(shares):
        assert all(less[slot] <= larger[slot] + 1e-12 for slot in larger)


def test_sensitivity_without_probes_raises() -> None:
    evidence = Evidence(uneven().spectra)
    with pytest.raises(lrcore.InputError, match="'probes'"):
        plan_ranks("sensitivity", evidence, requested(evidence, 0.3))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("ratio", RATIOS)
def test_fisher_shares_are_proportional_to_information_up_to_one(
    ratio: float, power: float
) -> None:
    """A share is `scale * I^power`, clipped at 1, with a common scale."""
    evidence = uneven()
    shares, prices, mean = targets("fisher", ratio, power=power)
    keep = requested(evidence, ratio).keep
    assert mean == pytest.approx(keep, abs=1e-12)

    def cut(scale: float) -> dict:
        information = evidence.get("gradients")
        return {slot: min(1.0, scale * value**power) for slot, value in information.items()}

    low, high = 0.0, 1e20
    for _ in range(300):
        middle = (low + high) / 2
        over = sum(share * prices[slot] for slot, share in cut(middle).items()) > keep * sum(
            prices.values()
        )
        low, high = (low, middle) if over else (middle, high)
    assert shares == pytest.approx(cut(low), abs=1e-9)


def test_fisher_gives_keys_and_values_the_ranks_of_palu() -> None:
    """In section 3.3, for matrices of equal size, a rank is the share of information times all
    ranks.
    """
    g, cost = (
        torch.Generator().manual_seed(4),
        Cost(40, 40 + 64, 40 * 64, kv_per_rank=1, kv_dense=40),
    )
    result = {
        (layer, name): 1 + float(torch.rand(1, generator=g))
        for layer in range(6)
        for name in ("k", "v")
    }
    spectra = {slot: Spectrum(slot, torch.ones(40, dtype=torch.float64), cost) for slot in result}
    information = {slot: 1e-7 * value for slot, value in result.items()}
    budget = make_budget("kv", 0.5, spectra, cached(spectra))
    evidence = Evidence(spectra).with_measurement("gradients", information)
    ranks = plan_ranks("fisher", evidence, budget)
    total = 0.5 * 40 * len(spectra)
    for slot, value in result.items():
        assert ranks[slot] - math.floor(total * value / sum(result.values())) in (0, 1)
    assert sum(ranks.values()) == total


def test_fisher_without_gradients_raises_and_zero_gradients_give_even_shares() -> None:
    evidence = Evidence(uneven().spectra)
    with pytest.raises(lrcore.InputError, match="'gradients'"):
        plan_ranks("fisher", evidence, requested(evidence, 0.3))
    zero_gradients = evidence.with_measurement("gradients", dict.fromkeys(evidence.spectra, 0.0))
    keep = requested(evidence, 0.3).keep
    assert all(
        share == pytest.approx(keep) for share in targets("fisher", 0.3, zero_gradients)[0].values()
    )


NAMES = {
    "tiny_llama": {
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "o_proj",
        "gate": "gate_proj",
        "up": "up_proj",
        "down": "down_proj",
    },
    "tiny_opt": {
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "out_proj",
        "up": "fc1",
        "down": "fc2",
    },
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["a3", "svd_llm", "latentllm", "care"])
def test_information_is_the_mean_squared_gradient_over_the_matrices_of_a_slot(
    request, story_file, name: str, method: str
) -> None:
    """Compare with autograd on the family's parameters, window by window."""
    model = lrcore.load(str(request.getfixturevalue(name)))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=3, seq_len=24, method=method, policy="fisher", ratio=0.3
    )
    factors = lrcore.prepare(model, recipe)
    network, tokens = copy.deepcopy(model.network).requires_grad_(), factors.calibration.tokens
    weights = {
        key: parameter for key, parameter in network.named_parameters() if key.endswith("weight")
    }
    squares = dict.fromkeys(weights, 0.0)
    for window in tokens.split(1):
        loss = network(window, labels=window).loss
        for key, slope in zip(weights, torch.autograd.grad(loss, weights.values()), strict=True):
            squares[key] = squares[key] + slope.double() ** 2 / len(tokens)
    information = factors.evidence.get("gradients")
    for layer, slot in factors.spectra:
        parts = [
            NAMES[name][value]
            for value in find_method(method).matrices_of(slot)
            if value in NAMES[name]
        ]
        subset = [
            square.flatten()
            for key, square in squares.items()
            if f".{layer}." in key and key.split(".")[-2] in parts
        ]
        assert len(subset) == len(parts)
        assert information[layer, slot] == pytest.approx(float(torch.cat(subset).mean()), rel=1e-4)
    shares_kept = lrcore.allocate(factors, recipe).ranks
    by_information = sorted(information, key=information.__getitem__)
    smallest, largest = by_information[0], by_information[-1]
    assert (
        shares_kept[smallest] / factors.spectra[smallest].cost.full
        <= shares_kept[largest] / factors.spectra[largest].cost.full
    )


def test_gradients_are_collected_once_and_only_for_fisher(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16)
    plain = lrcore.prepare(model, recipe)
    assert not plain.evidence.has("gradients")
    assert not (tmp_path / "gradients").exists()
    first = lrcore.measure_evidence(model, plain, recipe.with_(policy="fisher"))
    monkeypatch.setattr(
        "lrcore.compression.calibration.gradients.collect",
        lambda *_: pytest.fail("the cache was not used"),
    )
    matrices = {slot: find_method(plain.method).matrices_of(slot[1]) for slot in plain.spectra}
    second = fisher_information(model, plain.calibration, matrices)
    assert second == first.evidence.get("gradients")
    with pytest.raises(lrcore.InputError, match="without offload"):
        lrcore.prepare(lrcore.load(str(tiny_llama), offload=True), recipe.with_(policy="fisher"))


@pytest.mark.parametrize("level", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("ratio", [0.1, 0.2])
def test_svd_llm_v2_shares_follow_the_inverse_log_losses_of_a_type(
    ratio: float, level: float
) -> None:
    evidence = uneven()
    spectra, keep = evidence.spectra, requested(evidence, ratio).keep
    shares, prices, _ = targets("svd_llm_v2", ratio, level=level, cap=1.0)
    for name in ("q", "up"):
        pool = {slot: s for slot, s in spectra.items() if slot[1] == name}
        losses = {}
        for slot, s in pool.items():
            rank = max(r for r in s.cost.ranks() if s.cost.parameters(r) <= keep * s.cost.dense)
            losses[slot] = math.sqrt(float((s.values[rank:] ** 2).sum()))
        weights = {
            slot: 1 / (level + math.log(loss / min(losses.values())))
            for slot, loss in losses.items()
        }
        scale = (
            (1 - keep)
            * sum(prices[slot] for slot in pool)
            / sum(weights[slot] * prices[slot] for slot in pool)
        )
        for slot in pool:
            assert 1 - shares[slot] == pytest.approx(scale * weights[slot], abs=1e-12)
        by_loss = [shares[slot] for slot in sorted(pool, key=losses.__getitem__)]
        assert by_loss == sorted(by_loss)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("cap", [0.6, 0.95])
def test_svd_llm_v2_keeps_the_share_of_every_type_and_its_cap(ratio: float, cap: float) -> None:
    shares, prices, _ = targets("svd_llm_v2", ratio, level=0.1, cap=cap)
    keep = requested(uneven(), ratio).keep
    for name in ("q", "up"):
        subset = {slot: price for slot, price in prices.items() if slot[1] == name}
        assert sum(shares[slot] * price for slot, price in subset.items()) / sum(
            subset.values()
        ) == pytest.approx(keep, abs=1e-12)
        assert min(shares[slot] for slot in subset) >= min(1 - cap, keep) - 1e-12


def test_svd_llm_v2_supports_zero_losses_and_a_large_level_is_even() -> None:
    spectra = dict(uneven().spectra)
    spectra[0, "q"] = Spectrum((0, "q"), torch.zeros(24, dtype=torch.float64), spectra[0, "q"].cost)
    shares = targets("svd_llm_v2", 0.3, Evidence(spectra))[0]
    assert min(shares, key=shares.__getitem__) == (0, "q")
    zero_spectra = {
        slot: Spectrum(slot, torch.zeros_like(s.values), s.cost) for slot, s in spectra.items()
    }
    keep = requested(Evidence(spectra), 0.3).keep
    zero_loss_shares = targets("svd_llm_v2", 0.3, Evidence(zero_spectra))[0]
    assert all(share == pytest.approx(keep) for share in zero_loss_shares.values())
    even = targets("svd_llm_v2", 0.3, level=100.0)[0]
    assert all(abs(share - keep) < 0.03 for share in even.values())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["owl", "sensitivity", "svd_llm_v2", "fisher"])
@pytest.mark.parametrize("method", STRUCTURES)
@pytest.mark.parametrize("name", ["tiny_llama", "tiny_opt"])
def test_all_methods_compress_with_baseline_policies(
    request, story_file, name: str, method: str, policy: str
) -> None:
    model = lrcore.load(str(request.getfixturevalue(name)))
    recipe = lrcore.Recipe(
        data=str(story_file),
        samples=4,
        seq_len=32,
        method=method,
        policy=policy,
        ratio=0.3,
        refit="off",
    )
    small = lrcore.compress(model, recipe)
    assert small.account.to_dict()["achieved"] >= 0.3
    with torch.inference_mode():
        assert torch.isfinite(small.network(torch.arange(3, 35).unsqueeze(0)).logits).all()


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.8])
def test_multiplier_equals_that_of_an_exhaustive_search(ratio: float) -> None:
    """Slots of several sizes have uneven losses, so some ranks are never optimal."""
    g = torch.Generator().manual_seed(4)
    costs = {"a": Cost(7, 3, 21), "b": Cost(40, 5, 200), "c": Cost(12, 30, 200)}
    spectra = {
        (layer, name): Spectrum((layer, name), torch.ones(cost.full, dtype=torch.float64), cost)
        for layer in range(5)
        for name, cost in costs.items()
    }
    losses = {
        slot: torch.rand(len(s.cost.ranks()), generator=g, dtype=torch.float64)
        .sort()
        .values.flip(0)
        for slot, s in spectra.items()
    }
    budget = make_budget("params", ratio, spectra, sum(s.cost.dense for s in spectra.values()))
    prices = {slot: budget.offer(s.cost).prices for slot, s in spectra.items()}
    positions = {
        s: [spectra[s].cost.ranks().index(r) for r in budget.offer(spectra[s].cost).ranks]
        for s in spectra
    }
    low, high = 1e-15, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        best = {s: int((losses[s][positions[s]] + middle * prices[s]).argmin()) for s in spectra}
        over = sum(int(prices[s][i]) for s, i in best.items()) > budget.limit
        low, high = (middle, high) if over else (low, middle)
    best = {s: int((losses[s][positions[s]] + high * prices[s]).argmin()) for s in spectra}
    targets = least_sum(losses, spectra, budget)
    prices_spent = {s: round(targets[s] * int(prices[s][-1])) for s in spectra}
    assert all(
        prices_spent[s] >= int(prices[s][i]) for s, i in best.items()
    )  # the remainder is spent as well
    assert sum(prices_spent.values()) <= budget.limit
    assert sum(prices_spent[s] != int(prices[s][i]) for s, i in best.items()) < 5


@pytest.mark.parametrize("seed", range(20))
def test_initial_guess_from_few_ranks_gives_the_same_ranks(seed, monkeypatch) -> None:
    """For slots with thousands of ranks, a guess avoids a search over all ranks."""
    g = np.random.default_rng(seed)
    spectra, losses = {}, {}
    for slot in [(layer, name) for layer in range(3) for name in "ab"]:
        full, per_rank = int(g.integers(3, 60)), int(g.integers(1, 9))
        cost = Cost(full, per_rank, int(per_rank * full * g.uniform(0.6, 1.2)) + 1)
        spectra[slot] = Spectrum(slot, torch.ones(full, dtype=torch.float64), cost)
        loss = g.random(len(cost.ranks()))
        losses[slot] = torch.from_numpy(np.sort(loss)[::-1].copy() if seed % 2 else loss)
    for ratio in (0.05, 0.2, 0.4):
        budget = make_budget("params", ratio, spectra, sum(s.cost.dense for s in spectra.values()))
        monkeypatch.setattr(multiplier, "FEW", 10**6)
        exact = least_sum(losses, spectra, budget)
        for few in (2, 6):
            monkeypatch.setattr(multiplier, "FEW", few)
            assert least_sum(losses, spectra, budget) == exact
