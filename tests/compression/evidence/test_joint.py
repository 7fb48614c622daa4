"""Joint losses of several slots, and predictions for the evaluated text."""

import json
from dataclasses import astuple, replace

import pytest
import torch

import lrcore
from lrcore.cli import main
from lrcore.compression.evidence import joint_probes as joint
from lrcore.compression.evidence.measure import with_cached_probes
from lrcore.compression.solve.compress_layers import REFIT_PASSES
from lrcore.data import held_out
from lrcore.ranks import prediction
from lrcore.system.errors import Cancelled


@pytest.fixture(scope="module")
def case(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="fused", policy="probed", ratio=0.3
    )
    return model, recipe, lrcore.prepare(model, recipe)


def plain_losses(network, tokens) -> torch.Tensor:
    """Return the mean loss of each window, computed separately."""
    losses = []
    for window in tokens:
        with torch.inference_mode():
            log_predictions = network(window[None]).logits[0, :-1].double().log_softmax(-1)
        losses.append(-log_predictions.gather(1, window[1:, None]).mean())
    return torch.stack(losses)


def test_joint_measurement_equals_the_model_made_by_compress(case) -> None:
    model, recipe, factors = case
    tokens = factors.calibration.unseen_tokens
    dense = plain_losses(model.network, tokens)
    measurements = factors.evidence.get("probes").interaction.joint
    assert len(measurements) == 3
    assert [measurement.summed for measurement in measurements] == sorted(
        measurement.summed for measurement in measurements
    )
    assert sorted(measurement.chosen for measurement in measurements) == [False, True, True]
    measurement, (policy, ratio) = (
        next(measurement for measurement in measurements if measurement.chosen),
        joint.PLANS[0],
    )
    assert policy == recipe.policy
    small = lrcore.compress(model, recipe.with_(ratio=ratio), factors)
    plan = lrcore.allocate(factors, recipe.with_(ratio=ratio))
    curves = factors.evidence.get("probes").curves
    summed = sum(float(curves[slot].at([rank])) for slot, rank in plan.ranks.items())
    assert measurement.summed == pytest.approx(summed)
    rises = plain_losses(small.network, tokens) - dense
    assert measurement.rise == pytest.approx(float(rises.mean()), abs=1e-5)
    assert measurement.standard_error == pytest.approx(
        float(rises.std()) / len(rises) ** 0.5, rel=1e-2
    )
    with torch.inference_mode():
        p, q = (
            net(tokens).logits[:, :-1].log_softmax(-1) for net in (model.network, small.network)
        )
    assert measurement.divergence == pytest.approx(
        float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3
    )
    assert measurement.tokens == tokens[:, 1:].numel()


def test_plans_with_refit_are_measured_on_a_subset_of_the_tokens(case, monkeypatch) -> None:
    """`compress` uses all windows for the same plan."""
    model, recipe, factors = case
    complete, tokens = factors.evidence.get("probes").interaction, factors.calibration.tokens
    expected = joint.tokens_run(factors, recipe)
    monkeypatch.setattr(joint, "REFIT_TOKENS", 2 * tokens.shape[1] + 1)
    assert (
        joint.cached_interaction(model, factors, recipe) is None
    )  # the cache holds only the result for all tokens
    few = joint.measure_interaction(model, factors, recipe, lambda *_: None)
    assert expected - joint.tokens_run(factors, recipe) == 3 * REFIT_PASSES * tokens[2:].numel()
    assert [measurement.summed for measurement in few.joint] == [
        measurement.summed for measurement in complete.joint
    ]
    short = replace(factors, calibration=replace(factors.calibration, tokens=tokens[:2]))
    policy, ratio = joint.PLANS[0]
    small = lrcore.compress(model, recipe.with_(policy=policy, ratio=ratio), short)
    aside = factors.calibration.unseen_tokens
    rise = float((plain_losses(small.network, aside) - plain_losses(model.network, aside)).mean())
    assert next(
        measurement for measurement in few.joint if measurement.chosen
    ).rise == pytest.approx(rise, abs=1e-5)


def test_a_measurement_of_plans_is_canceled_between_two_layers(case, monkeypatch) -> None:
    model, recipe, factors = case
    monkeypatch.setattr(joint, "FORMAT", "not cached")

    def cancel(stage: str, done: int, total: int) -> None:
        if stage == "compress" and done == 1:
            raise Cancelled

    with pytest.raises(Cancelled):
        joint.measure_interaction(model, factors, recipe, cancel)


