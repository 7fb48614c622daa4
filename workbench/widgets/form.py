"""The form: one component per recipe field, made once and placed by the sidebar and the tabs.

Its values are all settings of a page; they are in the browser, not on the server.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.data import DATASETS
from lrcore.models.load import built_in_models
from lrcore.ranks.policies import POLICIES
from lrcore.recipes.recipe import BUDGETS
from lrcore.recipes.targets import TARGETS

from .. import words
from .events import FormData, form_data

START = lrcore.Recipe()  # of a new page: the defaults of the command line and of `/allocate`
# Names of the form's values, in order. "rule": the policy chooses the temperature.
NAMES = (*START.to_dict(), "rule")
MAPPINGS = ("options", "policy_options", "rank_overrides")  # each in a gr.State
FIELD_NAMES = tuple(name for name in NAMES if name not in MAPPINGS)
DEVICES = ("auto", "cpu", "cuda")
TEMPERATURES = (0.005, 2.0)
RATIOS = (0.005, 0.995)  # a recipe allows all ratios between 0 and 1
LISTED = ("dtype", "sampling", "bos", "calibration_mode", "refit", "rounding")  # see `choices_of`
WHOLE_NUMBERS = ("samples", "seq_len", "seed", "rank_multiple")


class Form:
    """The components of the fields, by name. They appear on the page when they are rendered."""

    def __init__(self) -> None:
        components = (
            choices() | inputs_without_choices() | {name: gr.State({}) for name in MAPPINGS}
        )
        self.parts = {name: components[name] for name in NAMES}
        fields = [self.parts[name] for name in FIELD_NAMES]
        self.collected = form_data("form-fields", fields, input_values(START)[0])

    def __getitem__(self, name: str) -> gr.components.Component:
        return self.parts[name]

    @property
    def all(self) -> list[gr.components.Component]:
        """The components of the values that `form_values` returns."""
        return list(self.parts.values())

    @property
    def inputs(self) -> list[gr.components.Component | FormData]:
        """The inputs of a handler that calls `read_recipe`; attach it with `listen`."""
        return [self.collected, *(self.parts[name] for name in MAPPINGS)]


def choices() -> dict[str, gr.Dropdown]:
    """Return the fields with a list of choices."""
    lists = {
        "model": [(words.spectra.built_in_model(name), name) for name in built_in_models()],
        "device": DEVICES,
        "data": DATASETS,
        "method": words.pickers.summaries("method"),
        "policy": words.pickers.summaries("policy"),
        "budget": [(words.allocation.budget_choice(name), name) for name in BUDGETS],
        "target": list(TARGETS),
    } | {name: lrcore.Recipe.choices_of(name) for name in LISTED}
    editable = ("model", "device", "data")
    return {
        name: field(
            gr.Dropdown,
            name,
            choices=list(values),
            value=getattr(START, name),
            allow_custom_value=name in editable,
        )
        for name, values in lists.items()
    }


def inputs_without_choices() -> dict[str, gr.components.Component]:
    """Return the text boxes, check boxes, number boxes and sliders."""
    (low, high), (lowest, highest) = TEMPERATURES, RATIOS
    return {
        "revision": field(gr.Textbox, "revision", placeholder="main"),
        "offload": field(gr.Checkbox, "offload", value=START.offload),
        "ratio": field(
            gr.Slider, "ratio", value=START.ratio, minimum=lowest, maximum=highest, step=0.005
        ),
        "temperature": field(
            gr.Slider, "temperature", value=0.1, minimum=low, maximum=high, step=0.005
        ),
        "component_ratios": field(gr.Textbox, "component_ratios", placeholder="qk=0.3, mlp=0.1"),
        "rule": field(gr.Checkbox, "rule", value=True),
    } | {
        name: field(gr.Number, name, value=getattr(START, name), precision=0)
        for name in WHOLE_NUMBERS
    }


def field(kind: type, name: str, **settings: Any) -> gr.components.Component:
    """Return a component with the label and the explanation of a field."""
    label, info = words.allocation.FIELDS[name]
    return kind(label=label, info=info or None, elem_id=f"field-{name}", render=False, **settings)


def read_recipe(values: Sequence[Any]) -> lrcore.Recipe:
    """Return the recipe of the values of `Form.inputs`.

    It has no temperature if the policy has none: the hidden slider keeps that of another policy.
    Raises InputError for a value out of range.
    """
    in_fields, *mappings = values
    fields = dict(zip((*FIELD_NAMES, *MAPPINGS), (*in_fields, *mappings), strict=True))
    is_automatic = fields.pop("rule")
    fields["revision"] = (fields["revision"] or "").strip() or None
    fields["model"] = str(fields["model"] or "").strip()
    for name in WHOLE_NUMBERS:
        fields[name] = round(fields[name]) if fields[name] is not None else None
    if not fields["model"]:
        raise lrcore.InputError(
            "No model name given. Choose a built-in model, or type a folder, .gguf file or hub id."
        )
    fields["component_ratios"] = read_ratios(fields["component_ratios"] or "")
    policy = POLICIES.get(fields["policy"])
    if is_automatic or (policy is not None and not policy.has_temperature):
        fields["temperature"] = None
    return lrcore.Recipe.from_dict(fields)


def within_ranges(values: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """Return the values of `Form.inputs` within the ranges of the sliders, and a message if a value
    was changed.

    The browser sends the typed number and shows the nearest end of the range. A temperature that is
    not positive is replaced by the automatic one.
    """
    fields, messages = list(values[0]), []
    ratio, temperature, rule = map(FIELD_NAMES.index, ("ratio", "temperature", "rule"))
    fields[ratio], message = ratio_within_range(fields[ratio])
    messages += [message] if message else []
    typed = fields[temperature]
    if not fields[rule] and (typed is None or typed <= 0):
        fields[rule] = True
        messages.append(
            words.allocation.NOT_POSITIVE.format(
                words.allocation.FIELDS["temperature"][0], quoted(typed)
            )
        )
    return [fields, *values[1:]], " ".join(messages)


def ratio_within_range(ratio: float | None) -> tuple[float, str]:
    """Return the nearest ratio that the slider can show, and a message if it differs."""
    lowest, highest = RATIOS
    if ratio is not None and lowest <= ratio <= highest:
        return ratio, ""
    nearest = lowest if ratio is None else min(max(ratio, lowest), highest)
    label = words.allocation.FIELDS["ratio"][0]
    message = words.allocation.OUT_OF_RANGE.format(label, quoted(ratio), *RATIOS, nearest)
    return nearest, message


def without_rule(values: Sequence[Any]) -> list[Any]:
    """Return the values of `Form.inputs` with the slider's temperature, not the automatic one."""
    fields = list(values[0])
    fields[FIELD_NAMES.index("rule")] = False
    return [fields, *values[1:]]


