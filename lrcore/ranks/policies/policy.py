"""A policy as a row of the table, and the type of targets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...layers.spectra import Slot
from ...system.errors import InputError
from ...system.settings import NoOptions, options_of, read_options
from ..budget import Budget
from ..evidence import Evidence

Targets = dict[Slot, float]  # the share of its price that each slot should keep, in [0, 1]


@dataclass(frozen=True)
class Policy:
    """A row of the table of policies.

    targets(evidence, budget, options) returns the share of its price that each slot of
    `evidence.spectra` should keep.
    needs: the evidence that the policy reads besides the spectra, by its name in
    lrcore/compression/evidence/measure.py; "spectra" if it reads only these.
    options: the frozen dataclass of the options, described by the metadata of its fields.
    suggest(evidence, budget) returns a rule of thumb for the temperature; None if the policy has
    none.
    checked: the ranks are compared with uniform ranks before use
    (lrcore/compression/pipeline/choose_plan.py).
    forms: the policy chooses between the forms of a part and returns targets only for slots of the
    chosen forms. Other policies get the first form only.
    distills: the default refit ends with a brief distillation, see
    lrcore/compression/solve/distill.py.
    """

    name: str
    summary: str
    targets: Callable[[Evidence, Budget, Any], Targets]
    needs: str = "spectra"
    options: type = NoOptions
    suggest: Callable[[Evidence, Budget], float] | None = None
    checked: bool = False
    forms: bool = False
    distills: bool = False

    @property
    def has_temperature(self) -> bool:
        """Whether the policy reads the recipe's temperature."""
        return self.suggest is not None

    def choose(self, values: Mapping[str, Any]) -> Any:
        """Return the options as a value of their dataclass.

        Raises InputError for an unknown name or a value out of range.
        """
        return read_options(f"policy {self.name}", self.options, values)

    def share(self, evidence: Evidence, budget: Budget, options: Any) -> Targets:
        """Return the targets. Raises InputError if evidence of the policy was not measured."""
        if not evidence.has(self.needs):
            raise InputError(
                f"Policy '{self.name}' needs evidence '{self.needs}', measured on the model: call "
                "lrcore.measure_evidence or lrcore.prepare."
            )
        return self.targets(evidence, budget, options)

    def describe(self) -> dict[str, Any]:
        """Return the row as JSON-able values, for `methods --json` and the page."""
        return {
            "name": self.name,
            "summary": self.summary,
            "temperature": self.has_temperature,
            "needs": self.needs,
            "probed": self.needs == "probes",
            "searched": self.needs == "search",
            "gradients": self.needs == "gradients",
            "checked": self.checked,
            "options": [option.describe() for option in options_of(self.options)],
        }