def test_plan_at_full_ranks_predicts_the_dense_perplexity(case) -> None:
    model, recipe, factors = case
    plan = lrcore.allocate(factors, recipe)
    complete = replace(plan, ranks={slot: s.cost.full for slot, s in plan.spectra.items()})
    dense = lrcore.evaluate(model, held_out(recipe.data), samples=32, seq_len=32)
    assert astuple(complete.predicted)[:3] == pytest.approx((dense.perplexity,) * 3, rel=1e-5)
    summary = plan.summary()
    assert summary["predicted_low"] < summary["predicted_perplexity"] < summary["predicted_high"]


def test_joint_measurements_are_read_from_the_cache(case, monkeypatch) -> None:
    model, recipe, factors = case
    monkeypatch.setattr(joint, "_measure_plans", None)
    reloaded = lrcore.prepare(model, recipe.with_(ratio=0.4)).evidence.get("probes").interaction
    assert reloaded == factors.evidence.get("probes").interaction


def test_other_policies_are_predicted_from_the_uniform_plan(case) -> None:
    _, recipe, factors = case
    uniform = lrcore.allocate(factors, recipe.with_(policy="uniform", ratio=0.3))
    predicted, interaction = uniform.predicted, factors.evidence.get("probes").interaction
    assert predicted.low < predicted.perplexity < predicted.high
    assert predicted == interaction.predict(uniform.summed_increase, chosen=False)
    assert predicted != interaction.predict(uniform.summed_increase, chosen=True)
    log_predictions = lrcore.allocate(factors, recipe)
    assert log_predictions.predicted == interaction.predict(
        log_predictions.summed_increase, chosen=True
    )


def test_refit_settings_that_were_not_measured_have_no_interval(case) -> None:
    _, recipe, factors = case
    predicted = lrcore.allocate(factors, recipe.with_(refit="off")).predicted
    assert (predicted.low, predicted.high) == (None, None)
    assert predicted.perplexity > 1


def test_prediction_uses_the_calibration_text_if_the_test_split_is_unreadable(
    case, monkeypatch
) -> None:
    model, recipe, factors = case

    def unreadable(*_):
        raise lrcore.InputError("no such split")

    monkeypatch.setattr(joint, "load_texts", unreadable)
    interaction = joint.measure_interaction(model, factors, recipe, lambda *_: None)
    expected = float(plain_losses(model.network, factors.calibration.unseen_tokens).mean())
    assert interaction.target.dense_loss == pytest.approx(expected, abs=1e-5)
    assert "calibration text" in interaction.target.name


def test_predicted_curve_contains_the_prediction_of_allocate(case) -> None:
    _, recipe, factors = case
    points = lrcore.predicted_curve(factors, recipe)
    values = [point.perplexity for point in points]
    assert values == sorted(values)
    assert len({point.ratio for point in points}) == len(points) > 8
    at = next(point for point in points if point.ratio == recipe.ratio)
    assert astuple(at)[1:] == astuple(lrcore.allocate(factors, recipe).predicted)[:3]
    bare = replace(factors, evidence=replace(factors.evidence, measurements={}))
    assert lrcore.predicted_curve(bare, recipe.with_(policy="uniform")) == ()


def test_allocate_command_uses_cached_probes_or_explains_the_missing_prediction(
    case, tiny_llama, story_file, capsys, monkeypatch
) -> None:
    """Only method fused has cached probes."""
    text = ["--data", str(story_file), "--samples", "6", "--seq-len", "32"]
    arguments = ["allocate", str(tiny_llama), *text, "--ratio", "0.3"]
    main([*arguments, "--method", "fused", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["summary"]["predicted_low"] < values["summary"]["predicted_high"]
    point = next(point for point in values["curve"] if point["ratio"] == 0.3)
    assert point["perplexity"] == values["summary"]["predicted_perplexity"]
    main([*arguments, "--method", "svd", "--seed", "91"])
    assert "No prediction of the perplexity: only policy" in capsys.readouterr().out
    monkeypatch.setattr(prediction, "WIDEST", -1.0)  # no interval is narrow enough
    main([*arguments, "--method", "fused"])
    assert "No prediction of the perplexity: these ranks" in capsys.readouterr().out


def test_cached_probes_are_used_without_measuring_for_other_policies(case, monkeypatch) -> None:
    model, recipe, factors = case
    monkeypatch.setattr(joint, "_measure_plans", None)
    bare = replace(factors, evidence=replace(factors.evidence, measurements={}))
    with_probes = with_cached_probes(model, bare, recipe.with_(policy="uniform"))
    cached, measured = with_probes.evidence.get("probes"), factors.evidence.get("probes")
    assert (cached.points, cached.interaction) == (measured.points, measured.interaction)
    assert with_cached_probes(model, with_probes, recipe) is with_probes
    never = recipe.with_(refit="off")  # joint losses were not measured without a refit
    assert with_cached_probes(model, bare, never) is bare
