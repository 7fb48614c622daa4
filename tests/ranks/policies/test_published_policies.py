"""The allocations of FLAT-LLM, Swift-SVD, D-Rank, ZS-SVD and Duo-SVD.

They are compared with slow implementations and measured on a model.
"""

import copy
import math
from itertools import product

import pytest
import torch
from plans import plan_ranks, probes

import lrcore
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.ranks.budget import make_budget, rank_for
from lrcore.ranks.evidence import Evidence
from lrcore.ranks.policies import find_policy
from lrcore.ranks.policies.duo_svd import least_loss
from lrcore.ranks.policies.zs_svd import dropped

LAYERS = 5
INFLUENCE = [0.5, 0.1, 0.2, 0.3, 0.4]
RATIOS = [0.1, 0.4, 0.8]


def spectra_of(seed: int = 0) -> dict:
    """Return two types of slots with falling spectra, some flat and some steep."""
    g, spectra = torch.Generator().manual_seed(seed), {}
    for layer in range(LAYERS):
        for name, cost in (("q", Cost(24, 48, 24 * 24)), ("up", Cost(16, 56, 16 * 40))):
            steep = float(torch.rand(1, generator=g)) * 4
            values = torch.rand(cost.full, generator=g, dtype=torch.float64) + 0.01
            falling = torch.linspace(0, -steep, cost.full, dtype=torch.float64).exp()
            values = (values * falling).sort(descending=True).values
            spectra[layer, name] = Spectrum((layer, name), values, cost)
    return spectra


def budget_of(spectra: dict, ratio: float):
    dense = sum(s.cost.dense for s in spectra.values())
    return make_budget("params", ratio, spectra, dense)


def shares_of(policy: str, evidence: Evidence, ratio: float, **options) -> dict:
    row = find_policy(policy)
    return row.share(evidence, budget_of(evidence.spectra, ratio), row.choose(options))


def mean_share(shares: dict, spectra: dict) -> float:
    prices = {slot: spectra[slot].cost.dense for slot in shares}
    return sum(shares[slot] * price for slot, price in prices.items()) / sum(prices.values())


@pytest.mark.parametrize("ratio", RATIOS)
def test_flat_shares_follow_the_angles_and_redistribute_the_excess(ratio: float) -> None:
    """Compare with `phi = min(1, C t)`, with C by bisection."""
    spectra, angles = spectra_of(), [0.5, 0.01, 0.1, 0.2, 0.3]
    shares = shares_of("flat", Evidence(spectra).with_measurement("angles", angles), ratio)
    low, high = 0.0, 1e6
    for _ in range(200):
        scale = (low + high) / 2
        cut = {slot: min(1.0, scale * angles[slot[0]]) for slot in spectra}
        over = mean_share(cut, spectra) > 1 - ratio
        low, high = (low, scale) if over else (scale, high)
    assert shares == pytest.approx(cut, abs=1e-9)


@pytest.mark.parametrize("ratio", [0.6, 0.8])
def test_d_rank_minimizes_effective_rank_over_rank(ratio: float) -> None:
    """Compare with the closed form of the Lagrange problem; uniform if it loses less."""
    spectra = spectra_of()
    budget = budget_of(spectra, ratio)
    shares = shares_of("d_rank", Evidence(spectra), ratio)
    chosen = set()
    for name in ("q", "up"):
        pool = {slot: s for slot, s in spectra.items() if slot[1] == name}
        effective = {}
        for slot, s in pool.items():
            p = s.values**2 / (s.values**2).sum()
            effective[slot] = math.exp(-float((p * p.log()).sum()))
        cost = next(iter(pool.values())).cost
        total = sum(math.sqrt(effective[slot] * cost.per_rank) for slot in pool)
        limit = budget.keep * sum(s.cost.dense for s in pool.values())
        uneven = {
            slot: math.sqrt(effective[slot] / cost.per_rank) * limit / total * cost.per_rank
            for slot in pool
        }
        uneven = {slot: price / cost.dense for slot, price in uneven.items()}

        def lost(values_of_slot: dict, pool: dict = pool) -> float:
            return sum(
                s.tail(rank_for(s.cost, values_of_slot[slot], budget, False))
                for slot, s in pool.items()
            )

        even = dict.fromkeys(pool, budget.keep)
        better = lost(uneven) < lost(even)
        if max(uneven.values()) <= 1:
            expected = uneven if better else even
            assert {slot: shares[slot] for slot in pool} == pytest.approx(expected, abs=1e-12)
            chosen.add(better)
        assert mean_share({slot: shares[slot] for slot in pool}, spectra) == pytest.approx(
            budget.keep
        )
    assert chosen


