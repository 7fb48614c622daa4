"""What layers take becomes the price of ranks."""

import itertools

import pytest
import torch

from lrcore.alternatives import by_part
from lrcore.budget import Prices, make_budget
from lrcore.latency import Latency, SlotTimes, rising
from lrcore.spectra import Cost, Form, Spectrum


def spectrum(name: str, cost: Cost, form: Form | None = None) -> Spectrum:
    values = torch.linspace(2, 0.1, cost.full // cost.step).double()
    return Spectrum((0, name), values, cost, form=form)


def by_line(cost: Cost, ranks, share: float = 0.5) -> SlotTimes:
    """A layer of a second, of which the slot takes a share in proportion to its parameters."""
    left = [1 - share * (1 - cost.parameters(rank) / cost.dense) for rank in ranks]
    return SlotTimes(tuple(ranks), tuple(left), 1.0)


NARROWED = Cost(full=32, per_rank=10, dense=320, step=2)
PAIR = Cost(full=32, per_rank=64, dense=1024)


def test_prices_follow_what_was_measured() -> None:
    times = by_line(NARROWED, (2, 16, 30))
    latency = Latency(128, "a device", (1.0,), {(0, "qk"): times})
    s = spectrum("qk", NARROWED)
    cost = latency.priced({s.slot: s})[s.slot].cost
    assert cost.dense == pytest.approx(0.5e9, rel=1e-6)
    for rank in (2, 8, 16, 24, 30):
        assert cost.parameters(rank) == pytest.approx(0.5e9 * rank / 32, rel=1e-6)
    assert latency.of({s.slot: 16}, {s.slot: s}) == pytest.approx(0.75)
    assert latency.of({s.slot: 32}, {s.slot: s}) == latency.dense == 1.0
    assert latency.nanoseconds == 1_000_000_000


def test_ranks_that_take_longer_than_the_dense_layer_are_not_on_offer() -> None:
    times = SlotTimes((1, 8, 15), (0.7, 0.9, 1.1), 1.0)
    latency = Latency(128, "a device", (1.0,), {(0, "q"): times})
    s = spectrum("q", PAIR)
    cost = latency.priced({s.slot: s})[s.slot].cost
    offered = Prices("latency").offer(cost)
    assert 8 in offered.ranks
    assert 15 not in offered.ranks  # slower, though it has fewer parameters
    assert 16 not in offered.ranks  # as many parameters as the dense matrix
    assert all(low < high for low, high in itertools.pairwise(offered.prices.tolist()))


def test_a_slot_that_saves_no_time_stays_as_it_is() -> None:
    latency = Latency(128, "a device", (1.0,), {(0, "q"): SlotTimes((1, 15), (1.2, 1.3), 1.0)})
    s = spectrum("q", PAIR)
    cost = latency.priced({s.slot: s})[s.slot].cost
    assert Prices("latency").offer(cost).ranks == [32]


def test_forms_of_a_part_take_the_same_at_full_rank() -> None:
    narrowed, pairs = Form("mlp", "narrowed"), Form("mlp", "pairs")
    spectra = [
        spectrum("mlp", NARROWED, narrowed),
        spectrum("up", PAIR, pairs),
        spectrum("down", PAIR, pairs),
    ]
    times = {
        (0, "mlp"): by_line(NARROWED, (2, 30), 0.6),
        (0, "up"): by_line(PAIR, (1, 15), 0.1),
        (0, "down"): SlotTimes((1, 15), (1.2, 1.3), 1.0),  # nothing to gain
    }
    latency = Latency(128, "a device", (1.0,), times)
    priced = latency.priced({s.slot: s for s in spectra})
    ((_, forms),) = by_part(priced).items()
    whole = {sum(s.cost.dense for s in own.values()) for own in forms.values()}
    assert len(whole) == 1
    budget = make_budget("latency", 0.5, priced, latency.nanoseconds)
    assert budget.dense == whole.pop()
    assert budget.limit == budget.dense - 500_000_000


def test_multiples_keep_the_prices_between_them() -> None:
    s = spectrum("qk", NARROWED)
    latency = Latency(128, "a device", (1.0,), {s.slot: by_line(NARROWED, (2, 16, 30))})
    plain, eights = (latency.priced({s.slot: one})[s.slot].cost for one in (s, s.in_multiples(8)))
    assert [eights.parameters(rank) for rank in (8, 10, 24)] == [
        plain.parameters(rank) for rank in (8, 10, 24)
    ]
    assert Prices("latency").offer(eights).ranks == [8, 16, 24, 32]


def test_the_nearest_rising_sequence() -> None:
    assert rising([1, 2, 3]) == [1, 2, 3]
    assert rising([3, 1, 2]) == [2, 2, 2]
    assert rising([1, 4, 2, 5]) == [1, 3, 3, 5]
    assert rising([]) == []
