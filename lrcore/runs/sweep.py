"""Sweeps: all combinations of the values of recipe fields, with one or more rows of steps.

A sweep calibrates once per text and factorizes once per text and method. If several cells start
with the same step, the step is applied once. See `sweep_engine` for running a sweep.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..compression.steps.chain import Chain, chain_key, check_sweep_size, read_chains, vary_recipe
from ..evaluation.evaluation_settings import EvaluationSettings, TaskSettings, find_protocol
from ..recipes import former_names
from ..recipes.recipe import Recipe, read_values, with_named_field
from ..system.errors import InputError, shown, unknown
from ..system.settings import check_settings

TABLES = Path(__file__).parent / "tables"  # the sweeps of published tables
# The recipe field of each list. In the order of cells the first list varies slowest.
LISTS = {
    "calibration_sets": "data",
    "sample_counts": "samples",
    "seeds": "seed",
    "methods": "method",
    "policies": "policy",
    "temperatures": "temperature",
    "ratios": "ratio",
}
NAME_LISTS = ("calibration_sets", "methods", "policies")  # lists of strings
SWEEP_FIELDS = ("rows", "evaluation", "tasks", "speed")  # fields of a sweep file besides lists
_EVALUATION = tuple(f.name for f in fields(EvaluationSettings))
_TASK = tuple(f.name for f in fields(TaskSettings))


@dataclass(frozen=True)
class Sweep:
    """The recipes, steps and measurements of a sweep.

    base: the common settings of all cells; `options` apply only to the method of the base. methods,
    policies, ratios, calibration_sets, sample_counts, seeds, temperatures: lists of values for
    fields of the base. All combinations are run; for an empty list the value of the base is used.
    rows: the steps of each combination, see `read_chains`; a single compression if empty.

    evaluations: the measurements of each cell and of the dense model. If a file is also used for
    calibration, its held-out tail is measured. tasks: the tasks answered by each cell and by the
    dense model. speed: whether to measure tokens per second, in turns with the dense model, and the
    seconds needed to make a model. Raises InputError for an unknown name or a value out of range.
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
            values = _as_tuple(getattr(self, name))
            _check_entries(name, values)
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        object.__setattr__(self, "rows", _as_tuple(self.rows))
        for evaluation in self.evaluations:
            check_settings(evaluation)
            find_protocol(evaluation.protocol)
        for task in self.tasks:
            check_settings(task)
        if not isinstance(self.speed, bool):
            raise InputError(f"speed must be true or false, got {shown(self.speed)}.")
        names = (step.reads_text for chain in self.cells() for step in chain)
        texts = tuple(dict.fromkeys(name for name in names if name))
        evaluations = tuple(settings.held_out_from(texts) for settings in self.evaluations)
        object.__setattr__(self, "evaluations", evaluations)

    def cells(self) -> list[Chain]:
        """Return the steps of all cells, without duplicate chains.

        Cells that share a factorization are adjacent, and among them cells with the same first
        step. Otherwise they are in the order of the rows and, within a row, of the lists.
        """
        lists = {
            field_name: getattr(self, name)
            for name, field_name in LISTS.items()
            if getattr(self, name)
        }
        check_sweep_size([*map(len, lists.values()), max(1, len(self.rows))])
        bases = [
            vary_recipe(self.base, **dict(zip(lists, values, strict=True)))
            for values in product(*lists.values())
        ]
        by_key: dict[str, Chain] = {}
        for row in self.rows or ("compress",):
            for base in bases:
                by_key |= {chain_key(chain): chain for chain in read_chains(row, base)}
                check_sweep_size([len(by_key)])
        chains = _grouped(by_key.values(), lambda chain: _factors_key(chain[0].recipe))
        return _grouped(chains, lambda chain: chain_key(chain[:1]))

    def with_rows(self, values: Any) -> "Sweep":
        """Return a copy with the rows of a file: a list, or a mapping with the list as `rows`.

        Raises InputError for any other content.
        """
        rows = values.get("rows") if isinstance(values, Mapping) else values
        if not isinstance(rows, list) or not rows:
            raise InputError(
                "The file has no rows. Write `rows:` and a list of steps, or of lists of steps."
            )
        return replace(self, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        lists = {name: list(getattr(self, name)) for name in LISTS}
        return {
            **self.base.to_dict(),
            **lists,
            **({"rows": list(self.rows)} if self.rows else {}),
            "evaluation": [asdict(settings) for settings in self.evaluations],
            **({"tasks": [asdict(task) for task in self.tasks]} if self.tasks else {}),
            "speed": self.speed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sweep":
        """Return the sweep of a mapping.

        Its keys are fields of a recipe, the lists of `LISTS`, `rows`, `evaluation` (settings of
        `evaluate`, whose `data` may be a list, or a list of such settings), `tasks` (names, or
        settings with task, items and shots) and `speed`. Raises InputError for an unknown field or
        a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A sweep must be a mapping of fields to values; got {type(values).__name__}."
            )
        values = with_named_field(former_names.current_recipe(values))
        recipe_fields = {f.name for f in fields(Recipe)}
        valid_names = {*recipe_fields, *LISTS, *SWEEP_FIELDS}
        for name in values:
            if name not in valid_names:
                raise unknown("sweep field", str(name), valid_names)
        lists = {name: _as_tuple(values[name]) for name in LISTS if name in values}
        base = Recipe.from_dict(
            {name: value for name, value in values.items() if name in recipe_fields}
        )
        if "evaluation" in values:
            lists["evaluations"] = tuple(_evaluations(values["evaluation"]))
            if not lists["evaluations"] and not values.get("tasks"):
                raise InputError(
                    "The sweep has no measurements; give at least one evaluation or task."
                )
        if "tasks" in values:
            lists["tasks"] = tuple(_tasks(values["tasks"]))
        return cls(base, **lists, rows=values.get("rows") or (), speed=values.get("speed", False))

    @classmethod
    def read(cls, path: str | Path) -> "Sweep":
        """Return the sweep in a .json or .yaml file, or an included sweep by its name.

        Raises InputError if the file is missing or has invalid content.
        """
        return cls.from_dict(read_values(sweep_file(path)))


def included_sweeps() -> list[str]:
    """Return the names of the sweeps that the package includes, the tables of papers, for
    `Sweep.read`.
    """
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def sweep_file(path: str | Path) -> Path:
    """Return the file of a sweep, given by path or by the name of an included sweep. Raises
    InputError if it is missing.
    """
    file, included = Path(path), TABLES / f"{path}.yaml"
    if file.is_file():
        return file
    if str(path) in included_sweeps():
        return included
    raise InputError(
        f"No sweep file at '{path}'. Check the path; a sweep is a recipe with lists (methods, "
        f"policies, ratios, ...) or rows. Included sweeps: {', '.join(included_sweeps())}."
    )


def cross_calibration(
    base: Recipe, sets: Sequence[str], samples: int | None = 32, methods: Sequence[str] = ()
) -> Sweep:
    """Return the sweep of a cross-calibration study, as all four papers report it.

    A model is calibrated on each data set, and each of these models is measured on all data sets.
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
    """Raise InputError if a list of names has an entry of another type, or if lists are nested.

    The recipe checks the values of numbers.
    """
    invalid = [value for value in values if not isinstance(value, str)]
    if invalid and name in NAME_LISTS:
        raise InputError(f"{name} must be a list of names; it contains {shown(invalid[0])}.")
    if any(isinstance(value, list | dict) for value in values):
        raise InputError(f"{name} must be a list of numbers, got {shown(list(values))}.")


def _factors_key(recipe: Recipe) -> tuple[Any, ...]:
    """Return the settings that determine a factorization."""
    return (*(getattr(recipe, name) for name in Recipe.fields_of("windows")), recipe.method)


def _grouped(chains: Iterable[Chain], key: Callable[[Chain], Any]) -> list[Chain]:
    """Return the chains with equal keys adjacent, in the order in which the keys first occur."""
    groups: dict[Any, list[Chain]] = {}
    for chain in chains:
        groups.setdefault(key(chain), []).append(chain)
    return [chain for group in groups.values() for chain in group]


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _evaluations(values: Any) -> Iterator[EvaluationSettings]:
    for settings in _as_tuple(values):
        if not isinstance(settings, Mapping):
            raise InputError(
                "evaluation must contain settings of `evaluate`, such as data: stories; got "
                f"{shown(settings)}."
            )
        settings = with_named_field(settings)
        for name in settings:
            if name not in _EVALUATION:
                raise unknown("evaluation setting", str(name), _EVALUATION)
        for data in _as_tuple(settings.get("data", "stories")):
            yield EvaluationSettings(**{**settings, "data": data})


def _tasks(values: Any) -> Iterator[TaskSettings]:
    for entry in _as_tuple(values):
        settings = {"task": entry} if isinstance(entry, str) else entry
        if not isinstance(settings, Mapping):
            raise InputError(
                f"tasks must contain names or settings, such as task: stories; got {shown(entry)}."
            )
        for name in settings:
            if name not in _TASK:
                raise unknown("task setting", str(name), _TASK)
        yield TaskSettings(**settings)
