"""A recipe: the settings that a compressed model depends on.

The page and the command line read and write the same one.
"""

import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from . import targets
from .as_json import json_text
from .errors import SHOWN, InputError, check_tokens_held, quoted, shown, unknown
from .settings import IN_MEMORY, check_settings, setting, settings_of
from .texts import named

SAMPLING = ("random", "first")
CALIBRATION = ("independent", "sequential")
TRAINED = "trained"
REFIT = ("auto", "on", "off", TRAINED)
BUDGETS = {
    "auto": "share of what the method shrinks: the decoder-linear parameters, or the KV cache "
    "where it only factors keys and values",
    "params": "share of the decoder-linear parameters removed",
    "total": "share of all parameters removed",
    "kv": "share of the KV cache bytes removed",
    "flops": "share of the FLOPs of one token removed, with a window of tokens in the cache",
    "latency": "share of the measured time of the decoder layers removed",
}
ROUNDING = ("down", "nearest")
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_SLOT = re.compile(r"(0|[1-9][0-9]{0,5})\.[\w.-]+", re.ASCII)  # of an override; each has one name
LARGEST = 2**20  # bytes of a recipe's file
# What a file leads to that is no YAML, or whose values are not of the types that it says.
UNREADABLE = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True)
class Recipe:
    """The settings of one compression.

    Frozen; every field is checked when it is made; an unknown field is an error with a suggestion.

    model: demo model's name, folder, or hub id. offload: decoder layers stay on disk and are read
    one at a time, for a model larger than memory; results are the same. data: built-in name, file,
    or hub data set `name:config:split`.
    samples windows of seq_len tokens, drawn by sampling with seed. calibration: "independent"
    (every layer sees the dense model) or "sequential" (each layer sees the compressed ones before
    it).
    refit: "on" or "off": whether the projections are solved again on what the compressed layers
    before them give, towards what they give in the dense model; "trained": that, and then the MLP
    of every layer is trained towards the same (lrcore/compression/trained_mlp.py); "auto" leaves it
    to the method (on for fused).
    ratio in (0, 1): the share removed of what `budget` names. temperature > 0 (policy softmax;
    None: its rule of thumb).
    rounding: "down" never exceeds the budget; "nearest" rounds each slot to its nearest rank, as
    published tables do, and may exceed it. multiple: every rank is a multiple of it, or full; 8 or
    16 suit the matrix units of graphics cards.
    options: settings of the method, {name: value}; what is not named has the method's default.
    policy_options: those of the policy. component_ratios: the share removed from a component over
    all layers, {component: ratio in [0, 1)}, in what `budget` counts; the others meet the overall
    ratio. Where every component is named, the overall ratio follows.
    overrides: ranks set by hand, {"layer.component": rank}.
    target: what will run the model, see lrcore/targets.py; the plan then has only what that runs
    natively.

    The metadata of a field (see `lrcore.settings`) make its flag on the command line. Raises
    InputError for a value out of range.
    """

    model: str = setting(
        "demo-llama",
        "Built-in model, folder, .gguf file or hub id; or in --recipe.",
        group="source",
    )
    revision: str | None = setting(None, "Branch, tag or commit of a hub model.", group="source")
    dtype: str = setting(
        "float32",
        "float32, bfloat16, float16, float64, or auto (as stored).",
        DTYPES,
        group="source",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps.", group="source")
    offload: bool = setting(
        False, "Keep the layers on disk, one in memory at a time.", group="source"
    )
    data: str = setting(
        "stories",
        "Calibration data: built-in name, file, or name:config:split.",
        group="windows",
    )
    samples: int = setting(64, "Number of calibration windows.", low=1, group="windows")
    seq_len: int = setting(256, "Tokens per window.", low=2, group="windows")
    sampling: str = setting("random", "Which windows: {choices}.", SAMPLING, group="windows")
    seed: int = setting(0, "Seed of the random choice.", low=0, group="windows")
    calibration: str = setting(
        "independent",
        "independent, or sequential: each layer sees the compressed ones before it.",
        CALIBRATION,
        group="passes",
    )
    refit: str = setting(
        "auto",
        "Refit each layer on the compressed ones before it: on, off, trained (and then train its "
        "MLP on them), or auto (as the method does).",
        REFIT,
        group="passes",
    )
    method: str = setting("a3", "One of those that `methods` lists.", group="methods")
    policy: str = setting(
        "uniform", "How the budget is shared: one of those that `methods` lists.", group="methods"
    )
    ratio: float = setting(0.2, "Share to remove, between 0 and 1.", group="plan")
    budget: str = setting(
        "auto",
        "What the ratio counts: params (decoder linears), total, kv, or auto.",
        BUDGETS,
        group="plan",
    )
    temperature: float | None = setting(
        None,
        "Of policy softmax: small is uneven. Default: its rule of thumb.",
        group="methods",
    )
    rounding: str = setting(
        "down", "down (never over the budget) or nearest.", ROUNDING, group="plan"
    )
    multiple: int = setting(
        1, "Every rank is a multiple of this, such as 8 or 16, or full.", low=1, group="plan"
    )
    component_ratios: Mapping[str, float] = setting(
        dict,
        "Share to remove from one component, such as qk=0.3; may be repeated.",
        group="plan",
        flag="component-ratio",
        metavar="COMPONENT=RATIO",
    )
    options: Mapping[str, bool | int | float | str] = setting(
        dict,
        "An option of the method; `methods` lists them with their defaults. May be repeated.",
        group="methods",
        flag="option",
        metavar="NAME=VALUE",
    )
    policy_options: Mapping[str, bool | int | float | str] = setting(
        dict,
        "An option of the policy; `methods` lists them with their defaults. May be repeated.",
        group="methods",
        flag="policy-option",
        metavar="NAME=VALUE",
    )
    overrides: Mapping[str, int] = setting(
        dict,
        "A rank set by hand; may be repeated.",
        group="plan",
        flag="override",
        metavar="LAYER.COMPONENT=RANK",
    )
    target: str = setting(
        targets.DEFAULT,
        "What will run the model; ranks are only of what that runs natively: {choices}.",
        targets.NAMES,
        group="plan",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", named(self.data))
        self._check_numbers()
        check_settings(self)
        check_tokens_held(self.samples, self.seq_len)
        self._check_mappings()

    def _check_numbers(self) -> None:
        ratio, number = self.ratio, isinstance(self.ratio, (int, float))
        if not number or isinstance(ratio, bool) or not 0 < ratio < 1:
            raise InputError(
                "ratio must lie strictly between 0 and 1 (the share to remove), got "
                f"{shown(ratio)}. For 20 % write 0.2."
            )
        if self.temperature is not None and not (
            isinstance(self.temperature, (int, float))
            and not isinstance(self.temperature, bool)
            and 0 < self.temperature < math.inf
        ):
            raise InputError(
                f"temperature must be a positive number, got {shown(self.temperature)}. Small is "
                "uneven, large is even."
            )

    def _check_mappings(self) -> None:
        for name, share in self.component_ratios.items():
            if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share < 1:
                raise InputError(
                    f"The ratio of component {str(name)[:SHOWN]} must lie between 0 and 1 (the "
                    f"share to remove), got {shown(share)}."
                )
        for name, value in [*self.options.items(), *self.policy_options.items()]:
            if not isinstance(value, (bool, int, float, str)):
                raise InputError(
                    f"Option {str(name)[:SHOWN]} must be a string, a number or true/false; got "
                    f"{shown(value)}."
                )
        for slot, rank in self.overrides.items():
            if not _SLOT.fullmatch(str(slot)) or type(rank) is not int or rank < 1:
                raise InputError(
                    "An override reads 'layer.component: rank', such as '3.mlp: 120'; got "
                    f"{quoted(str(slot))}: {shown(rank)}."
                )

    def with_(self, **changes: Any) -> "Recipe":
        """A copy with some fields changed, checked again.

        Raises InputError for a value out of range.
        """
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        return vars(self) | {name: dict(getattr(self, name)) for name in MAPPINGS}

    def identity(self) -> dict[str, Any]:
        """The same without a target that is the default: what keys are made of, so that those of
        runs from before there were targets stay.
        """
        values = self.to_dict()
        if self.target == targets.DEFAULT:
            del values["target"]
        return values

    @property
    def trains(self) -> bool:
        """Whether the refit trains the MLPs as well."""
        return self.refit == TRAINED

    def to_json(self) -> str:
        """The same as JSON text."""
        return json_text(self.to_dict(), indent=2)

    @classmethod
    def fields_of(cls, *groups: str) -> tuple[str, ...]:
        """The names of the fields of some groups, in their order: "source" (the model), "windows"
        (the calibration text), "passes", "methods" (with policy and options), "plan" (the budget
        and its ranks).
        """
        return tuple(name for name, one in settings_of(cls).items() if one.group in groups)

    @classmethod
    def choices_of(cls, name: str) -> tuple[str, ...]:
        """The values that a field takes; none where these are no short list."""
        return settings_of(cls)[name].choices

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """A recipe from plain values.

        Raises InputError for an unknown field or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A recipe is a mapping of fields to values; got {type(values).__name__}."
            )
        for name in values:
            if name not in cls.__dataclass_fields__:
                raise unknown("recipe field", str(name), cls.__dataclass_fields__)
        if not isinstance(data := values.get("data", ""), str):  # a file names its text
            raise InputError(f"data must be text, got {shown(data)}.{IN_MEMORY}")
        return cls(**values)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """A recipe from a .json, .yaml or .yml file.

        Raises InputError where there is none, or it holds no recipe.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"No recipe file at '{path}'. Check the path; a recipe is a .json or .yaml file."
            )
        return cls.from_dict(read_values(path))

    def command(self, out: str = "compressed") -> str:
        """The command line that does the same."""
        parts = ["python -m lrcore compress", shlex.quote(self.model)]
        always = ("method", "policy", "ratio", "data", "samples", "seq_len", "seed")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "model" or f.name in MAPPINGS or value is None:
                continue
            if f.name in always or value != f.default:
                flag = f"--{f.name.replace('_', '-')}"
                parts.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
        for name, flag in MAPPINGS.items():
            pairs = getattr(self, name).items()
            parts += [f"{flag} {shlex.quote(f'{key}={value}')}" for key, value in pairs]
        return " ".join([*parts, f"--out {shlex.quote(out)}"])


class _OnceEach(yaml.SafeLoader):
    """YAML in which no field stands twice: the second would silently replace the first. Whole
    numbers are those that a float can hold.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """The number of a node. Raises ConstructorError for one of hundreds of digits."""
        number: int = super().construct_yaml_int(node)
        if abs(number) > sys.float_info.max:
            raise yaml.constructor.ConstructorError(problem="a number in it has too many digits")
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. Raises ConstructorError for a key that stands twice."""
        keys = [key.value for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if isinstance(twice, str):
            raise yaml.constructor.ConstructorError(problem=f"'{twice}' stands in it twice")
        return super().construct_mapping(node, deep)


_OnceEach.add_constructor("tag:yaml.org,2002:int", _OnceEach.construct_yaml_int)


def read_values(path: Path) -> Any:
    """The plain values in a YAML file; JSON is a subset. Raises InputError where it is neither, or
    empty.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"'{path}' has more than 1 MB, and no recipe has. Check the path.")
        values = yaml.load(path.read_text(encoding="utf-8"), _OnceEach)
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read: {error.strerror or error}. Check that it is a file that you "
            "may read."
        ) from error
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise InputError(f"'{path}' is neither JSON nor YAML: {reason}.") from error
    if values is None:
        raise InputError(f"'{path}' is empty: it names no field. Check that it was copied whole.")
    return values


MAPPINGS = {name: f"--{one.flag}" for name, one in settings_of(Recipe).items() if one.flag}
