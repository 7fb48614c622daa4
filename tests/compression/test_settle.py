"""Ranks of `probed` are measured before they are given: none that hurt."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import lrcore
from lrcore.calibration.calibrate import LEAST_ASIDE
from lrcore.compression import settle as settling
from lrcore.compression.evidence.windows import windows_of
from lrcore.evidence import AgainstUniform, LossCurve


@pytest.fixture
def case(tiny_opt, story_file):
    model = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="a3", policy="probed", ratio=0.4
    )
    return model, recipe, lrcore.prepare(model, recipe)


def misled(factors):
    """Factors whose probes say that all of one MLP is free and everything else is dear."""
    probes = factors.evidence.get("probes")
    curves = {
        slot: LossCurve(own.ranks, (1e-9 if slot == (0, "mlp") else 1e3) * own.increase + 0.0)
        for slot, own in probes.curves.items()
    }
    return factors.with_measurement("probes", replace(probes, curves=curves))


def test_the_ranks_of_the_policy_are_given_where_they_do_not_hurt(case) -> None:
    model, recipe, factors = case
    plan = lrcore.settle(model, factors, recipe)
    assert plan.ranks == lrcore.allocate(factors, recipe).ranks
    found = plan.against_uniform
    assert 0 < found.divergence < found.uniform + 2 * found.standard_error
    summary = plan.summary()
    assert (summary["divergence"], summary["given_uniform"]) == (found.divergence, False)
    assert plan.account.planned.not_given("probed") == ""


def test_ranks_that_hurt_are_exchanged_for_uniform_ones_and_the_plan_says_so(case) -> None:
    model, recipe, factors = case
    wrong = misled(factors)
    uniform = lrcore.allocate(wrong, recipe.with_(policy="uniform")).ranks
    assert lrcore.allocate(wrong, recipe).ranks != uniform
    plan = lrcore.settle(model, wrong, recipe)
    assert plan.ranks == uniform
    assert plan.against_uniform.hurts
    small = lrcore.compress(model, recipe, wrong)
    assert small.account.planned.given_uniform
    said = small.account.planned.not_given("probed")
    assert "The ranks are uniform: those of policy 'probed'" in said


def test_plans_are_measured_on_windows_that_neither_moments_nor_probes_have_seen(
    case, monkeypatch
) -> None:
    model, recipe, factors = case
    measured = []
    monkeypatch.setattr(settling, "read_as", lambda *_: None)
    own = settling._divergences
    monkeypatch.setattr(
        settling, "_divergences", lambda *given: (measured.append(given[2]), own(*given))[1]
    )
    found = lrcore.settle(model, factors, recipe).against_uniform
    windows = windows_of(factors.calibration)
    assert found.held_out
    assert windows.apart
    assert torch.equal(measured[0], windows.checking)
    assert len(measured[0]) == len(windows.probing)
    assert not torch.equal(measured[0], windows.probing)


@pytest.mark.parametrize(
    ("aside", "held_out", "apart", "probed", "checked"),
    [(64, True, True, 32, 32), (33, True, True, 17, 16), (31, True, False, 31, 31),
     (15, False, False, 32, 32)],
)  # fmt: skip
def test_windows_are_shared_where_the_text_has_too_few(
    aside, held_out, apart, probed, checked
) -> None:
    calibration = SimpleNamespace(
        tokens=torch.zeros(40, 256), aside=torch.arange(aside)[:, None].expand(-1, 256)
    )
    windows = windows_of(calibration)
    assert (windows.held_out, windows.apart) == (held_out, apart)
    assert (windows.probing.shape, windows.checking.shape) == ((probed, 128), (checked, 128))
    if apart:
        assert not set(windows.probing[:, 0].tolist()) & set(windows.checking[:, 0].tolist())


def test_what_was_measured_of_a_plan_is_kept(case, monkeypatch) -> None:
    model, recipe, factors = case
    first = lrcore.settle(model, factors, recipe).against_uniform
    monkeypatch.setattr(settling, "_divergences", None)
    again = lrcore.settle(model, lrcore.prepare(model, recipe), recipe).against_uniform
    assert again == first


def test_uniform_ranks_are_not_measured_against_themselves(case, monkeypatch) -> None:
    model, recipe, factors = case
    monkeypatch.setattr(settling, "_divergences", None)
    everything = {f"{layer}.{name}": 2 for layer, name in factors.spectra}
    plan = lrcore.settle(model, factors, recipe.with_(overrides=everything))
    assert plan.against_uniform is None


def test_other_policies_and_plans_made_by_hand_are_given_as_they_are(case) -> None:
    model, recipe, factors = case
    plan = lrcore.settle(model, factors, recipe.with_(policy="sensitivity"))
    assert plan.against_uniform is None
    assert plan.summary()["given_uniform"] is None
    wrong = misled(factors)
    by_hand = lrcore.allocate(wrong, recipe)
    small = lrcore.compress(model, recipe, wrong, by_hand)
    assert {
        (row.layer, row.component): row.rank for row in small.step(lrcore.Compressed).ranks
    } == (by_hand.ranks)


def test_a_difference_within_two_standard_errors_does_not_count() -> None:
    assert not AgainstUniform(0.012, 0.010, 0.0011).hurts
    assert AgainstUniform(0.012, 0.010, 0.0009).hurts
    assert not AgainstUniform(0.012, 0.010, float("inf")).hurts


def test_ranks_that_uniform_ones_cannot_replace_are_given(tiny_opt, story_file) -> None:
    """Uniform ranks are of narrowed heads, which in multiples of 8 stay as they are here."""
    model = lrcore.load(str(tiny_opt))
    data = {"data": str(story_file), "samples": 2, "seq_len": 32}
    recipe = lrcore.Recipe(method="fused", policy="probed", ratio=0.5, multiple=8, **data)
    factors = lrcore.prepare(model, recipe)
    with pytest.raises(lrcore.InputError, match="more than this method can remove"):
        lrcore.allocate(factors, recipe.with_(policy="uniform"))
    plan = lrcore.settle(model, factors, recipe)
    assert plan.ranks == lrcore.allocate(factors, recipe).ranks
    assert plan.account.achieved >= 0.5
    assert plan.against_uniform is None


def test_a_plan_of_one_calibration_window_is_measured_on_several(tiny_opt, story_file) -> None:
    model = lrcore.load(str(tiny_opt))
    data = {"data": str(story_file), "samples": 1, "seq_len": 32}
    recipe = lrcore.Recipe(method="a3", policy="probed", ratio=0.3, **data)
    factors = lrcore.prepare(model, recipe)
    windows = windows_of(factors.calibration)
    assert windows.apart
    assert (len(windows.probing), len(windows.checking)) == (LEAST_ASIDE / 2, LEAST_ASIDE / 2)
    found = lrcore.settle(model, factors, recipe).against_uniform
    assert 0 < found.standard_error < found.uniform
