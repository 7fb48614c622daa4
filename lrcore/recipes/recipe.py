"""Recipes: all settings of a compression.

The page, the command line and Python read and write the same recipe files.
"""

import math
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from ..system.as_json import json_text
from ..system.cache import text_name
from ..system.errors import SHOWN, InputError, check_tokens_held, quoted, shown, unknown
from ..system.settings import BOS, DATA_HINT, check_settings, setting, settings_of
from . import former_names, targets

SAMPLING = ("random", "first")
CALIBRATION_MODES = ("independent", "sequential")
TRAINED, DISTILLED = "trained", "distilled"
REFIT = ("auto", "on", "off", TRAINED, DISTILLED)
BUDGETS = {
    "auto": "share of the decoder-linear parameters removed, or of the KV cache bytes for methods "
    "on keys and values only",
    "params": "share of the decoder-linear parameters removed",
    "all_params": "share of all parameters removed",
    "kv": "share of the KV cache bytes removed",
    "both": "share of the decoder-linear parameters removed, and of the KV cache bytes as well",
    "flops": "share of the FLOPs per token removed, with a window of tokens in the cache",
    "latency": "share of the measured time of the decoder layers removed",
    "bytes": "share of the bytes of the model removed, by ranks and by rounding to 8, 4, 3 or 2 "
    "bits",
}
ROUNDING = ("down", "nearest")
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
# "layer.component" without leading zeros, so that each slot has a single name.
_SLOT = re.compile(r"(0|[1-9][0-9]{0,5})\.[\w.-]+", re.ASCII)
TEXT_FIELD = "text_field"  # of the data, in files and on the command line
MAX_BYTES = 2**20  # of a recipe file
# Exceptions of yaml.load for invalid YAML and for values that do not match their tags.
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
    """All settings of a compression. Frozen; the constructor checks the values.

    model: name of a built-in model, folder, .gguf file, or hub id. offload: keep decoder layers on
    disk and read a single layer at a time, for models larger than memory; results are the same.
    data: built-in name, file, or hub data set `name:config:split`; `samples` windows of `seq_len`
    tokens, selected by `sampling` with `seed`. bos: "auto" and "always" put the
    beginning-of-text token before each window, whose last token it replaces.

    calibration_mode: "independent" (all layers are calibrated on the dense model) or "sequential"
    (each layer is calibrated on the compressed layers before it). refit: "on" solves the
    projections again on the outputs of the compressed layers before them, with the outputs of the
    dense model as the target; "trained" then trains all numbers of each layer
    (lrcore/compression/solve/trained_layer.py); "distilled" instead trains all layers together,
    afterwards, towards the predictions of the dense model (lrcore/compression/solve/distill.py);
    "auto" is the method's default: on for fused, and with policy probed, followed by a distillation
    of fewer steps.

    ratio: in (0, 1), share to remove of the quantity that `budget` names. temperature: > 0, of
    policy softmax; None for automatic. rounding: "down" never exceeds the budget; "nearest" rounds
    each slot to its nearest rank, as in published tables, and can exceed it. rank_multiple: ranks
    are multiples of it, or full; 8 or 16 suit the matrix units of GPUs.

    options, policy_options: options of the method and of the policy, {name: value}; other options
    have their defaults. component_ratios: {component: ratio in [0, 1)}, shares to remove from
    components over all layers; the other components compensate to reach `ratio`, unless all
    components are named. rank_overrides: ranks set manually, {"layer.component": rank}.

    target: software that will run the model, see lrcore/recipes/targets.py; the plan uses only
    structures that the target runs natively.

    The metadata of the fields (see `lrcore.system.settings`) defines the flags of the command line.
    Raises InputError for an invalid value.
    """

    model: str = setting(
        "demo-llama",
        "Built-in model, folder, .gguf file or hub id; optional with --recipe.",
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
        False, "Keep the layers on disk, with a single layer in memory.", group="source"
    )
    data: str = setting(
        "stories",
        "Calibration data: built-in name, file, or name:config:split.",
        group="windows",
    )
    samples: int = setting(64, "Number of calibration windows.", low=1, group="windows")
    seq_len: int = setting(256, "Tokens per window.", low=2, group="windows")
    sampling: str = setting("random", "Selection of windows: {choices}.", SAMPLING, group="windows")
    seed: int = setting(0, "Seed of random sampling.", low=0, group="windows")
    bos: str = setting(
        "never",
        "Beginning-of-text token at the start of each window: {choices}; auto: as the tokenizer "
        "does.",
        BOS,
        group="windows",
    )
    calibration_mode: str = setting(
        "independent",
        "independent, or sequential: calibrate each layer on the compressed layers before it.",
        CALIBRATION_MODES,
        group="passes",
    )
    refit: str = setting(
        "auto",
        "Refit each layer on the compressed layers before it: on, off, trained (then train the "
        "layer), distilled (train all layers together at the end), or auto (the method's default; "
        "fused with measured ranks is distilled briefly).",
        REFIT,
        group="passes",
    )
    method: str = setting("a3", "Compression method; `methods` lists all.", group="methods")
    policy: str = setting("uniform", "Allocation policy; `methods` lists all.", group="methods")
    ratio: float = setting(0.2, "Share to remove, between 0 and 1.", group="plan")
    budget: str = setting(
        "auto",
        "What the ratio counts: params (of the decoder), all_params, kv, both (params "
        "and kv), flops, latency, bytes (also by rounding), or auto.",
        BUDGETS,
        group="plan",
    )
    temperature: float | None = setting(
        None,
        "Of policy softmax; low values give uneven ranks. Default: automatic.",
        group="methods",
    )
    rounding: str = setting(
        "down", "down (never exceeds the budget) or nearest.", ROUNDING, group="plan"
    )
    rank_multiple: int = setting(
        1, "Ranks are multiples of this, such as 8 or 16, or full.", low=1, group="plan"
    )
    component_ratios: Mapping[str, float] = setting(
        dict,
        "Share to remove from a component, such as qk=0.3; repeatable.",
        group="plan",
        flag="component-ratio",
        metavar="COMPONENT=RATIO",
    )
    options: Mapping[str, bool | int | float | str] = setting(
        dict,
        "Option of the method; `methods` lists all options with their defaults. Repeatable.",
        group="methods",
        flag="option",
        metavar="NAME=VALUE",
    )
    policy_options: Mapping[str, bool | int | float | str] = setting(
        dict,
        "Option of the policy; `methods` lists all options with their defaults. Repeatable.",
        group="methods",
        flag="policy-option",
        metavar="NAME=VALUE",
    )
    rank_overrides: Mapping[str, int] = setting(
        dict,
        "A rank set manually; repeatable.",
        group="plan",
        flag="rank-override",
        metavar="LAYER.COMPONENT=RANK",
    )
    target: str = setting(
        targets.DEFAULT,
        "Software that will run the model; ranks are limited to structures that it runs natively: "
        "{choices}.",
        targets.NAMES,
        group="plan",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", text_name(self.data))
        if isinstance(self.refit, bool):  # YAML reads on and off as true and false
            object.__setattr__(self, "refit", "on" if self.refit else "off")
        chosen = {"budget": self.budget, "options": self.options}
        for name, value in former_names.current_recipe(chosen).items():
            object.__setattr__(self, name, value)
        self._check_numbers()
        check_settings(self)
        check_tokens_held(self.samples, self.seq_len)
        self._check_mappings()

    def _check_numbers(self) -> None:
        ratio, number = self.ratio, isinstance(self.ratio, (int, float))
        if not number or isinstance(ratio, bool) or not 0 < ratio < 1:
            raise InputError(
                "ratio must lie strictly between 0 and 1 (the share to remove), got "
                f"{shown(ratio)}. For 20 % enter 0.2."
            )
        if self.temperature is not None and not (
            isinstance(self.temperature, (int, float))
            and not isinstance(self.temperature, bool)
            and 0 < self.temperature < math.inf
        ):
            raise InputError(
                f"temperature must be a positive number, got {shown(self.temperature)}. Low "
                "values give uneven ranks, high values nearly uniform ranks."
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
        for slot, rank in self.rank_overrides.items():
            if not _SLOT.fullmatch(str(slot)) or type(rank) is not int or rank < 1:
                raise InputError(
                    f"{quoted(str(slot))}: {shown(rank)} is not a valid rank override. Enter "
                    "'layer.component: rank', such as '3.mlp: 120'."
                )

    def with_(self, **changes: Any) -> "Recipe":
        """Return a copy with other values of some fields.

        Raises InputError for an invalid value.
        """
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by field, for `from_dict`."""
        return vars(self) | {name: dict(getattr(self, name)) for name in MAPPINGS}

    def identity(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the values that cache keys and fingerprints are computed from.

        Fields have their former names, and defaults of later fields (target, bos) are omitted, so
        that existing keys stay valid. names: fields to include; None for all.
        """
        values = self.to_dict()
        for name, default in (("target", targets.DEFAULT), ("bos", BOS[0])):
            if values[name] == default:
                del values[name]
        if names is not None:
            values = {name: value for name, value in values.items() if name in names}
        return former_names.former_recipe(values)

    @property
    def trains(self) -> bool:
        """Whether numbers are trained after the refit."""
        return self.trains_layers or self.distills

    @property
    def trains_layers(self) -> bool:
        """Whether each layer is trained after its refit."""
        return self.refit == TRAINED

    @property
    def distills(self) -> bool:
        """Whether all layers are trained together towards the dense model's predictions."""
        return self.refit == DISTILLED

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json_text(self.to_dict(), indent=2)

    @classmethod
    def fields_of(cls, *groups: str) -> tuple[str, ...]:
        """Return the fields of some groups: "source" (model), "windows" (calibration text),
        "passes", "methods" (with policy and options), "plan" (budget and ranks).
        """
        return tuple(name for name, entry in settings_of(cls).items() if entry.group in groups)

    @classmethod
    def choices_of(cls, name: str) -> tuple[str, ...]:
        """Return the valid values of a field with a fixed set of values, else ()."""
        return settings_of(cls)[name].choices

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Return the recipe of plain values; former names of fields are accepted.

        `text_field`, the field with the texts of `data`, becomes part of the name: "NAME#FIELD".
        Raises InputError for an unknown field or an invalid value.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A recipe is a mapping of fields to values; got {type(values).__name__}."
            )
        values = with_named_field(former_names.current_recipe(values))
        for name in values:
            if name not in cls.__dataclass_fields__:
                raise unknown("recipe field", str(name), cls.__dataclass_fields__)
        if not isinstance(data := values.get("data", ""), str):  # files contain names only
            raise InputError(f"data must be text, got {shown(data)}.{DATA_HINT}")
        return cls(**values)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """Read a recipe from a .json, .yaml or .yml file.

        Raises InputError for a missing file or an invalid recipe.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"No recipe file at '{path}'. Check the path; a recipe is a .json or .yaml file."
            )
        return cls.from_dict(read_values(path))

    def command(self, out: str = "compressed") -> str:
        """Return the equivalent command line."""
        parts = ["python -m lrcore compress", shlex.quote(self.model)]
        # fields that the command names even if they have their defaults
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


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that raises ConstructorError for duplicate keys and for huge integers.

    PyYAML would silently use the last of duplicate keys. An integer beyond the range of floats
    would raise OverflowError in later computations. A number with an exponent needs no point, as in
    JSON, and is an integer if it is whole, so that 1e3 is valid for every number.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return the integer of a node. Raises ConstructorError for hundreds of digits."""
        number: int = super().construct_yaml_int(node)
        if abs(number) > sys.float_info.max:
            raise yaml.constructor.ConstructorError(problem="a number in it has too many digits")
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Return the number of a node, an integer for a whole number with an exponent."""
        number: float = super().construct_yaml_float(node)
        return int(number) if "e" in node.value.lower() and number.is_integer() else number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node. Raises ConstructorError for a duplicate key."""
        keys = [key.value for key, _ in node.value]
        duplicate = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if isinstance(duplicate, str):
            raise yaml.constructor.ConstructorError(problem=f"'{duplicate}' occurs twice")
        return super().construct_mapping(node, deep)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.construct_yaml_float)
