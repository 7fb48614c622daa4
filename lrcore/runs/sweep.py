"""Sweeps: methods x policies x ratios x calibration sets as one job that a kill does not set back.

One calibration per set, one factorisation per set and method. Every finished cell is a file of its
own, written under another name and then renamed; its name says all that it depends on, so that a
restart, or a wider sweep in the same folder, repeats none.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ..calibration.calibrate import calibrate
from ..compression.allocate import allocate
from ..compression.compress import compress
from ..compression.evidence.table import measure_evidence
from ..compression.factorise import Factorisation, factorise
from ..errors import InputError, unknown
from ..evaluation.cost import measure_cost, measure_speed
from ..evaluation.evaluate import evaluate
from ..evaluation.protocols import EvaluationSettings, find_protocol
from ..files import write_text
from ..methods import find_method
from ..models.load import LoadedModel
from ..policies import find_policy
from ..progress import Progress, silent
from ..recipe import Recipe

FORMAT = 1  # of the cells; raise it whenever what is measured changes its meaning
LISTS = {"methods": "method", "policies": "policy", "ratios": "ratio", "calibration_sets": "data"}
_EVALUATION = tuple(f.name for f in fields(EvaluationSettings))


@dataclass(frozen=True)
class Sweep:
    """What to try.

    base: all that the cells have in common; its `options` go with its own method only.

    evaluations: what every cell, and the dense model, is measured on. speed: also tokens per
    second, in turns with the dense model.
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
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        for method in self.methods:
            find_method(method)
        for policy in self.policies:
            find_policy(policy)
        for asked in self.evaluations:
            find_protocol(asked.protocol)
        if not self.evaluations:
            raise InputError("The sweep measures nothing: give at least one evaluation.")
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
        more = (
            {"evaluations": tuple(_evaluations(values["evaluation"]))}
            if "evaluation" in values
            else {}
        )
        return cls(base, **lists, **more, speed=bool(values.get("speed", False)))

    @classmethod
    def read(cls, path: str | Path) -> "Sweep":
        """A sweep from a .json or .yaml file."""
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"No sweep file at '{path}'. Check the path; a sweep is a recipe with lists "
                "(methods, policies, ratios, ...)."
            )
        try:
            return cls.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(
                f"'{path}' is neither JSON nor YAML: {str(error).splitlines()[0]}."
            ) from error


def cross_calibration(
    base: Recipe, sets: Sequence[str], samples: int | None = 32, methods: Sequence[str] = ()
) -> Sweep:
    """The preset that all four papers report: calibrate on each set, measure on each set."""
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


def run_sweep(
    model: LoadedModel, asked: Sweep, folder: str | Path, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Every cell that the folder lacks, one after another; returns the rows of all, the dense model
    first (see `rows`).

    progress is also called with ("sweep", cells done, cells) after each cell. A cell that cannot be
    made, such as a KV budget for a method that leaves the cache as it is, becomes a row with its
    error.
    """
    progress, cells = progress or silent, Path(folder) / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    recipes = [None, *asked.cells()]  # None: the dense model
    paths = [cells / f"{_key(model, asked, recipe)}.json" for recipe in recipes]
    source = _Factors(model, asked, progress)
    for done, (recipe, path) in enumerate(zip(recipes, paths, strict=True)):
        progress("sweep", done, len(recipes))
        if not path.is_file():
            write_text(path, json.dumps(_measure(model, asked, recipe, source, progress), indent=1))
    progress("sweep", len(recipes), len(recipes))
    return [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def finished(model: LoadedModel, asked: Sweep, folder: str | Path) -> list[dict[str, Any]]:
    """The rows of the cells that the folder has already."""
    paths = [
        Path(folder) / "cells" / f"{_key(model, asked, recipe)}.json"
        for recipe in (None, *asked.cells())
    ]
    return [
        row
        for path in paths
        if path.is_file()
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
    ]


def _key(model: LoadedModel, asked: Sweep, recipe: Recipe | None) -> str:
    made = (
        {}
        if recipe is None
        else {
            **recipe.to_dict(),
            "device": str(model.device),
            "options": sorted(recipe.options.items()),
        }
    )
    parts = [
        FORMAT,
        model.fingerprint,
        model.dtype,
        made,
        [asdict(one) for one in asked.evaluations],
        asked.speed,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class _Factors:
    """The factorisation that the next cells share; one at a time is held."""

    def __init__(self, model: LoadedModel, asked: Sweep, progress: Progress) -> None:
        self._model, self._asked, self._progress = model, asked, progress
        self._held: tuple[Any, Factorisation] | None = None

    def of(self, recipe: Recipe) -> Factorisation:
        key = (recipe.data, recipe.method)
        if self._held is None or self._held[0] != key:
            calibration = calibrate(self._model, recipe, self._progress)
            self._held = (
                key,
                factorise(self._model, calibration, recipe.method, self._progress, recipe.options),
            )
        self._held = (key, measure_evidence(self._model, self._held[1], recipe, self._progress))
        return self._held[1]


def _measure(
    model: LoadedModel, asked: Sweep, recipe: Recipe | None, source: _Factors, progress: Progress
) -> dict[str, Any]:
    """One cell: {"rows": one per evaluation}."""
    said = {"calibrated_on": None, "method": "dense", "policy": None, "ratio": 0.0}
    small = model
    if recipe is not None:
        said = {
            "calibrated_on": recipe.data,
            "method": recipe.method,
            "policy": recipe.policy,
            "ratio": recipe.ratio,
        }
        try:
            factors = source.of(recipe)
            small = compress(model, recipe, factors, allocate(factors, recipe), progress)
        except InputError as error:
            return {
                "rows": [
                    {**said, "measured_on": one.data, "error": str(error)}
                    for one in asked.evaluations
                ]
            }
    cost = measure_cost(small, min(256, (model.context or 257) - 1))
    shared = {
        "achieved": 0.0 if small.account is None else small.account.achieved,
        "parameters": cost.parameters,
        "kv_bytes_per_token": cost.kv_bytes_per_token,
        "flops_per_token": cost.flops_decode,
        "context": cost.context,
    }
    if asked.speed:
        dense, own = measure_speed([model, small], rounds=3, progress=progress)
        shared |= {
            "prefill_speedup": own.prefill / dense.prefill,
            "decode_speedup": own.decode / dense.decode,
        }
    rows = []
    for one in asked.evaluations:
        found = evaluate(small, one, progress=progress).to_dict()
        figures = {
            name: found[name]
            for name in ("perplexity", "nll", "bits_per_byte", "nonfinite", "protocol")
        }
        rows.append({**said, "measured_on": one.data, **shared, **figures, "error": None})
    return {"rows": rows, "recipe": None if recipe is None else recipe.to_dict()}
