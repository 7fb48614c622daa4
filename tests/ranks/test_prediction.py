"""Predicted perplexities from summed probes, compared with numerical integration."""

import math
from dataclasses import replace

import pytest
import torch

import lrcore
from lrcore.ranks.prediction import (
    BEYOND,
    PRIOR,
    QUANTILE,
    SPREAD,
    Interaction,
    JointMeasurement,
    Predicted,
    Target,
)

JOINT = (
    JointMeasurement(0.01, 0.012, 0.010, 0.001, 16000),
    JointMeasurement(0.08, 0.11, 0.12, 0.004, 16000),
    JointMeasurement(0.4, 0.9, 0.8, 0.02, 16000),
)
TARGET = Target("text", 1.5, 8000)
PASSES = ("auto", "independent")


def interaction(*joint: JointMeasurement) -> Interaction:
    return Interaction(joint, TARGET, PASSES)


def rise(predicted: Predicted) -> float:
    return math.log(predicted.perplexity) - TARGET.dense_loss


def half_width(predicted: Predicted) -> float:
    return (math.log(predicted.high) - math.log(predicted.low)) / 2


def integrated(x: float) -> tuple[float, float]:
    """Return mean and variance of a + b x under prior and measurements, on a grid of a and b."""
    logs = [math.log(measurement.summed) for measurement in JOINT]
    middle = sum(logs) / 3
    a, b = torch.meshgrid(
        torch.linspace(0, 2, 801, dtype=torch.float64),
        torch.linspace(-1, 1, 801, dtype=torch.float64),
        indexing="ij",
    )
    density = -(((a - 1) / PRIOR[0]) ** 2) / 2 - ((b / PRIOR[1]) ** 2) / 2
    for measurement, log in zip(JOINT, logs, strict=True):
        error = measurement.divergence * math.hypot(
            measurement.standard_error / measurement.divergence, SPREAD / 2
        )
        expected = measurement.divergence * (a + b * (log - middle))
        density = density - ((measurement.rise - expected) / error) ** 2 / 2
    weight = (density - density.max()).exp()
    share = a + b * (x - middle)
    mean = (weight * share).sum() / weight.sum()
    return float(mean), float((weight * (share - mean) ** 2).sum() / weight.sum())


@pytest.mark.parametrize(
    ("summed", "divergence"),
    [(0.08, 0.11), (math.sqrt(0.01 * 0.08), math.sqrt(0.012 * 0.11)), (0.4, 0.9)],
)
def test_prediction_is_the_posterior_of_its_model(summed, divergence) -> None:
    mean, variance = integrated(math.log(summed))
    predicted = interaction(*JOINT).predict(summed)
    assert rise(predicted) == pytest.approx(mean * divergence, rel=1e-3)
    token = (
        sum(
            measurement.standard_error**2 * measurement.tokens / measurement.divergence
            for measurement in JOINT
        )
        / 3
    )
    chance = QUANTILE * math.sqrt(token * divergence / TARGET.tokens)
    times = math.exp(QUANTILE * math.sqrt(variance / mean**2 + SPREAD**2))
    for result, share in ((predicted.low, 1 / times), (predicted.high, times)):
        margin = abs(math.log(result) - math.log(predicted.perplexity))
        expected_margin = abs(share - 1) * rise(predicted)
        assert margin == pytest.approx(math.hypot(expected_margin, chance), rel=1e-2)


def test_predicted_rise_stays_positive_beyond_the_measured_plans() -> None:
    fit = interaction(*JOINT)  # the text is long, so the sampling error is small
    for summed in (0.4, 4.0, 40.0):
        result = fit.predict(summed)
        assert math.log(result.low) > TARGET.dense_loss
        assert result.high > result.perplexity


def test_interval_widens_beyond_the_measured_plans() -> None:
    fit = interaction(*JOINT)
    last, beyond = fit.predict(0.4), fit.predict(0.4 * math.e)
    assert half_width(beyond) / rise(beyond) > half_width(last) / rise(last) + BEYOND


def test_interactions_fall_with_the_square_below_the_measured_plans() -> None:
    fit, third = interaction(*JOINT), 0.01 / 3
    below, first = fit.predict(third), fit.predict(0.01)
    expected = (third + 0.002 * (third / 0.01) ** 2) / 0.012
    assert rise(below) == pytest.approx(rise(first) * expected)
    assert rise(below) < rise(first) / 3 < rise(below) + half_width(below)
    less = interaction(replace(JOINT[0], divergence=0.006))  # a refit compensates for a part
    assert rise(less.predict(third)) == pytest.approx(rise(less.predict(0.01)) / 3)