def test_swift_svd_shares_follow_influence_and_size_above_a_floor() -> None:
    spectra, alpha, floor, ratio = spectra_of(), 0.6, 0.25, 0.4
    evidence = Evidence(spectra, {"block": INFLUENCE})
    shares = shares_of("swift_svd", evidence, ratio, alpha=alpha, floor=floor, level=2.0)
    keep = budget_of(spectra, ratio).keep
    for name in ("q", "up"):
        pool = {slot: s for slot, s in spectra.items() if slot[1] == name}
        sizes = {slot: float(s.values.norm()) for slot, s in pool.items()}
        smallest = min(sizes.values())
        scores = {
            slot: (1 + (INFLUENCE[slot[0]] - 0.1) / 0.4) ** alpha
            * (2.0 + math.log(sizes[slot] / smallest)) ** (1 - alpha)
            for slot in pool
        }
        cost = next(iter(pool.values())).cost
        ranks = keep * cost.dense * LAYERS / cost.per_rank  # of all slots of the type
        base = floor * keep * cost.full
        for slot in pool:
            rank = base + (ranks - base * LAYERS) * scores[slot] / sum(scores.values())
            assert shares[slot] == pytest.approx(rank * cost.per_rank / cost.dense, abs=1e-9)


@pytest.mark.parametrize("options", [{"alpha": 1.0}, {"floor": 1.0, "level": 0.5}])
@pytest.mark.parametrize("ratio", RATIOS)
def test_swift_svd_keeps_the_share_of_every_type(ratio: float, options: dict) -> None:
    spectra = spectra_of()
    evidence = Evidence(spectra, {"block": INFLUENCE})
    shares = shares_of("swift_svd", evidence, ratio, **options)
    for name in ("q", "up"):
        values_of_slot = {slot: share for slot, share in shares.items() if slot[1] == name}
        assert mean_share(values_of_slot, spectra) == pytest.approx(1 - ratio, abs=1e-9)
        assert all(0 <= share <= 1 + 1e-9 for share in values_of_slot.values())


@pytest.mark.parametrize("seed", range(4))
def test_zs_svd_drops_the_smallest_balancing_change(seed: int) -> None:
    """Compare with a search over all slots at each step; the sum of changes stays below the largest
    change.
    """
    g = torch.Generator().manual_seed(seed)
    changes = {(0, name): torch.randn(9, generator=g).tolist() for name in "abcd"}
    prices = {slot: [5, 5, *range(8, 8 + 3 * 6, 3), 26, 26][:10] for slot in changes}
    for limit in (80, 50, 20):
        term_counts, total = dict.fromkeys(changes, 9), 0.0
        while sum(prices[slot][term_counts[slot]] for slot in changes) > limit:
            offers = [
                (slot, changes[slot][term_counts[slot] - 1])
                for slot in changes
                if term_counts[slot] > 1
            ]
            candidates = [item for item in offers if (item[1] >= 0) == (total <= 0)] or offers
            slot, change = min(candidates, key=lambda item: abs(item[1]))
            term_counts[slot] -= 1
            total += change
        assert dropped(changes, prices, dict.fromkeys(changes, 1), limit) == term_counts
        largest = max(abs(item) for values_of_slot in changes.values() for item in values_of_slot)
        if limit == 80:
            assert abs(total) <= largest


