"""From the summed probes of a plan to the perplexity of the whole model, with an interval.

Slots are probed one at a time. Together they lose more than the sum where errors compound, and less
where a refit makes up for them; and how far the predictions move from the dense model's (a
divergence) is not quite what the loss rises by on a text. A few plans measured whole show both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

QUANTILE = 1.645  # of the normal distribution: 90 % lie within so many standard deviations
# How far the rise of the loss per divergence lies from 1, and moves per factor e of the divergence,
# before anything is measured: standard deviations.
PRIOR = (0.2, 0.1)
# Relative errors, as standard deviations: of the divergence between measured plans, and of plans of
# other policies; more per factor e beyond the outermost.
SPREAD, BEYOND = 0.1, 0.3
STEEPEST = 2.0  # power of the summed probes by which the divergence grows beyond the last plan


@dataclass(frozen=True)
class JointMeasurement:
    """A plan measured as a whole, in nats/token.

    summed > 0: the predicted increases of its slots, summed. divergence >= 0: mean KL divergence of
    the compressed model from the dense one. rise: of the mean loss, over `tokens` tokens.
    standard_error: of the rise, paired by window.
    """

    summed: float
    divergence: float
    rise: float
    standard_error: float
    tokens: int


@dataclass(frozen=True)
class Target:
    """The text that a prediction is for: its name, the dense model's mean loss there (nats/token),
    and how many tokens of it count.
    """

    name: str
    dense_loss: float
    tokens: int


@dataclass(frozen=True)
class Predicted:
    """Predicted perplexity; 90 % of the actual values should lie within low and high, which are
    None where nothing was measured that says how sure it is.
    """

    perplexity: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Interaction:
    """What slots lose together, from at most three joint measurements.

    joint: by ascending `summed`. passes: `refit` and `calibration` of the recipe that the plans
    were compressed by; it holds for recipes with the same.
    """

    joint: Sequence[JointMeasurement]
    target: Target
    passes: tuple[str, str]

    def predict(self, summed: float) -> Predicted:
        """The perplexity of a plan on the target text. summed >= 0: see `JointMeasurement`.

        Low and high hold the error of the fit, of a plan between or beyond those measured, and of a
        mean over as many tokens as the target has.
        """
        if summed <= 0:
            dense = perplexity(self.target.dense_loss)
            return Predicted(dense, dense, dense)
        divergence, share, own = self._divergence(summed), *self._share(summed)
        chance = self._variance_of_a_token() * divergence / self.target.tokens
        relative = own + SPREAD**2 + (BEYOND * self._beyond(summed)) ** 2
        margin = QUANTILE * math.sqrt(divergence**2 * relative + chance)
        rise, dense_loss = share * divergence, self.target.dense_loss
        return Predicted(
            perplexity(dense_loss + rise),
            perplexity(dense_loss + rise - margin),
            perplexity(dense_loss + rise + margin),
        )

    def _divergence(self, summed: float) -> float:
        """Log-linear between the measured plans, in proportion below the first; beyond the last
        with the power of the last two.
        """
        x = math.log(summed)
        known = [(math.log(one.summed), math.log(max(one.divergence, 1e-12))) for one in self.joint]
        if not known:
            return summed
        if x <= known[0][0] or len(known) == 1:
            return math.exp(known[0][1] + x - known[0][0])
        for (x0, y0), (x1, y1) in pairwise(known):
            slope = (max(y1, y0) - y0) / (x1 - x0)
            if x <= x1:
                return math.exp(y0 + slope * (x - x0))
        return math.exp(y1 + min(slope, STEEPEST) * (x - x1))

    def _share(self, summed: float) -> tuple[float, float]:
        """The rise of the loss per divergence, >= 0, and its variance.

        share = a + b (log summed - mean of the measured): Bayesian regression on the measured
        rises, weighted by their standard errors, with PRIOR.
        """
        middle = self._middle()
        m00, m01, m11 = PRIOR[0] ** -2, 0.0, PRIOR[1] ** -2
        v0, v1 = m00, 0.0
        for one in self.joint:
            x, size = math.log(one.summed) - middle, max(one.divergence, 1e-12)
            error = math.hypot(one.standard_error / size, SPREAD / 2)
            weight, seen = error**-2, one.rise / size
            m00, m01, m11 = m00 + weight, m01 + weight * x, m11 + weight * x * x
            v0, v1 = v0 + weight * seen, v1 + weight * x * seen
        determinant = m00 * m11 - m01 * m01
        a, b = (m11 * v0 - m01 * v1) / determinant, (m00 * v1 - m01 * v0) / determinant
        x = math.log(summed) - middle - self._signed_beyond(summed)  # constant beyond the measured
        variance = (m11 - 2 * m01 * x + m00 * x * x) / determinant
        return max(a + b * x, 0.0), variance

    def _middle(self) -> float:
        logs = [math.log(one.summed) for one in self.joint]
        return sum(logs) / len(logs) if logs else 0.0

    def _signed_beyond(self, summed: float) -> float:
        """How far log(summed) lies above the last measured plan, or (negative) below the first."""
        x = math.log(summed)
        if not self.joint:
            return x
        low, high = math.log(self.joint[0].summed), math.log(self.joint[-1].summed)
        return max(x - high, 0.0) + min(x - low, 0.0)

    def _beyond(self, summed: float) -> float:
        return abs(self._signed_beyond(summed))

    def _variance_of_a_token(self) -> float:
        """Of the difference of a token's losses, per divergence: it grows in proportion."""
        ratios = [
            one.standard_error**2 * one.tokens / one.divergence
            for one in self.joint
            if one.divergence > 0 and math.isfinite(one.standard_error)
        ]
        return sum(ratios) / len(ratios) if ratios else 2.0


def perplexity(loss: float) -> float:
    """exp of a loss in nats/token; of a diverged model large and finite."""
    return math.exp(min(loss, 700.0))
