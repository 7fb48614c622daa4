"""What a sweep tries: lists of recipe fields x rows of steps, as one job.

One calibration per text, one factorisation per text and method, and every step that several cells
begin with once; see `sweep_engine` for running it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..compression.chain import Chain, chain_key, check_many, read_chains, varied
from ..errors import InputError, shown, unknown
from ..evaluation.settings import EvaluationSettings, TaskSettings, find_protocol
from ..recipe import Recipe, read_values
from ..settings import check_settings
from .shipped import sweep_file

LISTS = {
    "calibration_sets": "data",
    "sample_counts": "samples",
    "seeds": "seed",
    "methods": "method",
    "policies": "policy",
    "temperatures": "temperature",
    "ratios": "ratio",
}  # each with the field of the recipe that it stands for, the first varying slowest
NAMES = ("calibration_sets", "methods", "policies")  # lists of text
OWN = ("rows", "evaluation", "tasks", "speed")  # the other fields of a sweep's file
_EVALUATION = tuple(f.name for f in fields(EvaluationSettings))
_TASK = tuple(f.name for f in fields(TaskSettings))


@dataclass(frozen=True)
class Sweep:
    """What to try.

    base: all that the cells have in common; its `options` go with its own method only. methods,
    policies, ratios, calibration_sets, sample_counts, seeds, temperatures: lists of fields of the
    base, every combination of which is tried; an empty one leaves the base's own. rows: what is
    done for each combination, see `read_chains`; none stands for one compression.

    evaluations: what every cell, and the dense model, is measured on; of a file that is calibrated
    on as well, the held-out tail. tasks: answered by each of them as well. speed: also tokens per
    second, in turns with the dense model, and the seconds that making a model took. Raises
    InputError for an unknown name or a value out of range.
    """

    base: Recipe = field(default_factory=Recipe)
    methods: Sequence[str] = ()
    policies: Sequence[str] = ()
    ratios: Sequence[float] = ()
    calibration_sets: Sequence[str] = ()
    evaluations: Sequence[EvaluationSettings] = (EvaluationSettings("stories", samples=32),)
    speed: bool = False
    sample_counts: Sequence[int] = ()
    seeds: Sequence[int] = ()
    rows: Sequence[Any] = ()
    tasks: Sequence[TaskSettings] = ()
    temperatures: Sequence[float] = ()

    def __post_init__(self) -> None:
        for name in LISTS:
            values = _listed(getattr(self, name))
            _check_entries(name, values)
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        object.__setattr__(self, "rows", _listed(self.rows))
        for evaluation in self.evaluations:
            check_settings(evaluation)
            find_protocol(evaluation.protocol)
        for task in self.tasks:
            check_settings(task)
        if not isinstance(self.speed, bool):
            raise InputError(f"speed must be true or false, got {shown(self.speed)}.")
        steps = (step.reads_text for chain in self.cells() for step in chain)
        texts = dict.fromkeys(text for text in steps if text)
        apart = tuple(one.apart_from(tuple(texts)) for one in self.evaluations)
        object.__setattr__(self, "evaluations", apart)

    def cells(self) -> list[Chain]:
        """The steps of every cell, each chain once.

        Cells that share a factorisation follow one another, and among them those with the same
        first step; else they are in the order of the rows and, within one, of the lists.
        """
        lists = {one: getattr(self, name) for name, one in LISTS.items() if getattr(self, name)}
        check_many([*map(len, lists.values()), max(1, len(self.rows))])
        bases = [
            varied(self.base, **dict(zip(lists, values, strict=True)))
            for values in product(*lists.values())
        ]
        every: dict[str, Chain] = {}
        for row in self.rows or ("compress",):
            for base in bases:
                every |= {chain_key(chain): chain for chain in read_chains(row, base)}
                check_many([len(every)])
        chains = _together(every.values(), lambda chain: _factors(chain[0].recipe))
        return _together(chains, lambda chain: chain_key(chain[:1]))

    def with_rows(self, values: Any) -> "Sweep":
        """A copy with the rows of a file: a list, or a mapping that has one as `rows`.

        Raises InputError where they are none.
        """
        rows = values.get("rows") if isinstance(values, Mapping) else values
        if not isinstance(rows, list) or not rows:
            raise InputError(
                "The file of rows has none: it reads `rows:` and a list of steps, or of lists of "
                "steps."
            )
        return replace(self, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        lists = {name: list(getattr(self, name)) for name in LISTS}
        return {
            **self.base.to_dict(),
            **lists,
            **({"rows": list(self.rows)} if self.rows else {}),
            "evaluation": [asdict(one) for one in self.evaluations],
            **({"tasks": [asdict(one) for one in self.tasks]} if self.tasks else {}),
            "speed": self.speed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sweep":
        """Fields of a recipe, the lists of `LISTS`, `rows`, `evaluation` (settings of `evaluate`,
        whose `data` may be a list; or a list of such), `tasks` (names, or settings with task,
        items and shots) and `speed`.

        Raises InputError for an unknown field or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A sweep is a mapping of fields to values; got {type(values).__name__}."
            )
        own = {f.name for f in fields(Recipe)}
        for name in values:
            if name not in {*own, *LISTS, *OWN}:
                raise unknown("sweep field", str(name), {*own, *LISTS, *OWN})
        lists = {name: _listed(values[name]) for name in LISTS if name in values}
        base = Recipe.from_dict({name: value for name, value in values.items() if name in own})
        if "evaluation" in values:
            lists["evaluations"] = tuple(_evaluations(values["evaluation"]))
            if not lists["evaluations"] and not values.get("tasks"):
                raise InputError(
                    "The sweep measures nothing: give at least one evaluation or task."
                )
        if "tasks" in values:
            lists["tasks"] = tuple(_tasks(values["tasks"]))
        return cls(base, **lists, rows=values.get("rows") or (), speed=values.get("speed", False))

    @classmethod
    def read(cls, path: str | Path) -> "Sweep":
        """A sweep from a .json or .yaml file, or one that ships, by its name.

        Raises InputError where there is none, or it holds no sweep.
        """
        return cls.from_dict(read_values(sweep_file(path)))


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
    """Raises InputError for an entry of a list that is no text; the recipe checks numbers."""
    wrong = [one for one in values if not isinstance(one, str)] if name in NAMES else []
    if wrong:
        raise InputError(f"{name} must be a list of names, got {shown(wrong[0])} in it.")
    if any(isinstance(one, list | dict) for one in values):
        raise InputError(f"{name} must be a list of numbers, got {shown(list(values))}.")


