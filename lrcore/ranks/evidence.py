"""Evidence: the input of an allocation policy as a frozen value.

Spectra and influences come with the factors. Other evidence is measured only if a policy needs it:
`Policy.needs` names it, and lrcore/compression/evidence/measure.py describes the measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from ..layers.spectra import Slot, Spectrum
from ..system.errors import InputError
from .prediction import Interaction

ALWAYS = ("spectra", "influence")  # comes with the factors


@dataclass(frozen=True, eq=False)
class LossCurve:
    """Predicted increase in loss (nats/token) of the model with a single truncated slot.

    ranks: the ranks on offer, ascending, the last one full. increase [len(ranks)], float64, >= 0,
    falling to 0 at full rank.
    """

    ranks: Sequence[int]
    increase: Tensor

    def at(self, ranks: Sequence[int]) -> Tensor:
        """Return the increase at some of the ranks, [len(ranks)]."""
        if ranks == self.ranks:
            return self.increase
        position = self._positions
        return self.increase[[position[rank] for rank in ranks]]

    def loss(self, rank: int) -> float:
        """Return the increase at a rank on offer."""
        return float(self._increases[self._positions[rank]])

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {rank: i for i, rank in enumerate(self.ranks)}

    @cached_property
    def _increases(self) -> np.ndarray:
        return self.increase.cpu().numpy()


@dataclass(frozen=True)
class Probe:
    """A measurement with a single slot truncated to `rank`.

    increase: mean KL divergence of the predictions from those of the dense model, nats/token, >= 0;
    the expected increase in loss if the dense model predicts the text's distribution.
    standard_error: of that mean, over the probing windows; the mean itself for a single window.
    """

    rank: int
    increase: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class Probes:
    """Evidence "probes".

    dense_loss: mean loss (nats/token) of the dense model on the probing windows. curves: the
    predicted increase in loss of each slot, fitted to the probes. held_out: True if the moments
    have not seen the probing windows; False if the calibration text is too short for separate
    windows. interaction: the joint effect of several truncated slots; None if not measured.
    """

    dense_loss: float
    curves: Mapping[Slot, LossCurve]
    points: Mapping[Slot, Sequence[Probe]] = field(default_factory=dict)
    held_out: bool = True
    interaction: Interaction | None = None


@dataclass(frozen=True, eq=False)
class ErrorModel:
    """Evidence "error_model", see ranks/policies/lems.py.

    references: the probe of each slot at its reference rank; slots that have only their full rank
    have none. layers: their number in the model. alpha, gamma >= 0: the growth of errors with
    depth.
    """

    references: Mapping[Slot, Probe]
    layers: int
    alpha: float = 0.0
    gamma: float = 0.0


@dataclass(frozen=True)
class AgainstUniform:
    """A plan compared with uniform ranks at the same budget, on windows of the calibration text.

    divergence, uniform: mean KL divergence from the dense model, nats/token. standard_error: of
    their difference, paired by window; infinite for a single window. held_out: True if neither the
    moments nor the probes have seen the windows; False if the text is too short for that.
    """

    divergence: float
    uniform: float
    standard_error: float
    held_out: bool = True

    @property
    def hurts(self) -> bool:
        """True if the plan is worse by more than two standard errors."""
        return self.divergence - self.uniform > 2 * self.standard_error


@dataclass(frozen=True, eq=False)
class Measurement:
    """A measured value and the key of the budget it is valid for; "" for all budgets."""

    value: Any
    budget: str = ""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence about a factorized model.

    spectra: loss curve and cost of each slot. influence: of each layer ("block"), of the attention
    and of the MLP, [layers] each, entries in [0, 2].
    measurements: further evidence by name:
      outliers   per layer, the shares of `calibration.outliers.outlier_ratios`
      probes     `Probes`
      gradients  {slot: mean squared gradient of the weights}, >= 0
      search     per layer, the share that the slots keep, in (0, 1]
      error_model  `ErrorModel`
      type_weights  {type of slot, see ranks/policies/bolaco.py: weight of its share, in (0, 1]}
      angles     per layer, the mean angle between input and output in half-turns, in [0, 1]
      slopes     {slot: first-order change of the loss without each term [terms]}
    and further names of policies in other files.
    """

    spectra: Mapping[Slot, Spectrum]
    influence: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measurements: Mapping[str, Measurement] = field(default_factory=dict)

    def has(self, name: str, budget: str | None = None) -> bool:
        """Return True if evidence of this name was measured, for the given budget key if any."""
        if name in ALWAYS:
            return True
        measurement = self.measurements.get(name)
        return measurement is not None and (budget is None or measurement.budget in ("", budget))

    def get(self, name: str) -> Any:
        """Return the measured value of that name. Raises InputError if it was not measured."""
        if name not in self.measurements:
            raise InputError(
                f"Evidence '{name}' was not measured yet. Call lrcore.measure_evidence or "
                "lrcore.prepare."
            )
        return self.measurements[name].value

    def with_measurement(self, name: str, value: Any, budget: str = "") -> "Evidence":
        """Return a copy with an additional value."""
        return replace(self, measurements={**self.measurements, name: Measurement(value, budget)})

    def restricted(self, spectra: Mapping[Slot, Spectrum]) -> "Evidence":
        """Return a copy for these slots only."""
        return replace(self, spectra=spectra)
