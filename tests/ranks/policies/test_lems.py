"""LEMS: the error model and the solver, compared with slow implementations."""

from itertools import product

import numpy as np
import pytest
import torch
from plans import plan_ranks

from lrcore.layers.spectra import Cost, Spectrum
from lrcore.ranks.budget import Prices, make_budget
from lrcore.ranks.evidence import ErrorModel, Evidence, Probe
from lrcore.ranks.policies.exact import least_sum_exactly
from lrcore.ranks.policies.lems import depth_weights, modeled_errors


def slot_of(layer: int, name: str, rows: int, columns: int, steep: float) -> Spectrum:
    """Return a factored matrix with an exponentially falling spectrum."""
    full = min(rows, columns)
    values = (-steep * torch.arange(full, dtype=torch.float64) / full).exp()
    return Spectrum((layer, name), values, Cost(full, rows + columns, rows * columns))


def evidence_of(spectra: dict, increases: dict, layers: int, gamma: float) -> Evidence:
    references = {slot: Probe(4, increase, 0.0) for slot, increase in increases.items()}
    error_model = ErrorModel(references, layers, 0.0, gamma)
    return Evidence(spectra).with_measurement("error_model", error_model)


@pytest.mark.parametrize("seed", range(8))
def test_solver_finds_the_optimum_of_an_exhaustive_search(seed: int) -> None:
    """Use curves that are not convex, for which a single multiplier misses plans."""
    g = np.random.default_rng(seed)
    losses, prices, spectra = {}, {}, {}
    for layer, count in enumerate(g.integers(1, 7, 5)):
        slot = (layer, "q")
        losses[slot] = np.append(np.sort(g.random(count))[::-1], 0.0)
        prices[slot] = np.sort(g.choice(60, count + 1, replace=False)).astype(float)
        spectra[slot] = slot_of(layer, "q", 4, 4, 1.0)
    combinations = list(product(*(range(len(values)) for values in losses.values())))

    def total(values: dict, choice) -> float:
        return sum(float(values[slot][i]) for slot, i in zip(losses, choice, strict=True))

    cheapest = sum(float(values[0]) for values in prices.values())
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        dearest = sum(float(values[-1]) for values in prices.values())
        limit = cheapest + share * (dearest - cheapest)
        chosen = least_sum_exactly(losses, prices, spectra, limit)
        choice = [chosen[slot] for slot in losses]
        assert total(prices, choice) <= limit
        fitting = [
            combination for combination in combinations if total(prices, combination) <= limit
        ]
        assert total(losses, choice) == pytest.approx(
            min(total(losses, combination) for combination in fitting), abs=1e-12
        )


@pytest.mark.parametrize("alpha", [0.0, 1.5, 3.0])
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_depth_weights_are_rescaled_sums_over_later_layers(layers: int, alpha: float) -> None:
    weights = depth_weights(layers, alpha, 4.0)
    sums = [sum((k + 1) ** -alpha for k in range(layer, layers)) for layer in range(layers)]
    for layer in range(layers):
        share = 0.0 if layers == 1 else (sums[layer] - sums[-1]) / (sums[0] - sums[-1])
        assert weights[layer] == pytest.approx(1 + 4 * share)
    assert depth_weights(layers, alpha, 0.0).tolist() == [1.0] * layers


def test_errors_are_the_measured_error_times_the_ratio_of_tails() -> None:
    s = slot_of(0, "up", 24, 16, 3.0)
    error_model = ErrorModel({s.slot: Probe(2, 0.7, 0.1)}, layers=3)
    offer = Prices("params").offer(s.cost)
    errors = modeled_errors(s, offer, error_model)
    for rank, error in zip(offer.ranks, errors, strict=True):
        ratio = float((s.values[rank:] ** 2).sum() / (s.values[2:] ** 2).sum())
        assert error == pytest.approx(0.7 * ratio, abs=1e-12)
    assert errors[offer.ranks.index(2)] == pytest.approx(0.7)


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6])
def test_plans_are_at_least_as_good_as_all_plans_in_multiples_of_eight(ratio: float) -> None:
    """A slot keeps at least 0.3 of its parameters, or 0.1 if the budget keeps less than half."""
    shapes = ((64, 64, 2.0), (32, 64, 5.0), (160, 64, 1.0))
    spectra = {(layer, "q"): slot_of(layer, "q", *shape) for layer, shape in enumerate(shapes)}
    increases = dict(zip(spectra, (0.5, 1.0, 0.4), strict=True))
    evidence = evidence_of(spectra, increases, 3, 2.0)
    budget = make_budget("params", ratio, spectra, sum(s.cost.dense for s in spectra.values()))
    ranks = plan_ranks("lems", evidence, budget)
    factors = [3.0, 2.0, 1.0]  # 1 + gamma (1 - layer / 2)

    def error(choice: dict) -> float:
        return sum(
            factor * increases[slot] * s.tail(choice[slot]) / s.tail(4)
            for factor, (slot, s) in zip(factors, spectra.items(), strict=True)
        )

    smallest_share = 0.1 if ratio > 0.5 else 0.3
    candidates = [
        [
            rank
            for rank in s.cost.ranks()
            if rank == s.cost.full
            or (rank % 8 == 0 and smallest_share <= s.cost.parameters(rank) / s.cost.dense <= 0.95)
        ]
        for s in spectra.values()
    ]
    plans = [dict(zip(spectra, choice, strict=True)) for choice in product(*candidates)]
    fitting = [
        plan
        for plan in plans
        if sum(s.cost.parameters(plan[slot]) for slot, s in spectra.items()) <= budget.limit
    ]
    assert error(ranks) <= min(map(error, fitting)) + 1e-12


def test_early_layers_keep_more_if_errors_grow_with_depth() -> None:
    spectra = {(layer, "q"): slot_of(layer, "q", 96, 96, 3.0) for layer in range(4)}
    budget = make_budget("params", 0.4, spectra, sum(s.cost.dense for s in spectra.values()))
    kept_parameters = {}
    for gamma in (0.0, 7.0):
        evidence = evidence_of(spectra, dict.fromkeys(spectra, 1.0), 4, gamma)
        ranks = plan_ranks("lems", evidence, budget)
        kept_parameters[gamma] = [
            spectra[slot].cost.parameters(rank) for slot, rank in ranks.items()
        ]
    assert kept_parameters[7.0] == sorted(kept_parameters[7.0], reverse=True)
    assert kept_parameters[7.0][0] > kept_parameters[7.0][-1]
    assert sum(kept_parameters[7.0][:2]) > sum(kept_parameters[0.0][:2])
