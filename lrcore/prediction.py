"""From the summed probes of a plan to the perplexity of the whole model, with an interval.

Slots are probed one at a time. Together they lose more than the sum where errors compound, and less
where a refit makes up for them; and how far the predictions move from the dense model's (a
divergence) is not quite what the loss rises by on a text. A few plans measured whole show both.

Of plans with one sum, those that the probes chose do not lose what others do: they spread it over
many slots, and among them are those whose probes came out too low.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

QUANTILE = 1.645  # of the normal distribution: 90 % lie within so many standard deviations
# How far the rise of the loss per divergence lies from 1, and moves per factor e of the divergence,
# before anything is measured: standard deviations.
PRIOR = (0.2, 0.1)
# Relative errors of the divergence, as standard deviations: between measured plans; more per
# factor e above the last; of plans that the probes did not choose, per factor e away from the one
# that was measured.
SPREAD, BEYOND, OTHERS = 0.1, 0.3, 0.15
LEAST_SHARE = 0.1  # of the rise per divergence, as an error is relative to it
STEEPEST = 2.0  # power of the summed probes by which the divergence grows beyond the last plan


@dataclass(frozen=True)
class JointMeasurement:
    """A plan measured as a whole, in nats/token.

    summed > 0: the predicted increases of its slots, summed. divergence >= 0: mean KL divergence of
    the compressed model from the dense one. rise: of the mean loss, over `tokens` tokens.
    standard_error: of the rise, paired by window. chosen: whether the probes chose the ranks.
    """

    summed: float
    divergence: float
    rise: float
    standard_error: float
    tokens: int
    chosen: bool = True


@dataclass(frozen=True)
class Target:
    """The text that a prediction is for: its name, the dense model's mean loss there (nats/token),
    and how many tokens of it count. guessing: the loss of a model that finds all tokens as likely.
    """

    name: str
    dense_loss: float
    tokens: int
    guessing: float = math.inf


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

    def predict(self, summed: float, chosen: bool = True) -> Predicted:
        """The perplexity of a plan on the target text. summed >= 0, chosen: see `JointMeasurement`.

        Low and high hold the error of the fit and of a plan between or beyond those measured, by a
        factor: what is predicted to rise does not fall; and that of a mean over as many tokens as
        the target has. Beyond a model that guesses nothing is known but that it is one, see
        `_bounded`.
        """
        if summed <= 0:
            dense = perplexity(self.target.dense_loss)
            return Predicted(dense, dense, dense)
        divergence, (share, own) = self._divergence(summed), self._share(summed)
        least = max(share, LEAST_SHARE)
        relative = own / least**2 + self._spread(summed) ** 2
        if not chosen:
            factor, spread = self._others(summed)
            divergence, relative = factor * divergence, relative + spread**2
        rise, dense_loss = share * divergence, self.target.dense_loss
        size = least * divergence
        times = math.exp(QUANTILE * math.sqrt(relative))
        chance = QUANTILE * math.sqrt(self._variance_of_a_token() * divergence / self.target.tokens)
        below = math.hypot(size * (1 - 1 / times), chance)
        above = math.hypot(size * (times - 1), chance)
        return self._bounded(dense_loss + rise, below, above)

    def _bounded(self, loss: float, below: float, above: float) -> Predicted:
        """The prediction of a loss and how far the actual one may lie below and above it, in
        nats/token.

        Losses are extrapolated by powers, but those of models that have lost everything are about
        that of guessing, or what was measured where that is more: none is predicted to be larger,
        and its interval reaches half of the way from the dense loss below and above. A dense model
        that is worse than guessing says nothing of this.
        """
        dense_loss, guessing = self.target.dense_loss, self.target.guessing
        most = max([guessing, *(dense_loss + one.rise for one in self.joint)])
        most = most if dense_loss < guessing else math.inf
        half = (most - dense_loss) / 2
        low, high = loss - below, min(loss + above, most + half)
        if loss > most:
            loss, low, high = most, min(low, most - half), most + half
        return Predicted(perplexity(loss), perplexity(low), perplexity(high))

    def _curve(self) -> list[tuple[float, float]]:
        """log of sum and divergence of the plans that the probes chose; of all where they chose
        none.
        """
        own = [one for one in self.joint if one.chosen] or self.joint
        return [(math.log(one.summed), math.log(max(one.divergence, 1e-12))) for one in own]

    def _divergence(self, summed: float) -> float:
        """Log-linear between the plans of the curve, beyond the last with the power of the last
        two; below the first see `_below`.
        """
        x, known = math.log(summed), self._curve()
        if not known:
            return summed
        if x <= known[0][0]:
            return self._below(summed)
        if len(known) == 1:
            return math.exp(known[0][1] + x - known[0][0])
        for (x0, y0), (x1, y1) in pairwise(known):
            slope = (max(y1, y0) - y0) / (x1 - x0)
            if x <= x1:
                return math.exp(y0 + slope * (x - x0))
        return math.exp(y1 + min(slope, STEEPEST) * (x - x1))

    def _below(self, summed: float) -> float:
        """Below the first plan of the curve: the sum, and what two slots at a time lose beyond it,
        which falls with its square; in proportion where a refit makes up for some of the sum.
        """
        x, y = self._curve()[0]
        gain = math.exp(y - x)
        return summed * (gain if gain <= 1 else 1 + (gain - 1) * summed / math.exp(x))

    def _spread(self, summed: float) -> float:
        """Relative standard deviation of the divergence of a plan that the probes chose. Below the
        first plan, being in proportion to it lies at the edge of the interval.
        """
        known, x = self._curve(), math.log(summed)
        if not known:
            return math.hypot(SPREAD, BEYOND * x)
        if x > known[-1][0]:
            return math.hypot(SPREAD, BEYOND * (x - known[-1][0]))
        if x >= known[0][0]:
            return SPREAD
        proportion = math.exp(known[0][1] + x - known[0][0])
        return math.hypot(SPREAD, (proportion / self._below(summed) - 1) / QUANTILE)

    def _others(self, summed: float) -> tuple[float, float]:
        """By what factor plans that the probes did not choose differ from the curve, and the
        relative standard deviation of that; 1 where none was measured.
        """
        others = [one for one in self.joint if not one.chosen]
        if not others:
            return 1.0, 2 * OTHERS
        one = others[0]
        factor = max(one.divergence, 1e-12) / self._divergence(one.summed)
        return factor, OTHERS * abs(math.log(summed / one.summed))

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
        x = self._inside(summed) - middle  # constant beyond the measured
        variance = (m11 - 2 * m01 * x + m00 * x * x) / determinant
        return max(a + b * x, 0.0), variance

    def _middle(self) -> float:
        logs = [math.log(one.summed) for one in self.joint]
        return sum(logs) / len(logs) if logs else 0.0

    def _inside(self, summed: float) -> float:
        """log(summed), or that of the outermost measured plan where it lies beyond."""
        logs = [math.log(one.summed) for one in self.joint] or [0.0]
        return min(max(math.log(summed), min(logs)), max(logs))

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
