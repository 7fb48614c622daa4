"""Plans of policy `probed`, measured against uniform ranks before use."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import lrcore
from lrcore.compression.calibration.calibrate import MIN_UNSEEN
from lrcore.compression.evidence.probe_windows import select_windows
from lrcore.compression.pipeline import choose_plan as settling
from lrcore.ranks.evidence import AgainstUniform, LossCurve
from lrcore.recipes.history import Compressed


@pytest.fixture
def case(tiny_opt, story_file):
    model = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="a3", policy="probed", ratio=0.4
    )
    return model, recipe, lrcore.prepare(model, recipe)


def misled(factors):
    """Return factors with probes by which one MLP is free and all other slots are expensive."""
    probes = factors.evidence.get("probes")
    curves = {
        slot: LossCurve(
            divergences.ranks, (1e-9 if slot == (0, "mlp") else 1e3) * divergences.increase + 0.0
        )
        for slot, divergences in probes.curves.items()
    }
    return factors.with_measurement("probes", replace(probes, curves=curves))


def test_ranks_of_the_policy_are_used_if_they_do_not_hurt(case) -> None:
    model, recipe, factors = case
    plan = lrcore.choose_plan(model, factors, recipe)
    assert plan.ranks == lrcore.allocate(factors, recipe).ranks
    comparison = plan.against_uniform
    assert 0 < comparison.divergence < comparison.uniform + 2 * comparison.standard_error
    summary = plan.summary()
    assert (summary["divergence"], summary["given_uniform"]) == (comparison.divergence, False)
    assert plan.account.planned.uniform_notice("probed") == ""


def test_harmful_ranks_are_replaced_by_uniform_ranks_with_a_notice(case) -> None:
    model, recipe, factors = case
    wrong = misled(factors)
    uniform = lrcore.allocate(wrong, recipe.with_(policy="uniform")).ranks
    assert lrcore.allocate(wrong, recipe).ranks != uniform
    plan = lrcore.choose_plan(model, wrong, recipe)
    assert plan.ranks == uniform
    assert plan.against_uniform.hurts
    small = lrcore.compress(model, recipe, wrong)
    assert small.account.planned.given_uniform
    notice = small.account.planned.uniform_notice("probed")
    assert "The ranks are uniform: those of policy 'probed'" in notice


def test_plans_are_measured_on_windows_unseen_by_moments_and_probes(case, monkeypatch) -> None:
    model, recipe, factors = case
    measured = []
    monkeypatch.setattr(settling, "read_as", lambda *_: None)
    divergences = settling._divergences
    monkeypatch.setattr(
        settling, "_divergences", lambda *args: (measured.append(args[2]), divergences(*args))[1]
    )
    comparison = lrcore.choose_plan(model, factors, recipe).against_uniform
    windows = select_windows(factors.calibration)
    assert comparison.held_out
    assert windows.is_checking_unseen
    assert torch.equal(measured[0], windows.checking)
    assert len(measured[0]) == len(windows.probing)
    assert not torch.equal(measured[0], windows.probing)


@pytest.mark.parametrize(
    ("aside", "held_out", "apart", "probed", "checked"),
    [(64, True, True, 32, 32), (33, True, True, 17, 16), (31, True, False, 31, 31),
     (15, False, False, 32, 32)],
)  # fmt: skip
def test_short_texts_use_the_same_windows_for_probing_and_checking(
    aside, held_out, apart, probed, checked
) -> None:
    calibration = SimpleNamespace(
        tokens=torch.zeros(40, 256), unseen_tokens=torch.arange(aside)[:, None].expand(-1, 256)
    )
    windows = select_windows(calibration)
    assert (windows.is_held_out, windows.is_checking_unseen) == (held_out, apart)
    assert (windows.probing.shape, windows.checking.shape) == ((probed, 128), (checked, 128))
    if apart:
        assert not set(windows.probing[:, 0].tolist()) & set(windows.checking[:, 0].tolist())


def test_measurement_of_a_plan_is_cached(case, monkeypatch) -> None:
    model, recipe, factors = case
    first = lrcore.choose_plan(model, factors, recipe).against_uniform
    monkeypatch.setattr(settling, "_divergences", None)
    repeated = lrcore.choose_plan(model, lrcore.prepare(model, recipe), recipe).against_uniform
    assert repeated == first


def test_uniform_ranks_are_not_measured_against_themselves(case, monkeypatch) -> None:
    model, recipe, factors = case
    monkeypatch.setattr(settling, "_divergences", None)
    everything = {f"{layer}.{name}": 2 for layer, name in factors.spectra}
    plan = lrcore.choose_plan(model, factors, recipe.with_(rank_overrides=everything))
    assert plan.against_uniform is None


def test_other_policies_and_manual_plans_are_used_unchanged(case) -> None:
    model, recipe, factors = case
    plan = lrcore.choose_plan(model, factors, recipe.with_(policy="sensitivity"))
    assert plan.against_uniform is None
    assert plan.summary()["given_uniform"] is None
    wrong = misled(factors)
    by_hand = lrcore.allocate(wrong, recipe)
    small = lrcore.compress(model, recipe, wrong, by_hand)
    assert {(row.layer, row.component): row.rank for row in small.step(Compressed).ranks} == (
        by_hand.ranks
    )


def test_differences_within_two_standard_errors_are_ignored() -> None:
    assert not AgainstUniform(0.012, 0.010, 0.0011).hurts
    assert AgainstUniform(0.012, 0.010, 0.0009).hurts
    assert not AgainstUniform(0.012, 0.010, float("inf")).hurts


def test_policy_ranks_are_used_if_uniform_ranks_are_impossible(tiny_opt, story_file) -> None:
    """Uniform ranks require narrower heads, which cannot shrink in multiples of 8 here."""
    model = lrcore.load(str(tiny_opt))
    data = {"data": str(story_file), "samples": 2, "seq_len": 32}
    recipe = lrcore.Recipe(method="fused", policy="probed", ratio=0.5, rank_multiple=8, **data)
    factors = lrcore.prepare(model, recipe)
    with pytest.raises(lrcore.InputError, match="more than this method can remove"):
        lrcore.allocate(factors, recipe.with_(policy="uniform"))
    plan = lrcore.choose_plan(model, factors, recipe)
    assert plan.ranks == lrcore.allocate(factors, recipe).ranks
    assert plan.account.achieved >= 0.5
    assert plan.against_uniform is None


def test_plan_of_one_calibration_window_is_measured_on_several(tiny_opt, story_file) -> None:
    model = lrcore.load(str(tiny_opt))
    data = {"data": str(story_file), "samples": 1, "seq_len": 32}
    recipe = lrcore.Recipe(method="a3", policy="probed", ratio=0.3, **data)
    factors = lrcore.prepare(model, recipe)
    windows = select_windows(factors.calibration)
    assert windows.is_checking_unseen
    assert (len(windows.probing), len(windows.checking)) == (MIN_UNSEEN / 2, MIN_UNSEEN / 2)
    comparison = lrcore.choose_plan(model, factors, recipe).against_uniform
    assert 0 < comparison.standard_error < comparison.uniform