# A number such as 1e-1 in YAML 1.2; PyYAML follows YAML 1.1, which calls it a text.
_EXPONENT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def with_named_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a file in which `text_field` is part of the name in `data`, "NAME#FIELD".

    Raises InputError for a text field without data, and if `data` has no fields or names one.
    """
    if values.get(TEXT_FIELD) is None:
        return {name: value for name, value in values.items() if name != TEXT_FIELD}
    from ..data import with_text_field

    named = {"data": with_text_field(values.get("data"), values[TEXT_FIELD])}
    return {name: value for name, value in {**values, **named}.items() if name != TEXT_FIELD}


def read_values(path: Path) -> Any:
    """Return the plain values of a YAML or JSON file, without keys that begin with "x-".

    Such keys hold YAML anchors. Raises InputError for an invalid, empty or too large file.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"'{path}' has more than 1 MB, the limit for recipes. Check the path.")
        values = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read: {error.strerror or error}. Check that it is a readable file."
        ) from error
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise InputError(f"'{path}' is neither JSON nor YAML: {reason}.") from error
    if values is None:
        raise InputError(f"'{path}' is empty. Check that the copy is complete.")
    if isinstance(values, dict):
        return {name: value for name, value in values.items() if not str(name).startswith("x-")}
    return values


# Flags of the mappings among the fields; other flags are the names of their fields.
MAPPINGS = {name: f"--{entry.flag}" for name, entry in settings_of(Recipe).items() if entry.flag}
