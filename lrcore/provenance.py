"""How a model came to be, as it is kept in report.json and in the database of runs: its history,
the dense model it was made of, and its account beside that one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .account import SizeAndCost
from .errors import InputError
from .history import STEPS, Step

VERSION = 2  # of report.json; the first has no number and names what there is by its keys


@dataclass(frozen=True)
class BaseModel:
    """The dense model that another was made of: its name and the sha256 of its files."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Provenance:
    """All that is known of how a model came to be; empty for a dense one.

    base: the dense model that the account compares with.
    """

    history: tuple[Step, ...] = ()
    base: BaseModel | None = None
    account: SizeAndCost | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, as report.json holds it."""
        return {
            "version": VERSION,
            "base": None if self.base is None else asdict(self.base),
            "account": None if self.account is None else self.account.to_dict(),
            "history": [step.to_dict() for step in self.history],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Provenance":
        """What `to_dict` gave, or a report of an earlier version.

        Raises InputError for a version or a kind of step that this one does not know, and for
        values that are no report.
        """
        try:
            if "version" not in values:
                return _read_first_version(values)
            return _read_second_version(values)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"The report of a model cannot be read ({error!r}). The file was changed or cut: "
                "copy it again."
            ) from error


def _read_second_version(values: Mapping[str, Any]) -> Provenance:
    if values["version"] != VERSION:
        raise InputError(
            f"The report has version {values['version']!r}, but this program reads {VERSION}. Use "
            "the version that wrote it."
        )
    return Provenance(
        tuple(_read_step(step) for step in values["history"]),
        None if values["base"] is None else BaseModel(**values["base"]),
        None if values["account"] is None else SizeAndCost.from_dict(values["account"]),
    )


def _read_first_version(values: Mapping[str, Any]) -> Provenance:
    """A report that names steps by its keys: "recipe", "healing", "quantised", "shortened",
    "sliced".
    """
    stock, base, summary = values.get("stock"), values.get("base"), values.get("summary") or {}
    steps: list[dict[str, Any]] = []
    if shortened := values.get("shortened"):
        steps.append({"kind": "shortened", **shortened})
    if sliced := values.get("sliced"):
        requested = sliced.get("requested", sliced.get("asked"))
        steps.append({"kind": "sliced", **sliced, "requested": requested, "stock": stock})
    if "recipe" in values:
        steps.append({"kind": "compressed", **values})
    if healing := values.get("healing"):
        steps.append({"kind": "healed", **healing})
    if quantised := values.get("quantised"):
        steps.append({"kind": "quantised", **quantised})
    whole = "dense_parameters" in summary  # a dense model that was quantised had its bytes alone
    return Provenance(
        tuple(map(_read_step, steps)),
        None if base is None else BaseModel(base, values.get("base_fingerprint", "")),
        SizeAndCost.from_dict(summary) if whole else None,
    )


def _read_step(values: Mapping[str, Any]) -> Step:
    kind = values["kind"]
    if kind not in STEPS:
        raise InputError(
            f"The report names a step '{kind}', which this program does not know. Use the version "
            "that wrote it."
        )
    step: Step = STEPS[kind].from_dict(values)
    return step
