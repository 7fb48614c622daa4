"""Forms of one part: a plan takes one of them, and the account is that of the model it gives."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from plans import plan_ranks

import lrcore
from lrcore.allocation import Constraints, open_forms
from lrcore.alternatives import by_part, first_forms
from lrcore.budget import Prices, make_budget
from lrcore.evidence import Evidence, LossCurve, Probes
from lrcore.methods import METHODS
from lrcore.models.counting import count_account
from lrcore.spectra import Cost, Form, Spectrum

NARROWED = Cost(6, 10, 60, kv_per_rank=1, kv_dense=6)
LEFT = RIGHT = Cost(5, 5, 30, kv_fixed=3, kv_dense=3)


def spectra(layers: int = 2) -> dict:
    """One part in two forms, the second of two slots, and a slot without another form."""
    values = {"heads": (NARROWED, "whole"), "q": (LEFT, "pairs"), "k": (RIGHT, "pairs")}
    found = {
        (layer, name): Spectrum(
            (layer, name), torch.ones(cost.full).double(), cost, form=Form("qk", form)
        )
        for layer in range(layers)
        for name, (cost, form) in values.items()
    }
    alone = Cost(4, 6, 24)
    return found | {
        (layer, "mlp"): Spectrum((layer, "mlp"), torch.ones(4).double(), alone)
        for layer in range(layers)
    }


def probed(own: dict, seed: int) -> Evidence:
    """Random falling curves for every slot."""
    g = torch.Generator().manual_seed(seed)
    curves = {}
    for slot, s in own.items():
        ranks = s.cost.ranks()
        falling = torch.rand(len(ranks), generator=g, dtype=torch.float64).sort().values.flip(0)
        curves[slot] = LossCurve(ranks, falling - falling[-1])
    return Evidence(own).with_measurement("probes", Probes(1.0, curves))


def test_slots_are_grouped_by_part_and_form() -> None:
    own = spectra(1)
    assert {
        part: {form: [*slots] for form, slots in forms.items()}
        for part, forms in by_part(own).items()
    } == {
        (0, "qk"): {"whole": [(0, "heads")], "pairs": [(0, "q"), (0, "k")]},
        (0, "mlp"): {"": [(0, "mlp")]},
    }
    assert [*first_forms(own)] == [(0, "heads"), (0, "mlp")]


def test_a_part_is_priced_once_and_at_its_cheapest_form() -> None:
    own, prices = spectra(1), Prices("params")
    assert prices.dense_of(own) == 60 + 24
    assert prices.least_of(own) == min(10, 5 + 5) + 6
    # what a single form could not remove
    cheap = {
        slot: replace(s, cost=replace(s.cost, per_rank=2)) if slot[1] in "qk" else s
        for slot, s in own.items()
    }
    assert prices.least_of(cheap) == 4 + 6
    assert make_budget("params", 0.85, cheap, 84).limit == 84 - 72
    with pytest.raises(lrcore.InputError, match=r"at most 0\.810"):
        make_budget("params", 0.85, own, 84)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.7])
def test_probed_takes_the_forms_of_least_loss(ratio: float, seed: int) -> None:
    """As looking at every choice of forms and ranks with one multiplier does; what the budget then
    leaves raises ranks further.
    """
    own = spectra(1)
    evidence, budget = probed(own, seed), make_budget("params", ratio, own, 84)
    curves = evidence.get("probes").curves
    plans = []
    for form in (["heads"], ["q", "k"]):
        slots = [(0, name) for name in (*form, "mlp")]
        for ranks in product(*(budget.offer(own[slot].cost).ranks for slot in slots)):
            plan = dict(zip(slots, ranks, strict=True))
            loss = sum(float(curves[slot].at([rank])) for slot, rank in plan.items())
            price = sum(own[slot].cost.parameters(rank) for slot, rank in plan.items())
            plans.append((loss, price, plan))
    low, high = 1e-15, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        _, price, _ = min(plans, key=lambda one: one[0] + middle * one[1])
        low, high = (middle, high) if price > budget.limit else (low, middle)
    _, _, best = min(plans, key=lambda one: one[0] + high * one[1])
    found = plan_ranks("probed", evidence, budget)
    assert {*found} == {*best}
    assert all(found[slot] >= rank for slot, rank in best.items())
    assert sum(own[slot].cost.parameters(rank) for slot, rank in found.items()) <= budget.limit


def test_policies_that_do_not_choose_take_the_first_form() -> None:
    own = spectra()
    left = open_forms(own, Prices("params"), Constraints(), every=False)
    assert {name for _, name in left} == {"heads", "mlp"}


def test_a_budget_takes_the_forms_that_it_counts() -> None:
    left = open_forms(spectra(1), Prices("kv"), Constraints(), every=True)
    assert {name for _, name in left} == {"heads", "mlp"}  # pairs leave the cache as it is


def test_what_is_set_by_hand_chooses_the_form() -> None:
    own = spectra()
    left = open_forms(own, Prices("params"), Constraints({(0, "q"): 2}), every=False)
    assert {*left} == {(0, "q"), (0, "k"), (0, "mlp"), (1, "heads"), (1, "mlp")}
    left = open_forms(own, Prices("params"), Constraints(ratios={"k": 0.2}), every=True)
    assert {name for _, name in left} == {"q", "k", "mlp"}
    with pytest.raises(lrcore.InputError, match=r"the rank of heads \(whole\) and the ratio of q"):
        open_forms(own, Prices("params"), Constraints({(1, "heads"): 2}, {"q": 0.2}), every=True)


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
def test_the_account_of_mixed_forms_is_that_of_the_model(prepared, ratio) -> None:
    model, recipe, factors = prepared
    forced = {"0.v": 4, "1.ov": 4}
    plan = lrcore.allocate(factors, recipe.with_(ratio=ratio, overrides=forced))
    forms = {(slot[0], s.form.part): s.form.name for slot, s in plan.spectra.items()}
    assert (forms[0, "ov"], forms[1, "ov"]) == ("pairs", "narrowed")
    assert {slot for slot in plan.ranks if slot[0] == 0} & {(0, "ov")} == set()
    small = lrcore.compress(model, recipe.with_(ratio=ratio, overrides=forced), factors, plan)
    counted, planned = count_account(small.network, recipe.seq_len), plan.account.model
    assert planned.parameters == counted.parameters
    assert planned.kv_bytes_per_token == counted.kv_bytes_per_token
    assert planned.flops_per_token == counted.flops_per_token
    assert plan.account.achieved >= ratio - 1e-9
    kept = plan.kept_by_layer()
    assert 0 < min(kept) < max(kept) < 1


def test_a_plan_written_as_overrides_is_the_same_plan(prepared) -> None:
    _, recipe, factors = prepared
    plan = lrcore.allocate(factors, recipe.with_(ratio=0.3))
    by_hand = {f"{layer}.{name}": rank for (layer, name), rank in plan.ranks.items()}
    again = lrcore.allocate(factors, recipe.with_(ratio=0.3, overrides=by_hand, policy="uniform"))
    assert again.ranks == plan.ranks


def test_narrowed_forms_alone_are_what_uniform_ranks_take(prepared) -> None:
    model, recipe, every = prepared
    alone = recipe.with_(policy="uniform", options={"forms": "narrowed"}, ratio=0.3)
    factors = lrcore.prepare(model, alone)
    assert {name for _, name in factors.spectra} == {"qk", "ov", "mlp"}
    plan = lrcore.allocate(factors, alone)
    assert plan.ranks == lrcore.allocate(every, alone.with_(options={})).ranks
    small = lrcore.compress(model, alone, factors, plan).network.state_dict()
    same = lrcore.compress(model, alone.with_(options={}), every).network.state_dict()
    assert small.keys() == same.keys()
    assert all(torch.equal(own, same[name]) for name, own in small.items())


@pytest.mark.parametrize(
    ("change", "forms"),
    [
        ({}, "narrowed"),
        ({"options": {"forms": "pairs"}}, "pairs"),
        ({"budget": "kv"}, "latents"),
        ({"policy": "probed"}, "auto"),
        ({"overrides": {"0.v": 4}}, "auto"),
        ({"component_ratios": {"down": 0.2}}, "auto"),
        ({"target": "vllm"}, "auto"),
        ({"budget": "latency", "ratio": 0.02}, "auto"),
    ],
)
def test_one_plan_solves_the_forms_that_it_can_take(
    prepared, monkeypatch: pytest.MonkeyPatch, change: dict, forms: str
) -> None:
    model, recipe, every = prepared
    row, solved = METHODS["fused"], []

    def factor(layer, moments, options):
        solved.append(options.forms)
        return row.factor(layer, moments, options)

    monkeypatch.setitem(METHODS, "fused", replace(row, factor=factor))
    alone = recipe.with_(**({"policy": "uniform", "ratio": 0.1} | change))
    small = lrcore.compress(model, alone)
    assert set(solved) == {forms}
    if forms == "narrowed":
        same = lrcore.compress(model, alone, every).network.state_dict()
        own = small.network.state_dict()
        assert own.keys() == same.keys()
        assert all(torch.equal(own[name], one) for name, one in same.items())
        assert small.fingerprint == lrcore.compress(model, alone, every).fingerprint
