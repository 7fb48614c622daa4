"""Forms of a part: a plan selects one form, and its account is that of the model."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from plans import plan_ranks

import lrcore
from lrcore.compression.evidence import latency
from lrcore.layers.spectra import Cost, Form, Spectrum, by_part, first_forms
from lrcore.methods import METHODS
from lrcore.models.model_size import count_account
from lrcore.ranks.allocation import Constraints, available_forms
from lrcore.ranks.budget import Prices, make_budget
from lrcore.ranks.evidence import Evidence, LossCurve, Probes

NARROWED = Cost(6, 10, 60, kv_per_rank=1, kv_dense=6)
LEFT = RIGHT = Cost(5, 5, 30, kv_fixed=3, kv_dense=3)


def spectra(layers: int = 2) -> dict:
    """Return a part with two forms, the second with two slots, and a slot without a form."""
    values = {"heads": (NARROWED, "whole"), "q": (LEFT, "pairs"), "k": (RIGHT, "pairs")}
    result = {
        (layer, name): Spectrum(
            (layer, name), torch.ones(cost.full).double(), cost, form=Form("qk", form)
        )
        for layer in range(layers)
        for name, (cost, form) in values.items()
    }
    mlp_cost = Cost(4, 6, 24)
    return result | {
        (layer, "mlp"): Spectrum((layer, "mlp"), torch.ones(4).double(), mlp_cost)
        for layer in range(layers)
    }


def probed(slot_spectra: dict, seed: int) -> Evidence:
    """Return random falling curves for all slots."""
    g = torch.Generator().manual_seed(seed)
    curves = {}
    for slot, s in slot_spectra.items():
        ranks = s.cost.ranks()
        falling = torch.rand(len(ranks), generator=g, dtype=torch.float64).sort().values.flip(0)
        curves[slot] = LossCurve(ranks, falling - falling[-1])
    return Evidence(slot_spectra).with_measurement("probes", Probes(1.0, curves))


def test_slots_are_grouped_by_part_and_form() -> None:
    slot_spectra = spectra(1)
    assert {
        part: {form: [*slots] for form, slots in forms.items()}
        for part, forms in by_part(slot_spectra).items()
    } == {
        (0, "qk"): {"whole": [(0, "heads")], "pairs": [(0, "q"), (0, "k")]},
        (0, "mlp"): {"": [(0, "mlp")]},
    }
    assert [*first_forms(slot_spectra)] == [(0, "heads"), (0, "mlp")]


def test_part_is_priced_once_at_its_cheapest_form() -> None:
    slot_spectra, prices = spectra(1), Prices("params")
    assert prices.dense_price(slot_spectra) == 60 + 24
    assert prices.smallest_price(slot_spectra) == min(10, 5 + 5) + 6
    # more than the first form could remove
    cheap = {
        slot: replace(s, cost=replace(s.cost, per_rank=2)) if slot[1] in "qk" else s
        for slot, s in slot_spectra.items()
    }
    assert prices.smallest_price(cheap) == 4 + 6
    assert make_budget("params", 0.85, cheap, 84).limit == 84 - 72
    with pytest.raises(lrcore.InputError, match=r"at most 0\.810"):
        make_budget("params", 0.85, slot_spectra, 84)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.7])
def test_probed_selects_the_forms_of_lowest_loss(ratio: float, seed: int) -> None:
    """Compare with all choices of forms and ranks for a multiplier; the remaining budget raises
    ranks.
    """
    slot_spectra = spectra(1)
    evidence, budget = probed(slot_spectra, seed), make_budget("params", ratio, slot_spectra, 84)
    curves = evidence.get("probes").curves
    plans = []
    for form in (["heads"], ["q", "k"]):
        slots = [(0, name) for name in (*form, "mlp")]
        for ranks in product(*(budget.offer(slot_spectra[slot].cost).ranks for slot in slots)):
            plan = dict(zip(slots, ranks, strict=True))
            loss = sum(float(curves[slot].at([rank])) for slot, rank in plan.items())
            price = sum(slot_spectra[slot].cost.parameters(rank) for slot, rank in plan.items())
            plans.append((loss, price, plan))
    low, high = 1e-15, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        _, price, _ = min(plans, key=lambda candidate: candidate[0] + middle * candidate[1])
        low, high = (middle, high) if price > budget.limit else (low, middle)
    _, _, best = min(plans, key=lambda candidate: candidate[0] + high * candidate[1])
    result = plan_ranks("probed", evidence, budget)
    assert {*result} == {*best}
    assert all(result[slot] >= rank for slot, rank in best.items())
    assert (
        sum(slot_spectra[slot].cost.parameters(rank) for slot, rank in result.items())
        <= budget.limit
    )


def test_policies_without_a_choice_of_forms_use_the_first_form() -> None:
    slot_spectra = spectra()
    available = available_forms(slot_spectra, Prices("params"), Constraints(), all_forms=False)
    assert {name for _, name in available} == {"heads", "mlp"}


def test_budget_offers_only_the_forms_that_it_counts() -> None:
    available = available_forms(spectra(1), Prices("kv"), Constraints(), all_forms=True)
    assert {name for _, name in available} == {"heads", "mlp"}  # pairs do not change the cache


def test_fixed_ranks_select_the_form() -> None:
    slot_spectra = spectra()
    available = available_forms(
        slot_spectra, Prices("params"), Constraints({(0, "q"): 2}), all_forms=False
    )
    assert {*available} == {(0, "q"), (0, "k"), (0, "mlp"), (1, "heads"), (1, "mlp")}
    available = available_forms(
        slot_spectra, Prices("params"), Constraints(ratios={"k": 0.2}), all_forms=True
    )
    assert {name for _, name in available} == {"q", "k", "mlp"}
    with pytest.raises(lrcore.InputError, match=r"the rank of heads \(whole\) and the ratio of q"):
        available_forms(
            slot_spectra,
            Prices("params"),
            Constraints({(1, "heads"): 2}, {"q": 0.2}),
            all_forms=True,
        )


@pytest.fixture(scope="module")
def prepared(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="fused",
        policy="probed",
    )
    model = lrcore.load(recipe.model)
    return model, recipe, lrcore.prepare(model, recipe)


@pytest.mark.parametrize("ratio", [0.1, 0.4])
def test_account_of_mixed_forms_equals_the_count_of_the_model(prepared, ratio) -> None:
    model, recipe, factors = prepared
    forced = {"0.v": 4, "1.ov": 4}
    plan = lrcore.allocate(factors, recipe.with_(ratio=ratio, rank_overrides=forced))
    forms = {(slot[0], s.form.part): s.form.name for slot, s in plan.spectra.items()}
    assert (forms[0, "ov"], forms[1, "ov"]) == ("pairs", "narrowed")
    assert {slot for slot in plan.ranks if slot[0] == 0} & {(0, "ov")} == set()
    small = lrcore.compress(model, recipe.with_(ratio=ratio, rank_overrides=forced), factors, plan)
    counted, planned = count_account(small.network, recipe.seq_len), plan.account.model
    assert planned.parameters == counted.parameters
    assert planned.kv_bytes_per_token == counted.kv_bytes_per_token
    assert planned.flops_per_token == counted.flops_per_token
    assert plan.account.achieved >= ratio - 1e-9
    shares = plan.kept_by_layer()
    assert 0 < min(shares) < max(shares) < 1


def test_plan_written_as_overrides_is_the_same_plan(prepared) -> None:
    _, recipe, factors = prepared
    plan = lrcore.allocate(factors, recipe.with_(ratio=0.3))
    by_hand = {f"{layer}.{name}": rank for (layer, name), rank in plan.ranks.items()}
    repeated = lrcore.allocate(
        factors, recipe.with_(ratio=0.3, rank_overrides=by_hand, policy="uniform")
    )
    assert repeated.ranks == plan.ranks


def test_uniform_ranks_use_narrowed_forms(prepared) -> None:
    model, recipe, all_factors = prepared
    mlp_cost = recipe.with_(policy="uniform", options={"forms": "narrowed"}, ratio=0.3)
    factors = lrcore.prepare(model, mlp_cost)
    assert {name for _, name in factors.spectra} == {"qk", "ov", "mlp"}
    plan = lrcore.allocate(factors, mlp_cost)
    assert plan.ranks == lrcore.allocate(all_factors, mlp_cost.with_(options={})).ranks
    small = lrcore.compress(model, mlp_cost, factors, plan).network.state_dict()
    same = lrcore.compress(model, mlp_cost.with_(options={}), all_factors).network.state_dict()
    assert small.keys() == same.keys()
    assert all(torch.equal(slot_spectra, same[name]) for name, slot_spectra in small.items())


def mlp_microseconds(layer, hidden, call, repeats) -> float:
    """Return a time independent of the machine: one microsecond per parameter of the MLP."""
    return sum(parameter.numel() for parameter in layer.mlp.parameters()) * 1e-6


@pytest.mark.parametrize(
    ("change", "forms"),
    [
        ({}, "narrowed"),
        ({"options": {"forms": "pairs"}}, "pairs"),
        ({"budget": "kv"}, "latents"),
        ({"policy": "probed"}, "auto"),
        ({"rank_overrides": {"0.v": 4}}, "auto"),
        ({"component_ratios": {"down": 0.2}}, "auto"),
        ({"target": "vllm"}, "auto"),
        ({"budget": "latency", "ratio": 0.02}, "auto"),
    ],
)
def test_plan_solves_only_the_available_forms(
    prepared, monkeypatch: pytest.MonkeyPatch, change: dict, forms: str
) -> None:
    model, recipe, all_factors = prepared
    row, solved = METHODS["fused"], []

    def factor(layer, moments, options):
        solved.append(options.forms)
        return row.factor(layer, moments, options)

    monkeypatch.setitem(METHODS, "fused", replace(row, factor=factor))
    monkeypatch.setattr(latency, "_seconds", mlp_microseconds)
    mlp_cost = recipe.with_(**({"policy": "uniform", "ratio": 0.1} | change))
    small = lrcore.compress(model, mlp_cost)
    assert set(solved) == {forms}
    if forms == "narrowed":
        same = lrcore.compress(model, mlp_cost, all_factors).network.state_dict()
        slot_spectra = small.network.state_dict()
        assert slot_spectra.keys() == same.keys()
        assert all(torch.equal(slot_spectra[name], candidate) for name, candidate in same.items())
        assert small.fingerprint == lrcore.compress(model, mlp_cost, all_factors).fingerprint
