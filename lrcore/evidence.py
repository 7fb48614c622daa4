"""Evidence: all that an allocation policy reads of a model, as one frozen value.

Spectra and influences come with the factors. Everything else is measured where a policy needs it:
`Policy.needs` names it, and lrcore/compression/evidence/table.py says how it is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from .errors import InputError
from .prediction import Interaction
from .spectra import Slot, Spectrum

ALWAYS = ("spectra", "influence")  # the evidence that every factorisation has


@dataclass(frozen=True, eq=False)
class LossCurve:
    """Predicted increase in loss (nats/token) of the model with one slot alone truncated.

    ranks: every rank on offer, ascending, the last one full. increase [len(ranks)], float64, >= 0,
    falling to 0 at full rank.
    """

    ranks: Sequence[int]
    increase: Tensor

    def at(self, ranks: Sequence[int]) -> Tensor:
        """The increase at some of the ranks, [len(ranks)]."""
        if ranks == self.ranks:
            return self.increase
        place = self._places
        return self.increase[[place[rank] for rank in ranks]]

    def loss(self, rank: int) -> float:
        """The increase at one of the ranks."""
        return float(self._increases[self._places[rank]])

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: i for i, rank in enumerate(self.ranks)}

    @cached_property
    def _increases(self) -> np.ndarray:
        return self.increase.cpu().numpy()


@dataclass(frozen=True)
class Probe:
    """One slot alone truncated to `rank`, measured.

    increase: mean KL divergence of the model's predictions from the dense model's, nats/token,
    >= 0, which is the expected increase in loss where the dense model is right about the text.
    standard_error: of that mean, over the probing windows; of one window, the mean itself.
    """

    rank: int
    increase: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class Probes:
    """Evidence "probes".

    dense_loss: mean loss (nats/token) of the dense model on the probing windows. curves: the
    predicted increase in loss of every slot, fitted to its probes. held_out: whether the moments
    have not seen the probing windows; False where the calibration text has too few others.
    interaction: what slots lose together; None where that was not measured.
    """

    dense_loss: float
    curves: Mapping[Slot, LossCurve]
    points: Mapping[Slot, Sequence[Probe]] = field(default_factory=dict)
    held_out: bool = True
    interaction: Interaction | None = None


@dataclass(frozen=True)
class AgainstUniform:
    """A plan measured against uniform ranks at the same budget, on windows of the calibration text.

    divergence, uniform: mean KL divergence from the dense model's predictions, nats/token.
    standard_error: of their difference, paired by window; infinite where there is one window.
    held_out: whether neither the moments nor the probes have seen the windows; False where the text
    has too few others.
    """

    divergence: float
    uniform: float
    standard_error: float
    held_out: bool = True

    @property
    def hurts(self) -> bool:
        """Whether the plan is worse by more than two standard errors."""
        return self.divergence - self.uniform > 2 * self.standard_error


@dataclass(frozen=True, eq=False)
class Measurement:
    """A measured value, and the key of the one budget that it holds for; "" where it holds for
    every budget.
    """

    value: Any
    budget: str = ""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of a factorised model.

    spectra: the loss curve and the cost of every slot. influence: of every layer as a whole
    ("block"), of its attention and of its MLP, [layers] each, entries in [0, 2].
    measurements: further evidence by name; the values are
      outliers   per layer, the shares of `calibration.outliers.outlier_ratios`
      probes     `Probes`
      gradients  {slot: mean squared gradient of its weights}, >= 0
      search     per layer, the share that its slots keep, in (0, 1]
      type_weights  {type of slot, see policies/bolaco.py: weight of its share, in (0, 1]}
      angles     per layer, the mean angle between its input and output in half-turns, in [0, 1]
      slopes     {slot: first-order change of the loss without each of its terms [terms]}
    and whatever a policy of another file adds.
    """

    spectra: Mapping[Slot, Spectrum]
    influence: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measurements: Mapping[str, Measurement] = field(default_factory=dict)

    def has(self, name: str, budget: str | None = None) -> bool:
        """Whether evidence of this name was measured; for the budget of this key where one is
        given.
        """
        if name in ALWAYS:
            return True
        own = self.measurements.get(name)
        return own is not None and (budget is None or own.budget in ("", budget))

    def get(self, name: str) -> Any:
        """The measured value of that name. Raises InputError where it was not measured."""
        if name not in self.measurements:
            raise InputError(
                f"Evidence '{name}' was not measured yet: lrcore.measure_evidence does it, and "
                "lrcore.prepare."
            )
        return self.measurements[name].value

    def with_measurement(self, name: str, value: Any, budget: str = "") -> "Evidence":
        """The same evidence and one value more."""
        return replace(self, measurements={**self.measurements, name: Measurement(value, budget)})

    def restricted(self, spectra: Mapping[Slot, Spectrum]) -> "Evidence":
        """The same evidence for these slots only, which have a budget of their own."""
        return replace(self, spectra=spectra)
