"""A recipe says all that a run depends on.

The page and the command line read and write the same one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from .errors import InputError, unknown

SAMPLING = ("random", "first")
CALIBRATION = ("independent", "sequential")
REFIT = ("auto", "on", "off")
BUDGETS = {
    "auto": "share of what the method shrinks: the decoder-linear parameters, or the KV cache where "
    "it only factors keys and values",
    "params": "share of the decoder-linear parameters removed",
    "total": "share of all parameters removed",
    "kv": "share of the KV cache bytes removed",
}
ROUNDING = ("down", "nearest")
MAPPINGS = {
    "component_ratios": "--component-ratio",
    "options": "--option",
    "policy_options": "--policy-option",
    "overrides": "--override",
}
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")


@dataclass(frozen=True)
class Recipe:
    """What to do, whole.

    Frozen; every field is checked when it is made; an unknown field is an error with a suggestion.

    model: demo model's name, folder, or hub id. offload: decoder layers stay on disk and are read
    one at a time, for a model larger than memory; results are the same. data: built-in name, file,
    or hub data set `name:config:split`.
    samples windows of seq_len tokens, drawn by sampling with seed. calibration: "independent"
    (every layer sees the dense model) or "sequential" (each layer sees the compressed ones before
    it).
    refit: "on" or "off": whether output and down projections are solved again on what the
    compressed layers before them give, towards the dense model's residual stream; "auto" leaves it
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
    """

    model: str = "demo-llama"
    revision: str | None = None
    dtype: str = "float32"
    device: str = "auto"
    offload: bool = False
    data: str = "stories"
    samples: int = 64
    seq_len: int = 256
    sampling: str = "random"
    seed: int = 0
    calibration: str = "independent"
    refit: str = "auto"
    method: str = "a3"
    policy: str = "uniform"
    ratio: float = 0.2
    budget: str = "auto"
    temperature: float | None = None
    rounding: str = "down"
    multiple: int = 1
    component_ratios: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    policy_options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in {
            "sampling": SAMPLING,
            "calibration": CALIBRATION,
            "refit": REFIT,
            "budget": BUDGETS,
            "rounding": ROUNDING,
            "dtype": DTYPES,
        }.items():
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        if (
            not isinstance(self.ratio, (int, float))
            or isinstance(self.ratio, bool)
            or not 0 < self.ratio < 1
        ):
            raise InputError(
                "ratio must lie strictly between 0 and 1 (the share to remove), got "
                f"{self.ratio!r}. For 20 % write 0.2."
            )
        for name, least in {"samples": 1, "seq_len": 2, "seed": 0, "multiple": 1}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(
                    f"{name} must be a whole number of at least {least}, got {value!r}."
                )
        if not isinstance(self.offload, bool):
            raise InputError(f"offload must be true or false, got {self.offload!r}.")
        if self.temperature is not None and not (
            isinstance(self.temperature, (int, float)) and self.temperature > 0
        ):
            raise InputError(
                f"temperature must be a positive number, got {self.temperature!r}. Small is "
                "uneven, large is even."
            )
        for name, share in self.component_ratios.items():
            if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share < 1:
                raise InputError(
                    f"The ratio of component {name} must lie between 0 and 1 (the share to "
                    f"remove), got {share!r}."
                )
        for name, value in [*self.options.items(), *self.policy_options.items()]:
            if not isinstance(value, (bool, int, float, str)):
                raise InputError(
                    f"Option {name} must be a word, a number or true/false; got {value!r}."
                )
        for slot, rank in self.overrides.items():
            layer, _, component = slot.partition(".")
            if not layer.isdigit() or not component or not isinstance(rank, int) or rank < 1:
                raise InputError(
                    "An override reads 'layer.component: rank', such as '3.mlp: 120'; got "
                    f"'{slot}: {rank!r}'."
                )

    def with_(self, **changes: Any) -> "Recipe":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {name: dict(getattr(self, name)) for name in MAPPINGS}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """A recipe from plain values.

        Raises InputError for an unknown field or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                f"A recipe is a mapping of fields to values; got {type(values).__name__}."
            )
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown("recipe field", str(name), known)
        return cls(**values)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """A recipe from a .json, .yaml or .yml file."""
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"No recipe file at '{path}'. Check the path; a recipe is a .json or .yaml file."
            )
        try:
            return cls.from_dict(
                yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            )  # JSON is a subset of YAML
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(
                f"'{path}' is neither JSON nor YAML: {str(error).splitlines()[0]}."
            ) from error

    def command(self, out: str = "compressed") -> str:
        """The command line that does the same."""
        import shlex

        parts = ["python -m lrcore compress", shlex.quote(self.model)]
        default = Recipe()
        shown = ("method", "policy", "ratio", "data", "samples", "seq_len", "seed")
        for f in fields(self):
            value = getattr(self, f.name)
            if (
                f.name == "model"
                or f.name in MAPPINGS
                or value is None
                or (f.name not in shown and value == getattr(default, f.name))
            ):
                continue
            flag = f"--{f.name.replace('_', '-')}"
            parts.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
        for name, flag in MAPPINGS.items():
            parts += [
                f"{flag} {shlex.quote(f'{key}={value}')}"
                for key, value in getattr(self, name).items()
            ]
        return " ".join([*parts, f"--out {shlex.quote(out)}"])