def follows_rule(values: Sequence[Any]) -> bool:
    """Return True if the values of `Form.inputs` have the automatic temperature."""
    return bool(values[0][FIELD_NAMES.index("rule")])


def quoted(typed: float | None) -> str:
    return "empty" if typed is None else f"{typed:g}"


def try_recipe(values: Sequence[Any]) -> lrcore.Recipe | None:
    """Return the recipe of the form's values; None if a value is out of range."""
    try:
        return read_recipe(values)
    except lrcore.InputError:
        return None


def form_values(recipe: lrcore.Recipe) -> list[Any]:
    """Return the values of `Form.all` for a recipe.

    If the temperature is automatic, the slider stays where it is.
    """
    fields = by_name(recipe)
    if fields["temperature"] is None:
        fields["temperature"] = gr.skip()
    return [fields[name] for name in NAMES]


def input_values(recipe: lrcore.Recipe) -> list[Any]:
    """Return the values of `Form.inputs` for a recipe: the inverse of `read_recipe`."""
    fields = by_name(recipe)
    return [[fields[name] for name in FIELD_NAMES], *(fields[name] for name in MAPPINGS)]


def by_name(recipe: lrcore.Recipe) -> dict[str, Any]:
    """Return the values of the form for a recipe, by `NAMES`."""
    fields = recipe.to_dict() | {"rule": recipe.temperature is None}
    fields["revision"] = fields["revision"] or ""
    fields["component_ratios"] = ", ".join(
        f"{name}={share}" for name, share in recipe.component_ratios.items()
    )
    return fields


def read_ratios(typed: str) -> dict[str, float]:
    """Return component ratios from text such as "qk=0.3, mlp=0.1".

    Raises InputError for other text.
    """
    try:
        pairs = [part.split("=") for part in typed.split(",") if part.strip()]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise lrcore.InputError(
            f"'{typed[:80]}' is not a list of ratios; enter, for example, 'qk=0.3, mlp=0.1'."
        ) from None


def differences(fields: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return rows [field, value of each run] of the fields whose values differ.

    fields: of the recipe of each run.
    """
    rows = []
    for name in dict.fromkeys(name for recipe in fields for name in recipe):
        values = [str(r[name]) if r.get(name) not in (None, {}) else "–" for r in fields]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return rows