def _factors(recipe: Recipe) -> tuple[Any, ...]:
    """What a factorisation depends on."""
    return (*(getattr(recipe, name) for name in Recipe.fields_of("windows")), recipe.method)


def _together(chains: Iterable[Chain], key: Callable[[Chain], Any]) -> list[Chain]:
    """Those with the same key one after another, in the order in which the keys are met."""
    groups: dict[Any, list[Chain]] = {}
    for chain in chains:
        groups.setdefault(key(chain), []).append(chain)
    return [chain for group in groups.values() for chain in group]


def _listed(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _evaluations(values: Any) -> Iterator[EvaluationSettings]:
    for one in _listed(values):
        if not isinstance(one, Mapping):
            raise InputError(
                "evaluation holds the settings of `evaluate`, such as data: stories; got "
                f"{shown(one)}."
            )
        for name in one:
            if name not in _EVALUATION:
                raise unknown("evaluation setting", str(name), _EVALUATION)
        for data in _listed(one.get("data", "stories")):
            yield EvaluationSettings(**{**one, "data": data})


def _tasks(values: Any) -> Iterator[TaskSettings]:
    for one in _listed(values):
        given = {"task": one} if isinstance(one, str) else one
        if not isinstance(given, Mapping):
            raise InputError(
                f"tasks holds names or settings, such as task: stories; got {shown(one)}."
            )
        for name in given:
            if name not in _TASK:
                raise unknown("task setting", str(name), _TASK)
        yield TaskSettings(**given)
