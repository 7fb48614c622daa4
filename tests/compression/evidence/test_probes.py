"""Probes are real losses, curves pass through them, and the plan they lead to is the best there
is.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from plans import plan_ranks, probes

import lrcore
from lrcore.budget import make_budget
from lrcore.compression.evidence.probes import interpolate, loss_curve, measure_rises, probed_ranks
from lrcore.evidence import Evidence
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.spectra import Cost, Spectrum


@pytest.fixture(params=["tiny_llama", "tiny_opt"])
def case(request, story_file):
    model = lrcore.load(str(request.getfixturevalue(request.param)))
    recipe = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, policy="probed", ratio=0.3)
    return model, recipe, lrcore.factorise(model, lrcore.calibrate(model, recipe), "a3")


def plain_loss(network, tokens) -> float:
    with torch.inference_mode():
        logits = network(tokens).logits[:, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def test_rises_equal_those_of_whole_forward_passes(case) -> None:
    model, _, factors = case
    tokens = factors.calibration.tokens
    before = plain_loss(model.network, tokens)
    base, points = measure_rises(model.network, factors, tokens, lambda *_: None)
    assert base == pytest.approx(before, abs=1e-5)
    for (layer, name), rises in points.items():
        rank, rise = rises[-1]
        network = clone(model.network)
        write_layer(network, factors.layers[layer][name].truncate(read_layer(network, layer), rank))
        assert rise == pytest.approx(plain_loss(network, tokens) - before, abs=1e-5)
    assert plain_loss(model.network, tokens) == before


def test_the_second_probe_comes_from_disk(case, monkeypatch) -> None:
    model, recipe, factors = case
    first = lrcore.probe(model, factors)
    monkeypatch.setattr(
        "lrcore.compression.evidence.probes.measure_rises",
        lambda *_: pytest.fail("the cache was not used"),
    )
    again = lrcore.probe(model, factors)
    first, again_probes = first.evidence.get("probes"), again.evidence.get("probes")
    assert again_probes.dense_loss == first.dense_loss
    for slot, curve in again_probes.curves.items():
        assert torch.equal(curve.increase, first.curves[slot].increase)
    assert lrcore.allocate(again, recipe).summary()["predicted_perplexity"] > 1


def test_the_policy_needs_probes_and_compress_makes_them(case) -> None:
    model, recipe, factors = case
    with pytest.raises(lrcore.InputError, match="probe"):
        lrcore.allocate(factors, recipe)
    small = lrcore.compress(model, recipe, factors)
    assert small.account.to_dict()["achieved"] >= 0.3
    assert small.account.to_dict()["predicted_perplexity"] is not None


def test_a_curve_passes_through_its_probes_and_falls_to_zero() -> None:
    cost = Cost(10, 3, 30)
    s = Spectrum((0, "mlp"), torch.linspace(2, 0.2, 10, dtype=torch.float64), cost)
    points = [(r, 0.01 * (10 - r) ** 2) for r in probed_ranks(cost)]
    curve = loss_curve(s, points).increase
    for rank, rise in points:
        assert float(curve[cost.ranks().index(rank)]) == pytest.approx(rise, rel=1e-9)
    assert (curve.diff() <= 0).all()
    assert curve[-1] == 0
    last = min(rank for rank, _ in points)
    below = s.tail(1) / s.tail(last) * dict(points)[last]
    assert float(curve[0]) == pytest.approx(below * (last / 1) ** 2)


def test_interpolation_is_linear_between_and_constant_outside() -> None:
    x, known_x, known_y = (
        torch.tensor(v, dtype=torch.float64)
        for v in ([0.0, 1.0, 1.5, 3.0, 9.0], [1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    )
    assert interpolate(x, known_x, known_y).tolist() == [10, 10, 15, 10, 0]


def test_the_plan_is_the_cheapest_against_brute_force_up_to_one_step() -> None:
    g = torch.Generator().manual_seed(2)
    spectra, increases = {}, {}
    for layer in range(3):
        cost = Cost(6, 5 + layer, (5 + layer) * 6)
        increase = torch.cat(
            (
                torch.rand(5, generator=g, dtype=torch.float64)
                .sort(descending=True)
                .values.cumsum(0)
                .flip(0),
                torch.zeros(1),
            )
        )
        spectra[layer, "mlp"] = Spectrum((layer, "mlp"), torch.ones(6, dtype=torch.float64), cost)
        increases[layer, "mlp"] = increase.double()
    evidence = Evidence(spectra).with_measurement("probes", probes(spectra, increases))
    total = sum(s.cost.dense for s in spectra.values())
    for ratio in (0.2, 0.35, 0.5, 0.7):
        budget = make_budget("params", ratio, spectra, total, total)
        ranks = plan_ranks("probed", evidence, budget)

        def loss(choice) -> float:
            return sum(
                float(increases[slot][s.cost.ranks().index(r)])
                for (slot, s), r in zip(spectra.items(), choice, strict=True)
            )

        def price(choice) -> int:
            return sum(s.cost.parameters(r) for s, r in zip(spectra.values(), choice, strict=True))

        result = [ranks[slot] for slot in spectra]
        every = list(product(range(1, 7), repeat=3))
        assert price(result) <= budget.limit
        # a multiplier finds the plans on the convex hull; between two of them it may miss by less
        # than the largest single step
        step = max(s.cost.per_rank for s in spectra.values())
        assert (
            loss(result) <= min(loss(c) for c in every if price(c) <= budget.limit - step) + 1e-12
        )


def test_predicted_perplexity_is_the_dense_one_when_nothing_is_removed(case) -> None:
    model, recipe, factors = case
    probed = lrcore.probe(model, factors)
    plan = lrcore.allocate(probed, recipe)
    untouched = replace(plan, ranks={slot: s.cost.full for slot, s in plan.spectra.items()})
    assert untouched.predicted_perplexity == pytest.approx(
        torch.tensor(probed.evidence.get("probes").dense_loss).exp().item(), rel=1e-6
    )
    assert plan.predicted_perplexity >= untouched.predicted_perplexity
