"""The form: one component per recipe field, made once and placed by the sidebar and the tabs.

A browser's whole state is its values.
"""

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore

from .text import FIELDS, budget

START = lrcore.Recipe()
SOURCES = (
    "model",
    "revision",
    "dtype",
    "device",
    "offload",
    "data",
    "samples",
    "seq_len",
    "sampling",
    "seed",
)
PLANNED = (
    "ratio",
    "budget",
    "rounding",
    "multiple",
    "component_ratios",
    "overrides",
)  # what a search for a plan depends on
DEVICES = ("auto", "cpu", "cuda", "mps")
TEMPERATURES = (0.005, 2.0)


def names(rows: Any) -> list[str]:
    return [row["name"] for row in rows]


# A slider whose range follows the model. A value sent while the range was changing is no error: the
# recipe checks it anyway. It is a class because Gradio makes the component anew when the range
# changes, and ABCMeta makes it because Gradio's metaclass would write a .pyi file.
MovingRange = ABCMeta.__new__(
    type(gr.Slider),
    "MovingRange",
    (gr.Slider,),
    {"is_template": True, "preprocess": lambda self, value: value},
)


class Form:
    """`parts` in recipe order, then `rule`: whether the temperature is the policy's rule of
    thumb.
    """

    def __init__(self) -> None:
        def box(kind: type, name: str, **more: Any) -> gr.components.Component:
            label, info = FIELDS[name]
            return kind(
                label=label, info=info or None, elem_id=f"field-{name}", render=False, **more
            )

        def choice(name: str, choices: Any, free: bool = False) -> gr.Dropdown:
            return box(
                gr.Dropdown,
                name,
                choices=list(choices),
                value=getattr(START, name),
                allow_custom_value=free,
            )

        def whole(name: str) -> gr.Number:
            return box(gr.Number, name, value=getattr(START, name), precision=0)

        self.parts = {
            "model": choice("model", lrcore.DEMO_MODELS, free=True),
            "revision": box(gr.Textbox, "revision", placeholder="main"),
            "dtype": choice("dtype", ("float32", "bfloat16", "float16", "float64", "auto")),
            "device": choice("device", DEVICES, free=True),
            "offload": box(gr.Checkbox, "offload", value=START.offload),
            "data": choice("data", lrcore.DATASETS, free=True),
            "samples": whole("samples"),
            "seq_len": whole("seq_len"),
            "sampling": choice("sampling", ("random", "first")),
            "seed": whole("seed"),
            "calibration": choice("calibration", ("independent", "sequential")),
            "refit": choice("refit", ("auto", "on", "off")),
            "method": choice("method", names(lrcore.methods())),
            "policy": choice("policy", names(lrcore.policies())),
            "ratio": box(
                gr.Slider, "ratio", value=START.ratio, minimum=0.01, maximum=0.95, step=0.005
            ),
            "budget": choice("budget", [(budget(name), name) for name in lrcore.BUDGETS]),
            "temperature": box(
                MovingRange,
                "temperature",
                value=0.1,
                minimum=TEMPERATURES[0],
                maximum=TEMPERATURES[1],
                step=0.005,
            ),
            "rounding": choice("rounding", ("down", "nearest")),
            "multiple": whole("multiple"),
            "component_ratios": box(gr.Textbox, "component_ratios", placeholder="qk=0.3, mlp=0.1"),
            "options": gr.State({}),
            "policy_options": gr.State({}),
            "overrides": gr.State({}),
            "rule": box(gr.Checkbox, "rule", value=True),
        }

    def __getitem__(self, name: str) -> gr.components.Component:
        return self.parts[name]

    @property
    def all(self) -> list[gr.components.Component]:
        return list(self.parts.values())

    def recipe(self, values: Any) -> lrcore.Recipe:
        """The recipe these values say. Raises InputError with a remedy for a value out of range."""
        said = dict(zip(self.parts, values, strict=True))
        rule = said.pop("rule")
        said["revision"] = (said["revision"] or "").strip() or None
        said["model"] = str(said["model"] or "").strip()
        for name in ("samples", "seq_len", "seed", "multiple"):
            said[name] = int(said[name]) if said[name] is not None else None
        if not said["model"]:
            raise lrcore.InputError(
                "No model is named. Choose a demo model, or type a folder or a hub id."
            )
        said["component_ratios"] = read_ratios(said["component_ratios"] or "")
        if rule:
            said["temperature"] = None
        return lrcore.Recipe.from_dict(said)

    def try_recipe(self, values: Any) -> lrcore.Recipe | None:
        try:
            return self.recipe(values)
        except lrcore.InputError:
            return None

    def values(self, recipe: lrcore.Recipe) -> list[Any]:
        """What to put into the components so that they say this recipe."""
        said = recipe.to_dict() | {"rule": recipe.temperature is None}
        said["revision"] = said["revision"] or ""
        said["component_ratios"] = ", ".join(
            f"{name}={share:g}" for name, share in recipe.component_ratios.items()
        )
        said["temperature"] = said["temperature"] if said["temperature"] is not None else gr.skip()
        return [said[name] for name in self.parts]

    @staticmethod
    def analysed(recipe: lrcore.Recipe) -> lrcore.Recipe:
        """The recipe with all fields at rest that the analysis and the factors do not depend on;
        a policy only counts if it measures.
        """
        kept = {name: getattr(recipe, name) for name in (*SOURCES, "method", "options")}
        row = next(row for row in lrcore.policies() if row["name"] == recipe.policy)
        kept |= {name: getattr(recipe, name) for name in PLANNED if row["one_budget"]}
        return START.with_(
            **kept,
            policy=recipe.policy if lrcore.evidence_key(recipe) else START.policy,
        )


def read_ratios(words: str) -> dict[str, float]:
    """Component ratios as typed, "qk=0.3, mlp=0.1". Raises InputError for what is no such list."""
    try:
        pairs = [part.split("=") for part in words.split(",") if part.strip()]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise lrcore.InputError(
            f"Component ratios read 'qk=0.3, mlp=0.1'; got '{words}'."
        ) from None


def differences(said: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows [field, value of each], only for fields whose values are not all equal. said: the
    fields that each was made by.
    """
    rows = []
    for name in dict.fromkeys(name for one in said for name in one):
        values = [str(one[name]) if one.get(name) not in (None, {}) else "–" for one in said]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return rows