def test_unchosen_plans_follow_the_measured_unchosen_plan() -> None:
    uniform = JointMeasurement(0.2, 0.2, 0.19, 0.01, 16000, chosen=False)
    fit = interaction(JOINT[1], uniform, JOINT[2])
    expected_margin, unchosen = fit.predict(0.2), fit.predict(0.2, chosen=False)
    power = math.log(0.9 / 0.11) / math.log(0.4 / 0.08)
    assert rise(expected_margin) / rise(unchosen) == pytest.approx(0.11 * 2.5**power / 0.2)
    for summed in (0.05, 0.1, 0.3, 0.6):
        pair = fit.predict(summed), fit.predict(summed, chosen=False)
        assert rise(pair[1]) / rise(pair[0]) == pytest.approx(
            rise(unchosen) / rise(expected_margin)
        )
    smaller_sum = fit.predict(0.1, chosen=False)
    assert half_width(smaller_sum) / rise(smaller_sum) > half_width(unchosen) / rise(unchosen)
    without = interaction(JOINT[1], JOINT[2])
    assert rise(without.predict(0.2, chosen=False)) == pytest.approx(rise(without.predict(0.2)))
    assert half_width(without.predict(0.2, chosen=False)) > half_width(without.predict(0.2))


def test_predictions_from_uniform_plans_only() -> None:
    fit = interaction(replace(JOINT[1], chosen=False))
    assert rise(fit.predict(0.08, chosen=False)) == pytest.approx(rise(fit.predict(0.08)))


def test_predictions_rise_with_the_sum_above_the_dense_perplexity() -> None:
    fit = interaction(*JOINT)
    values = [fit.predict(0.001 * 1.3**step).perplexity for step in range(30)]
    assert values == sorted(values)
    dense = math.exp(TARGET.dense_loss)
    assert fit.predict(0.0) == Predicted(dense, dense, dense)
    assert values[0] > dense


def test_sum_without_measurements_has_a_wide_interval() -> None:
    predicted = interaction().predict(0.2)
    assert rise(predicted) == pytest.approx(0.2)
    assert half_width(predicted) > 0.3 * 0.2


def test_single_window_and_diverged_model_give_finite_predictions() -> None:
    measurement = JointMeasurement(5.0, 900.0, 1000.0, math.inf, 100)
    predicted = interaction(measurement).predict(5.0)
    assert math.isfinite(predicted.low)
    assert math.isfinite(predicted.high)


def test_prediction_for_a_destroyed_model_is_the_loss_of_guessing() -> None:
    """On a GPT-2 with 4,096 tokens at 90 %, the power of the sum gave a perplexity of 1e304."""
    measured = (
        JointMeasurement(0.15, 0.16, 0.28, 0.05, 2000),
        JointMeasurement(0.5, 1.9, 2.2, 0.1, 2000),
    )
    guessing = math.log(4096)
    bounded = Interaction(measured, Target("text", 0.13, 1000, guessing), PASSES)
    result = bounded.predict(40.0)
    assert result.perplexity == pytest.approx(4096)
    assert result.low < 2149 < result.high < 4096**2
    free = Interaction(measured, Target("text", 0.13, 1000), PASSES)
    for summed in (1e-3, 0.1, 0.4):  # measured values do not change
        assert bounded.predict(summed) == free.predict(summed)


def test_predictions_beyond_their_range_are_not_trustworthy() -> None:
    measured = (JointMeasurement(0.15, 0.16, 0.28, 0.05, 2000),)
    small = Interaction(measured, Target("text", 1.5, 1000, math.log(64)), PASSES)
    guessed = small.predict(40.0)
    dense = math.exp(1.5)
    assert guessed.is_bounded
    assert (
        math.log(guessed.high / guessed.low) > math.log(64) - 1.51
    )  # narrow because of only 64 tokens
    assert not guessed.is_trustworthy(dense)
    assert small.predict(0.15).is_trustworthy(dense)
    assert not Predicted(9.0, 3.0, 31.0).is_trustworthy(dense)
    assert Predicted(9.0, 4.0, 31.0).is_trustworthy(dense)
    assert not Predicted(11 * dense).is_trustworthy(dense)
    assert Predicted(9 * dense).is_trustworthy(dense)


def test_measured_losses_above_guessing_are_predicted() -> None:
    worse = JointMeasurement(0.5, 6.0, 6.0, 0.1, 2000)
    result = Interaction((worse,), Target("text", 2.0, 1000, math.log(512)), PASSES).predict(0.5)
    assert math.log(512) < math.log(result.perplexity) <= 8.0
    assert math.isinf(Target("text", 2.0, 1000).guessing)
    lost = Interaction((worse,), Target("text", 7.0, 1000, math.log(512)), PASSES)
    assert lost.predict(0.5).low < lost.predict(0.5).perplexity < lost.predict(0.5).high


def test_loss_of_guessing_follows_from_the_vocabulary(tiny_opt, story_file) -> None:
    model = lrcore.load(str(tiny_opt))
    data = {"data": str(story_file), "samples": 1, "seq_len": 16}
    factors = lrcore.prepare(model, lrcore.Recipe(method="a3", policy="probed", **data))
    target = factors.evidence.get("probes").interaction.target
    assert target.guessing == pytest.approx(math.log(model.network.config.vocab_size))
