"""The form: one component per recipe field, made once and placed by the sidebar and the tabs.

A browser's whole state is its values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore

from .components import Slider
from .events import FormData, form_data
from .field_text import BEYOND, FIELDS, NOT_POSITIVE
from .text import budget_choice, built_in_model

# What the page opens with: a policy that needs no measurement on the model and whose ranks differ
# from uniform ones.
START = lrcore.Recipe(policy="marginal")
# of the form's values, in their order; the last: whether the temperature is the policy's rule of
# thumb
NAMES = (*START.to_dict(), "rule")
MAPPINGS = ("options", "policy_options", "overrides")  # in no field: a gr.State holds each
FIELD_NAMES = tuple(name for name in NAMES if name not in MAPPINGS)
DEVICES = ("auto", "cpu", "cuda")
TEMPERATURES = (0.005, 2.0)
RATIOS = (0.01, 0.95)
LISTED = ("dtype", "sampling", "calibration", "refit", "rounding")  # as the recipe lists them
WHOLE_NUMBERS = ("samples", "seq_len", "seed", "multiple")


class Form:
    """The components of the fields, by name; none is on the page before it is rendered."""

    def __init__(self) -> None:
        made = choices() | boxes() | {name: gr.State({}) for name in MAPPINGS}
        self.parts = {name: made[name] for name in NAMES}
        fields = [self.parts[name] for name in FIELD_NAMES]
        self.collected = form_data(fields, input_values(START)[0])

    def __getitem__(self, name: str) -> gr.components.Component:
        return self.parts[name]

    @property
    def all(self) -> list[gr.components.Component]:
        """What `form_values` gives the values of."""
        return list(self.parts.values())

    @property
    def inputs(self) -> list[gr.components.Component | FormData]:
        """What a listener takes to be given what `read_recipe` reads."""
        return [self.collected, *(self.parts[name] for name in MAPPINGS)]


def choices() -> dict[str, gr.Dropdown]:
    """The fields whose value is one of a list."""
    lists = {
        "model": [(built_in_model(name), name) for name in lrcore.built_in_models()],
        "device": DEVICES,
        "data": lrcore.DATASETS,
        "method": [row["name"] for row in lrcore.methods()],
        "policy": [row["name"] for row in lrcore.policies()],
        "budget": [(budget_choice(name), name) for name in lrcore.BUDGETS],
        "target": list(lrcore.TARGETS),
    } | {name: lrcore.Recipe.choices_of(name) for name in LISTED}
    free = ("model", "device", "data")  # may be typed as well
    return {
        name: field(
            gr.Dropdown,
            name,
            choices=list(known),
            value=getattr(START, name),
            allow_custom_value=name in free,
        )
        for name, known in lists.items()
    }


def boxes() -> dict[str, gr.components.Component]:
    """The fields that are typed, ticked or slid."""
    low, high = TEMPERATURES
    least, most = RATIOS
    return {
        "revision": field(gr.Textbox, "revision", placeholder="main"),
        "offload": field(gr.Checkbox, "offload", value=START.offload),
        "ratio": field(Slider, "ratio", value=START.ratio, minimum=least, maximum=most, step=0.005),
        "temperature": field(
            Slider, "temperature", value=0.1, minimum=low, maximum=high, step=0.005
        ),
        "component_ratios": field(gr.Textbox, "component_ratios", placeholder="qk=0.3, mlp=0.1"),
        "rule": field(gr.Checkbox, "rule", value=True),
    } | {
        name: field(gr.Number, name, value=getattr(START, name), precision=0)
        for name in WHOLE_NUMBERS
    }


def field(kind: type, name: str, **more: Any) -> gr.components.Component:
    """A component with the label and the explanation of a field."""
    label, info = FIELDS[name]
    return kind(label=label, info=info or None, elem_id=f"field-{name}", render=False, **more)


def read_recipe(values: Sequence[Any]) -> lrcore.Recipe:
    """The recipe of the values of `Form.inputs`.

    Raises InputError with a remedy for a value out of range.
    """
    in_fields, *mappings = values
    fields = dict(zip((*FIELD_NAMES, *MAPPINGS), (*in_fields, *mappings), strict=True))
    ticked = fields.pop("rule")
    fields["revision"] = (fields["revision"] or "").strip() or None
    fields["model"] = str(fields["model"] or "").strip()
    for name in WHOLE_NUMBERS:
        fields[name] = round(fields[name]) if fields[name] is not None else None
    if not fields["model"]:
        raise lrcore.InputError(
            "No model is named. Choose a built-in one, or type a folder, .gguf file or hub id."
        )
    fields["component_ratios"] = read_ratios(fields["component_ratios"] or "")
    if ticked:
        fields["temperature"] = None
    return lrcore.Recipe.from_dict(fields)


def within_ranges(values: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The values of `Form.inputs` with those that the sliders show for numbers that were typed
    beyond their ranges, and a sentence that says so; "" where none was.

    The browser sends what was typed, and then shows the nearest end of the range. No temperature
    is the nearest of one that is not positive: the policy's rule of thumb takes its place.
    """
    fields, said = list(values[0]), []
    ratio, temperature, rule = (FIELD_NAMES.index(one) for one in ("ratio", "temperature", "rule"))
    least, most = RATIOS
    typed = fields[ratio]
    if typed is None or not least <= typed <= most:
        fields[ratio] = least if typed is None else min(max(typed, least), most)
        said.append(BEYOND.format(FIELDS["ratio"][0], shown(typed), least, most, fields[ratio]))
    typed = fields[temperature]
    if not fields[rule] and (typed is None or typed <= 0):
        fields[rule] = True
        said.append(NOT_POSITIVE.format(FIELDS["temperature"][0], shown(typed)))
    return [fields, *values[1:]], " ".join(said)


