"""Former names of recipe fields, steps, step settings and option values.

Files written under the former names load, and the command line accepts them. Cache keys and
fingerprints are still computed from the former names, so that existing entries stay valid.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..system.errors import InputError

RECIPE_FIELDS = {
    "calibration": "calibration_mode",
    "multiple": "rank_multiple",
    "overrides": "rank_overrides",
}
BUDGETS = {"total": "all_params"}
OPTION_VALUES = {"qk": {"centred": "centered"}}  # by name of a method's option
STEP_KINDS = {"shorten": "prune-layers", "quantise": "quantize"}
STEP_DEFAULTS = {"quantise": {"quantizer": "hqq"}}  # of steps under their former names
STEP_FIELDS = {
    "prune-layers": {"by": "criterion"},
    "prune-experts": {"by": "criterion"},
    "quantize": {"quantiser": "quantizer"},
    "sparsify": {"kept": "density"},
}
HISTORY_KINDS = {"shortened": "layers_pruned", "quantised": "quantized"}  # in report.json
# Former flags of each command.
FLAGS = {
    "allocate": {
        "--multiple": "--rank-multiple",
        "--override": "--rank-override",
        "--speed": "--budget=latency",
    },
    "compress": {
        "--calibration": "--calibration-mode",
        "--multiple": "--rank-multiple",
        "--override": "--rank-override",
    },
    "compare": {"--speed": "--measure-speed"},
    "export": {"--stock": "--standard"},
    "sweep": {"--speed": "--measure-speed"},
    "prune-layers": {"--by": "--criterion"},
    "prune-experts": {"--by": "--criterion"},
    "quantize": {"--quantiser": "--quantizer"},
    "sparsify": {"--kept": "--density"},
}


def current_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe under their present names, with the present values.

    Raises InputError for a field that is given under both names.
    """
    return _with_values(_renamed(values, RECIPE_FIELDS), BUDGETS, OPTION_VALUES)


def former_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe under their former names, in the same order.

    Cache keys and fingerprints are computed from them. The inverse of `current_recipe`.
    """
    options = {name: _inverse(words) for name, words in OPTION_VALUES.items()}
    return _with_values(_renamed(values, _inverse(RECIPE_FIELDS)), _inverse(BUDGETS), options)


def former_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a method as cache keys have them."""
    former: dict[str, Any] = former_recipe({"options": options})["options"]
    return former


def current_step(kind: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return kind and settings of a step of a sweep under their present names, with the defaults of
    its former name.

    A kind may have underscores in place of hyphens. Raises InputError for a field that is given
    under both names.
    """
    written = kind.replace("_", "-")
    kind = STEP_KINDS.get(written, written)
    fields = STEP_FIELDS.get(kind) or (RECIPE_FIELDS if kind == "compress" else {})
    return kind, STEP_DEFAULTS.get(written, {}) | _renamed(settings, fields)


def former_step(kind: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return kind and settings of a step as cache keys have them: the inverse of `current_step`."""
    renamed = _renamed(settings, _inverse(STEP_FIELDS.get(kind, {})))
    return _inverse(STEP_KINDS).get(kind, kind), former_recipe(renamed)


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the command line with the present names of command and flags."""
    position = next((i for i, text in enumerate(arguments) if not text.startswith("-")), None)
    if position is None:
        return list(arguments)
    command = STEP_KINDS.get(arguments[position], arguments[position])
    flags = FLAGS.get(command, {})
    after = list(arguments[position + 1 :])
    end = after.index("--") if "--" in after else len(after)
    renamed = [_renamed_flag(text, flags) for text in after[:end]]
    return [*arguments[:position], command, *renamed, *after[end:]]


def _renamed_flag(text: str, flags: Mapping[str, str]) -> str:
    name, equals, value = text.partition("=")
    return f"{flags.get(name, name)}{equals}{value}"


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = {names.get(name, name): value for name, value in values.items()}
    if len(renamed) < len(values):
        twice = next(new for old, new in names.items() if old in values and new in values)
        raise InputError(f"'{twice}' is given twice, once under its former name. Remove one.")
    return renamed


def _with_values(
    recipe: dict[str, Any],
    budgets: Mapping[str, str],
    option_values: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    if isinstance(budget := recipe.get("budget"), str):
        recipe["budget"] = budgets.get(budget, budget)
    if isinstance(options := recipe.get("options"), Mapping):
        recipe["options"] = {
            name: option_values.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in options.items()
        }
    return recipe


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}
