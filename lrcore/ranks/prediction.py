"""Prediction of the perplexity of a compressed model from the summed probes of a plan.

Slots are probed one at a time. Together they lose more than the sum if errors compound, and less if
a refit compensates for errors. And the divergence from the dense model differs from the increase in
loss on a text. A few plans, measured jointly, calibrate both.

At equal sums, plans chosen by the probes differ from other plans: they spread the sum over many
slots, and favor slots whose probes were too low by chance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

QUANTILE = 1.645  # standard deviations that contain 90 % of a normal distribution
# Prior standard deviations of the rise of the loss per divergence: of its distance from 1, and of
# its change per factor e of the divergence.
PRIOR = (0.2, 0.1)
# Relative errors of the divergence, as standard deviations: between measured plans; additional per
# factor e above the last plan; of plans not chosen by the probes, per factor e of distance from the
# measured plan.
SPREAD, BEYOND, OTHERS = 0.1, 0.3, 0.15
LEAST_SHARE = 0.1  # lower bound of the rise per divergence in relative errors
# Widest interval of a prediction that is displayed, in nats/token: a factor of 10 in perplexity. A
# prediction at the loss of guessing had an interval from 68 to 138,000; the actual value was 6.8.
WIDEST = math.log(10)
STEEPEST = 2.0  # largest power of the summed probes in an extrapolated divergence


@dataclass(frozen=True)
class JointMeasurement:
    """A plan measured with all slots truncated, in nats/token.

    summed > 0: sum of the predicted increases of the slots. divergence >= 0: mean KL divergence of
    the compressed model from the dense model. rise: of the mean loss, over `tokens` tokens.
    standard_error: of the rise, paired by window. chosen: True if the probes chose the ranks.
    """

    summed: float
    divergence: float
    rise: float
    standard_error: float
    tokens: int
    chosen: bool = True


@dataclass(frozen=True)
class Target:
    """The text of a prediction: name, mean loss of the dense model (nats/token) and number of
    tokens.

    guessing: the loss of a model that assigns equal probability to all tokens.
    """

    name: str
    dense_loss: float
    tokens: int
    guessing: float = math.inf


@dataclass(frozen=True)
class Predicted:
    """Predicted perplexity. 90 % of the actual values should lie between low and high.

    low and high are None if no joint measurement gives an uncertainty. is_bounded: True if the
    extrapolated loss exceeds that of a guessing model, which then replaces it.
    """

    perplexity: float
    low: float | None = None
    high: float | None = None
    is_bounded: bool = False

    def is_trustworthy(self, dense_perplexity: float) -> bool:
        """Return whether the prediction is informative: not bounded, and its interval, or the rise
        from the dense model if there is no interval, is at most WIDEST.
        """
        low, high = self.low or dense_perplexity, self.high or self.perplexity
        return not self.is_bounded and math.log(high / low) <= WIDEST


@dataclass(frozen=True)
class Interaction:
    """The joint effect of truncated slots, from at most three joint measurements.

    joint: by ascending `summed`. passes: `refit` and `calibration` of the recipe that compressed
    the measured plans; the values are valid for recipes with the same passes.
    """

    joint: Sequence[JointMeasurement]
    target: Target
    passes: tuple[str, str]

    def on_sample(self, tokens: int | None) -> "Interaction":
        """Return the interaction for a sample of `tokens` tokens of the target; None: all."""
        if tokens is None:
            return self
        return replace(self, target=replace(self.target, tokens=tokens))

    def predict(self, summed: float, chosen: bool = True) -> Predicted:
        """Return the predicted perplexity of a plan on the target text.

        summed >= 0, chosen: see `JointMeasurement`. The interval contains the error of the fit and
        of the interpolation or extrapolation, as a factor of the predicted rise, and the sampling
        error of a mean over the tokens of the target. Losses near that of a guessing model are
        bounded, see `_bounded`.
        """
        if summed <= 0:
            dense = perplexity(self.target.dense_loss)
            return Predicted(dense, dense, dense)
        divergence, (rise_share, variance) = self._divergence(summed), self._share(summed)
        floored_share = max(rise_share, LEAST_SHARE)
        relative = variance / floored_share**2 + self._spread(summed) ** 2
        if not chosen:
            factor, spread = self._unchosen(summed)
            divergence, relative = factor * divergence, relative + spread**2
        rise, dense_loss = rise_share * divergence, self.target.dense_loss
        scale = floored_share * divergence
        factor_of_interval = math.exp(QUANTILE * math.sqrt(relative))
        sampling_error = QUANTILE * math.sqrt(
            self._variance_of_a_token() * divergence / self.target.tokens
        )
        below = math.hypot(scale * (1 - 1 / factor_of_interval), sampling_error)
        above = math.hypot(scale * (factor_of_interval - 1), sampling_error)
        return self._bounded(dense_loss + rise, below, above)

    def _bounded(self, loss: float, below: float, above: float) -> Predicted:
        """Return the prediction of a loss, given the errors below and above it in nats/token.

        Losses are extrapolated by powers, but a model that has lost everything has about the loss
        of guessing, or the largest measured loss if that is larger. No prediction exceeds this
        loss. The interval then reaches halfway to the dense loss below, and equally far above.
        There is no bound if the dense model is worse than guessing.
        """
        dense_loss, guessing = self.target.dense_loss, self.target.guessing
        largest_loss = max(
            [guessing, *(dense_loss + measurement.rise for measurement in self.joint)]
        )
        largest_loss = largest_loss if dense_loss < guessing else math.inf
        half = (largest_loss - dense_loss) / 2
        low, high = loss - below, min(loss + above, largest_loss + half)
        is_bounded = loss > largest_loss
        if is_bounded:
            loss, low, high = largest_loss, min(low, largest_loss - half), largest_loss + half
        return Predicted(perplexity(loss), perplexity(low), perplexity(high), is_bounded)

    def _curve(self) -> list[tuple[float, float]]:
        """Return log of sum and divergence of plans chosen by the probes; of all plans if there are
        none.
        """
        measurements = [
            measurement for measurement in self.joint if measurement.chosen
        ] or self.joint
        return [
            (math.log(measurement.summed), math.log(max(measurement.divergence, 1e-12)))
            for measurement in measurements
        ]

    def _divergence(self, summed: float) -> float:
        """Return the divergence at a sum.

        Log-linear between the plans of the curve; beyond the last plan with the power of the last
        two; below the first plan see `_below`.
        """
        x, points = math.log(summed), self._curve()
        if not points:
            return summed
        if x <= points[0][0]:
            return self._below(summed)
        if len(points) == 1:
            return math.exp(points[0][1] + x - points[0][0])
        for (x0, y0), (x1, y1) in pairwise(points):
            slope = (max(y1, y0) - y0) / (x1 - x0)
            if x <= x1:
                return math.exp(y0 + slope * (x - x0))
        return math.exp(y1 + min(slope, STEEPEST) * (x - x1))

    def _below(self, summed: float) -> float:
        """Return the divergence below the first plan of the curve.

        The sum, plus the interaction of pairs of slots, which falls with the square of the sum. In
        proportion to the sum if a refit compensates for a part of it.
        """
        x, y = self._curve()[0]
        gain = math.exp(y - x)
        return summed * (gain if gain <= 1 else 1 + (gain - 1) * summed / math.exp(x))

    def _spread(self, summed: float) -> float:
        """Return the relative standard deviation of the divergence of a plan chosen by the probes.

        Below the first plan, a divergence in proportion to the sum lies at the edge of the
        interval.
        """
        points, x = self._curve(), math.log(summed)
        if not points:
            return math.hypot(SPREAD, BEYOND * x)
        if x > points[-1][0]:
            return math.hypot(SPREAD, BEYOND * (x - points[-1][0]))
        if x >= points[0][0]:
            return SPREAD
        proportion = math.exp(points[0][1] + x - points[0][0])
        return math.hypot(SPREAD, (proportion / self._below(summed) - 1) / QUANTILE)

    def _unchosen(self, summed: float) -> tuple[float, float]:
        """Return the factor of the divergence of plans not chosen by the probes, and its standard
        deviation.

        The factor is 1 if no such plan was measured; the standard deviation is relative.
        """
        measurements = [measurement for measurement in self.joint if not measurement.chosen]
        if not measurements:
            return 1.0, 2 * OTHERS
        measurement = measurements[0]
        factor = max(measurement.divergence, 1e-12) / self._divergence(measurement.summed)
        return factor, OTHERS * abs(math.log(summed / measurement.summed))

    def _share(self, summed: float) -> tuple[float, float]:
        """Return the rise of the loss per divergence, >= 0, and its variance.

        share = a + b (log summed - mean of the measured plans): Bayesian regression on the measured
        rises, weighted by their standard errors, with PRIOR.
        """
        middle = self._middle()
        m00, m01, m11 = PRIOR[0] ** -2, 0.0, PRIOR[1] ** -2
        v0, v1 = m00, 0.0
        for measurement in self.joint:
            x, divergence = (
                math.log(measurement.summed) - middle,
                max(measurement.divergence, 1e-12),
            )
            error = math.hypot(measurement.standard_error / divergence, SPREAD / 2)
            weight, observed = error**-2, measurement.rise / divergence
            m00, m01, m11 = m00 + weight, m01 + weight * x, m11 + weight * x * x
            v0, v1 = v0 + weight * observed, v1 + weight * x * observed
        determinant = m00 * m11 - m01 * m01
        a, b = (m11 * v0 - m01 * v1) / determinant, (m00 * v1 - m01 * v0) / determinant
        x = self._inside(summed) - middle  # constant beyond the measured plans
        variance = (m11 - 2 * m01 * x + m00 * x * x) / determinant
        return max(a + b * x, 0.0), variance

    def _middle(self) -> float:
        logs = [math.log(measurement.summed) for measurement in self.joint]
        return sum(logs) / len(logs) if logs else 0.0

    def _inside(self, summed: float) -> float:
        """Return log(summed), clamped to the range of the measured plans."""
        logs = [math.log(measurement.summed) for measurement in self.joint] or [0.0]
        return min(max(math.log(summed), min(logs)), max(logs))

    def _variance_of_a_token(self) -> float:
        """Return the variance of the difference in loss of a token, per divergence."""
        ratios = [
            measurement.standard_error**2 * measurement.tokens / measurement.divergence
            for measurement in self.joint
            if measurement.divergence > 0 and math.isfinite(measurement.standard_error)
        ]
        return sum(ratios) / len(ratios) if ratios else 2.0


def perplexity(loss: float) -> float:
    """Return exp of a loss in nats/token; large and finite for a diverged model."""
    return math.exp(min(loss, 700.0))
