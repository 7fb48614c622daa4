"""What a sweep tries: methods x policies x ratios x calibration sets, as one job.

One calibration per set, one factorisation per set and method; see `sweep_engine` for running it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import InputError, unknown
from ..evaluation.settings import EvaluationSettings, find_protocol
from ..methods import find_method
from ..policies import find_policy
from ..recipe import Recipe, read_values
from ..settings import check_settings

LISTS = {"methods": "method", "policies": "policy", "ratios": "ratio", "calibration_sets": "data"}
_EVALUATION = tuple(f.name for f in fields(EvaluationSettings))


@dataclass(frozen=True)
class Sweep:
    """What to try.

    base: all that the cells have in common; its `options` go with its own method only.

    evaluations: what every cell, and the dense model, is measured on; of a file that is calibrated
    on as well, the held-out tail. speed: also tokens per
    second, in turns with the dense model. Raises InputError for an unknown name or a value out of
    range.
    """

    base: Recipe = field(default_factory=Recipe)
    methods: Sequence[str] = ()
    policies: Sequence[str] = ()
    ratios: Sequence[float] = ()
    calibration_sets: Sequence[str] = ()
    evaluations: Sequence[EvaluationSettings] = (EvaluationSettings("stories", samples=32),)
    speed: bool = False

    def __post_init__(self) -> None:
        for name, one in LISTS.items():
            values = getattr(self, name) or (getattr(self.base, one),)
            _check_entries(name, values)
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        for method in self.methods:
            find_method(method)
        for policy in self.policies:
            find_policy(policy)
        for evaluation in self.evaluations:
            check_settings(evaluation)
            find_protocol(evaluation.protocol)
        if not isinstance(self.speed, bool):
            raise InputError(f"speed must be true or false, got {self.speed!r}.")
        apart = tuple(one.apart_from(self.calibration_sets) for one in self.evaluations)
        object.__setattr__(self, "evaluations", apart)
        self.cells()

    def cells(self) -> list[Recipe]:
        """The recipe of every cell: sets, then methods, then policies, then ratios."""
        return [
            self.base.with_(
                data=data,
                method=method,
                policy=policy,
                ratio=ratio,
                overrides={},
                **self.settings(method, policy),
            )
            for data in self.calibration_sets
            for method in self.methods
            for policy in self.policies
            for ratio in self.ratios
        ]

    def settings(self, method: str, policy: str) -> dict[str, Mapping[str, Any]]:
        """Options and component ratios go with the base's own method, policy options with its
        policy.
        """
        own, shared = method == self.base.method, policy == self.base.policy
        return {
            "options": self.base.options if own else {},
            "component_ratios": self.base.component_ratios if own else {},
            "policy_options": self.base.policy_options if shared else {},
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        lists = {name: list(getattr(self, name)) for name in LISTS}
        return {
            **self.base.to_dict(),
            **lists,
            "evaluation": [asdict(one) for one in self.evaluations],
            "speed": self.speed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sweep":
        """Fields of a recipe, the lists methods, policies, ratios and calibration_sets,
        `evaluation` (settings of `evaluate`, whose `data` may be a list; or a list of such) and
        `speed`. Raises InputError for an unknown field or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A sweep is a mapping of fields to values; got {type(values).__name__}."
            )
        own = {f.name for f in fields(Recipe)}
        for name in values:
            if name not in own | LISTS.keys() | {"evaluation", "speed"}:
                raise unknown(
                    "sweep field", str(name), own | LISTS.keys() | {"evaluation", "speed"}
                )
        lists = {name: _listed(values[name]) for name in LISTS if name in values}
        base = Recipe.from_dict({name: value for name, value in values.items() if name in own})
        if "evaluation" in values:
            lists["evaluations"] = tuple(_evaluations(values["evaluation"]))
            if not lists["evaluations"]:
                raise InputError("The sweep measures nothing: give at least one evaluation.")
        return cls(base, **lists, speed=values.get("speed", False))

    @classmethod
    def read(cls, path: str | Path) -> "Sweep":
        """A sweep from a .json or .yaml file.

        Raises InputError where there is none, or it holds no sweep.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"No sweep file at '{path}'. Check the path; a sweep is a recipe with lists "
                "(methods, policies, ratios, ...)."
            )
        return cls.from_dict(read_values(path) or {})


def cross_calibration(
    base: Recipe, sets: Sequence[str], samples: int | None = 32, methods: Sequence[str] = ()
) -> Sweep:
    """The study that all four papers report: calibrate on each set, measure on each set.

    Raises InputError for fewer than two sets.
    """
    if len(set(sets)) < 2:
        raise InputError(
            "A cross-calibration study needs at least two data sets; got "
            f"{', '.join(sets) or 'none'}."
        )
    return Sweep(
        base,
        methods,
        calibration_sets=sets,
        evaluations=tuple(
            EvaluationSettings(data, samples, min(base.seq_len, 256)) for data in sets
        ),
    )


def _check_entries(name: str, values: Sequence[Any]) -> None:
    """Raises InputError for an entry of a list that is no text; the recipe checks ratios."""
    wrong = [one for one in values if not isinstance(one, str)] if name != "ratios" else []
    if wrong:
        raise InputError(f"{name} must be a list of names, got {wrong[0]!r} in it.")
    if any(isinstance(one, list | dict) for one in values):
        raise InputError(f"{name} must be a list of numbers, got {list(values)!r}.")


def _listed(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _evaluations(values: Any) -> Iterator[EvaluationSettings]:
    for one in _listed(values):
        if not isinstance(one, Mapping):
            raise InputError(
                f"evaluation holds the settings of `evaluate`, such as data: stories; got {one!r}."
            )
        for name in one:
            if name not in _EVALUATION:
                raise unknown("evaluation setting", str(name), _EVALUATION)
        for data in _listed(one.get("data", "stories")):
            yield EvaluationSettings(**{**one, "data": data})
