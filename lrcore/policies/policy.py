"""What a row of the table of policies is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..budget import Budget, Spectra
from ..errors import InputError
from ..evidence import Evidence
from ..options import NoOptions, options_of, read_options
from ..spectra import Slot, Spectrum

Targets = dict[Slot, float]  # the share of its price that every slot should keep, in [0, 1]


def by_component(spectra: Spectra) -> dict[str, dict[Slot, Spectrum]]:
    """The slots of every component or matrix, by its name."""
    pools: dict[str, dict[Slot, Spectrum]] = {}
    for slot, s in spectra.items():
        pools.setdefault(slot[1], {})[slot] = s
    return pools


@dataclass(frozen=True)
class Policy:
    """A row of the table.

    targets(evidence, budget, options): the share of its price that every slot of `evidence.spectra`
    should keep.
    needs: the one kind of evidence it reads besides the spectra, by its name in the table of
    lrcore/compression/evidence/table.py; "spectra" where it reads nothing else.
    options: the frozen dataclass of its options, described by the metadata of its fields.
    suggest(evidence, budget): a rule of thumb for the temperature; None where the policy has none.
    checked: whether its ranks are measured against uniform ones before they are given
    (lrcore/compression/settle.py).
    forms: whether it chooses between the forms of a part; it then gives targets to the slots of the
    form it takes. Others are given the first form alone.
    """

    name: str
    summary: str
    targets: Callable[[Evidence, Budget, Any], Targets]
    needs: str = "spectra"
    options: type = NoOptions
    suggest: Callable[[Evidence, Budget], float] | None = None
    checked: bool = False
    forms: bool = False

    def choose(self, given: Mapping[str, Any]) -> Any:
        """The options as a value of their dataclass. Raises InputError for an unknown name or a
        value out of range.
        """
        return read_options(f"policy {self.name}", self.options, given)

    def share(self, evidence: Evidence, budget: Budget, options: Any) -> Targets:
        """The targets. Raises InputError where the evidence that the policy needs is not there."""
        if not evidence.has(self.needs):
            raise InputError(
                f"Policy '{self.name}' needs evidence '{self.needs}', measured on the model: call "
                "lrcore.measure_evidence or lrcore.prepare."
            )
        return self.targets(evidence, budget, options)

    def describe(self) -> dict[str, Any]:
        """The row as plain values, for `methods --json` and the page."""
        return {
            "name": self.name,
            "summary": self.summary,
            "temperature": self.suggest is not None,
            "needs": self.needs,
            "probed": self.needs == "probes",
            "searched": self.needs == "search",
            "gradients": self.needs == "gradients",
            "checked": self.checked,
            "options": [option.describe() for option in options_of(self.options)],
        }