def test_zs_svd_without_slopes_drops_the_smallest_share_of_a_slot() -> None:
    spectra = spectra_of()
    evidence = Evidence(spectra).with_measurement("slopes", {})
    shares = shares_of("zs_svd", evidence, 0.7, floor=0.0)
    budget = budget_of(spectra, 0.7)
    parts = sorted(
        (float(v**2) / s.tail(0), slot, i)
        for slot, s in spectra.items()
        for i, v in enumerate(s.values)
        if i > 0
    )
    term_counts = {slot: s.cost.full for slot, s in spectra.items()}

    def price(slot) -> int:
        cost = spectra[slot].cost
        return cost.parameters(term_counts[slot]) if term_counts[slot] <= cost.cap else cost.dense

    for _, slot, i in parts:
        if sum(map(price, term_counts)) <= budget.limit:
            break
        term_counts[slot] = i
    assert shares == {slot: price(slot) / spectra[slot].cost.dense for slot in spectra}


def test_zs_svd_keeps_its_floor_if_the_budget_allows() -> None:
    spectra = spectra_of()
    changes = {slot: torch.full((s.cost.full,), 1.0 + slot[0]) for slot, s in spectra.items()}
    evidence = Evidence(spectra).with_measurement("slopes", changes)
    for floor, rank in ((0.0, 1), (0.5, 6)):
        shares = shares_of("zs_svd", evidence, 0.5, floor=floor)
        assert shares[0, "q"] == pytest.approx(rank * 48 / (24 * 24))
    shares = shares_of("zs_svd", evidence, 0.9, floor=1.0)
    ranks = plan_ranks("zs_svd", evidence, budget_of(spectra, 0.9), options={"floor": 1.0})
    assert mean_share(shares, spectra) > 0.1
    assert sum(s.cost.parameters(ranks[slot]) for slot, s in spectra.items()) <= 0.1 * sum(
        s.cost.dense for s in spectra.values()
    )


