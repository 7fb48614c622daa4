"""Provenance of a model: history, dense base model, size and cost.

report.json of a checkpoint and the database of runs store it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..layers.account import SizeAndCost
from ..system.errors import InputError
from . import former_names
from .history import STEPS, Step

VERSION = 2  # of report.json


@dataclass(frozen=True)
class BaseModel:
    """A dense model that another model was made from: name and sha256 of the files."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Provenance:
    """History of a model and the account that compares it with `base`; empty for a dense model."""

    history: tuple[Step, ...] = ()
    base: BaseModel | None = None
    account: SizeAndCost | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values, as report.json holds them."""
        return {
            "version": VERSION,
            "base": None if self.base is None else asdict(self.base),
            "account": None if self.account is None else self.account.to_dict(),
            "history": [step.to_dict() for step in self.history],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Provenance":
        """Return the provenance that `to_dict` wrote.

        Raises InputError for another version, an unknown kind of step, and damaged values.
        """
        try:
            if values["version"] != VERSION:
                raise InputError(
                    f"The report has version {values['version']!r}, but this program reads "
                    f"{VERSION}. Use the version that wrote it."
                )
            return cls(
                tuple(map(_read_step, values["history"])),
                None if values["base"] is None else BaseModel(**values["base"]),
                None if values["account"] is None else _read_account(values["account"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"The report of a model cannot be read ({error!r}). The file was changed or cut: "
                "copy it again."
            ) from error


def _read_account(values: Mapping[str, Any]) -> SizeAndCost:
    budget = former_names.BUDGETS.get(values["budget"], values["budget"])
    return SizeAndCost.from_dict({**values, "budget": budget})


def _read_step(values: Mapping[str, Any]) -> Step:
    kind = former_names.HISTORY_KINDS.get(values["kind"], values["kind"])
    if kind not in STEPS:
        raise InputError(
            f"The report names a step '{kind}', which this program does not know. Use the version "
            "that wrote it."
        )
    step: Step = STEPS[kind].from_dict(values)
    return step