def without_rule(values: Sequence[Any]) -> list[Any]:
    """The values of `Form.inputs` with a temperature that is not the policy's rule of thumb."""
    fields = list(values[0])
    fields[FIELD_NAMES.index("rule")] = False
    return [fields, *values[1:]]


def follows_rule(values: Sequence[Any]) -> bool:
    """Whether the temperature in the values of `Form.inputs` is the policy's rule of thumb."""
    return bool(values[0][FIELD_NAMES.index("rule")])


def shown(typed: float | None) -> str:
    return "empty" if typed is None else f"{typed:g}"


def try_recipe(values: Sequence[Any]) -> lrcore.Recipe | None:
    """The recipe of the form's values; None where one of them is out of range."""
    try:
        return read_recipe(values)
    except lrcore.InputError:
        return None


def form_values(recipe: lrcore.Recipe) -> list[Any]:
    """What to put into `Form.all` for a recipe; a temperature that it leaves to the policy stays
    where it is.
    """
    fields = by_name(recipe)
    if fields["temperature"] is None:
        fields["temperature"] = gr.skip()
    return [fields[name] for name in NAMES]


def input_values(recipe: lrcore.Recipe) -> list[Any]:
    """The values of `Form.inputs` for a recipe: the inverse of `read_recipe`."""
    fields = by_name(recipe)
    return [[fields[name] for name in FIELD_NAMES], *(fields[name] for name in MAPPINGS)]


def by_name(recipe: lrcore.Recipe) -> dict[str, Any]:
    """The values of the form for a recipe, by NAMES."""
    fields = recipe.to_dict() | {"rule": recipe.temperature is None}
    fields["revision"] = fields["revision"] or ""
    fields["component_ratios"] = ", ".join(
        f"{name}={share:g}" for name, share in recipe.component_ratios.items()
    )
    return fields


def read_ratios(typed: str) -> dict[str, float]:
    """Component ratios as typed, "qk=0.3, mlp=0.1". Raises InputError for what is no such list."""
    try:
        pairs = [part.split("=") for part in typed.split(",") if part.strip()]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise lrcore.InputError(
            f"Component ratios read 'qk=0.3, mlp=0.1'; got '{typed[:80]}'."
        ) from None


def differences(fields: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows [field, value of each], only for fields whose values are not all equal.

    fields: what each run was made by.
    """
    rows = []
    for name in dict.fromkeys(name for one in fields for name in one):
        values = [str(one[name]) if one.get(name) not in (None, {}) else "–" for one in fields]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return rows