@pytest.mark.parametrize("seed", range(4))
def test_least_loss_equals_an_exhaustive_search(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    losses = [torch.rand(n, generator=g, dtype=torch.float64) for n in (4, 5, 3, 4)]
    prices = [
        torch.cat(
            [torch.zeros(1), torch.randint(1, 9, (len(values_of_slot) - 1,), generator=g)]
        ).long()
        for values_of_slot in losses
    ]
    for limit in (0, 5, 11, 40):
        measured = least_loss(losses, prices, limit)
        assert sum(int(p[i]) for p, i in zip(prices, measured, strict=True)) <= limit
        best = min(
            sum(float(values_of_slot[i]) for values_of_slot, i in zip(losses, choice, strict=True))
            for choice in product(*(range(len(values_of_slot)) for values_of_slot in losses))
            if sum(int(p[i]) for p, i in zip(prices, choice, strict=True)) <= limit
        )
        total = sum(
            float(values_of_slot[i]) for values_of_slot, i in zip(losses, measured, strict=True)
        )
        assert total == pytest.approx(best, abs=1e-12)


def test_duo_svd_is_at_least_as_good_as_a_single_multiplier() -> None:
    """For curves that are not convex, its sum of losses is at most that of `probed`, and lower for
    some budgets.
    """
    g, gains = torch.Generator().manual_seed(3), []
    spectra = {slot: s for slot, s in spectra_of().items() if slot[0] < 3}
    for ratio in (0.3, 0.5, 0.7):
        curves = {}
        for slot, s in spectra.items():
            position = torch.linspace(0, 1, len(s.cost.ranks()), dtype=torch.float64)
            curves[slot] = (1 - position**3) * (0.5 + float(torch.rand(1, generator=g)))
        evidence = Evidence(spectra).with_measurement("probes", probes(spectra, curves))
        budget, sums = budget_of(spectra, ratio), []
        for policy in ("duo_svd", "probed"):
            ranks = plan_ranks(policy, evidence, budget)
            spent = sum(s.cost.parameters(ranks[slot]) for slot, s in spectra.items())
            assert spent <= budget.limit
            sums.append(
                sum(
                    float(curves[slot][s.cost.ranks().index(ranks[slot])])
                    for slot, s in spectra.items()
                )
            )
        gains.append(sums[1] - sums[0])
    assert min(gains) > -1e-9
    assert max(gains) > 1e-3


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def recipe(story_file):
    return lrcore.Recipe(data=str(story_file), samples=3, seq_len=24, method="svd_llm", ratio=0.3)


@pytest.fixture(scope="module")
def plain(model, recipe):
    return lrcore.prepare(model, recipe)


def test_angles_are_between_input_and_output_of_each_layer(model, recipe, plain) -> None:
    measured = lrcore.measure_evidence(model, plain, recipe.with_(policy="flat")).evidence
    with torch.inference_mode():
        states = model.network(plain.calibration.tokens, output_hidden_states=True).hidden_states
    # the last hidden state of transformers is normalized, so the last layer is not compared
    for layer, angle in enumerate(measured.get("angles")[:-1]):
        before, after = (states[i].double().flatten(0, 1) for i in (layer, layer + 1))
        cosine = (before * after).sum(1) / before.norm(dim=1) / after.norm(dim=1)
        assert angle == pytest.approx(float(cosine.acos().mean()) / math.pi, abs=1e-5)
        assert 0 < angle < 1


def test_slopes_are_first_order_changes_of_the_loss(model, recipe, plain) -> None:
    """Compare with autograd on the family's parameters: `-<G, up_i down_i>` of each term."""
    measured = lrcore.measure_evidence(model, plain, recipe.with_(policy="zs_svd")).evidence
    network, tokens = copy.deepcopy(model.network).requires_grad_(), plain.calibration.tokens
    loss = sum(network(item, labels=item).loss for item in tokens.split(1)) / len(tokens)
    loss.backward()
    for index, values_of_slot in enumerate(plain.layers):
        for name, factor in values_of_slot.items():
            changes = measured.get("slopes")[index, name]
            paths = {"o": "self_attn.o_proj", "up": "mlp.up_proj"}
            if name not in paths:
                assert len(changes) == len(factor.up.mT)
                continue
            weight = network.model.layers[index].get_submodule(paths[name]).weight
            terms = torch.stack(
                [torch.outer(u, d) for u, d in zip(factor.up.mT, factor.down, strict=True)]
            )
            expected = -(terms * weight.grad.double()).sum((1, 2))
            assert torch.allclose(changes, expected, atol=1e-6, rtol=1e-4)


def test_slopes_need_no_gradients_without_sums_of_terms(model, recipe, plain, monkeypatch) -> None:
    position = "lrcore.compression.evidence.calibration_evidence.with_gradients"
    monkeypatch.setattr(position, lambda *_: pytest.fail("gradients were collected"))
    values_of_slot = recipe.with_(method="a3", policy="zs_svd")
    factors = lrcore.factorize(model, plain.calibration, "a3")
    factors = lrcore.measure_evidence(model, factors, values_of_slot)
    assert factors.evidence.get("slopes") == {}
    assert lrcore.allocate(factors, values_of_slot).summary()["achieved"] >= 0.3


@pytest.mark.parametrize("policy", ["flat", "swift_svd", "d_rank", "zs_svd"])
def test_policies_reach_the_model(model, recipe, plain, policy: str) -> None:
    """Missing evidence is measured; `duo_svd` reads the evidence of `probed`."""
    small = lrcore.compress(model, recipe.with_(policy=policy), plain)
    assert small.account.to_dict()["achieved"] >= 0.3
    with torch.inference_mode():
        assert torch.isfinite(small.network(torch.arange(3, 35)[None]).logits).all()
