"""A recipe from the command line: the flags of its fields, and reading them.

A field is a flag of the same name.
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from ..recipe import Recipe

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Demo model, folder or hub id; or in --recipe.", show_default=False
    ),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--recipe", metavar="FILE", help="Recipe (.json, .yaml); the flags given override it."
    ),
]
Data = Annotated[
    str | None, typer.Option(help="Calibration data: built-in name, file, or name:config:split.")
]
Samples = Annotated[int | None, typer.Option(help="Number of calibration windows.")]
SeqLen = Annotated[int | None, typer.Option(help="Tokens per window.")]
Sampling = Annotated[str | None, typer.Option(help="Which windows: random or first.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the random choice.")]
Calibration = Annotated[
    str | None,
    typer.Option(help="independent, or sequential: each layer sees the compressed ones before it."),
]
Refit = Annotated[
    str | None,
    typer.Option(
        help="Refit each layer on the compressed ones before it: on, off, or auto (as the method "
        "does)."
    ),
]
Method = Annotated[str | None, typer.Option(help="One of those that `methods` lists.")]
Policy = Annotated[
    str | None, typer.Option(help="How the budget is shared: one of those that `methods` lists.")
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Of policy softmax: small is uneven. Default: its rule of thumb."),
]
Ratio = Annotated[float | None, typer.Option(help="Share to remove, between 0 and 1.")]
Budget = Annotated[
    str | None,
    typer.Option(help="What the ratio counts: params (decoder linears), total, kv, or auto."),
]
Rounding = Annotated[str | None, typer.Option(help="down (never over the budget) or nearest.")]
Multiple = Annotated[
    int | None,
    typer.Option(help="Every rank is a multiple of this, such as 8 or 16, or full. Default: 1."),
]
OptionFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="A setting of the method (see `methods`); may be repeated.",
    ),
]
PolicyFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-option", metavar="NAME=VALUE", help="A setting of the policy; may be repeated."
    ),
]
RatioFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--component-ratio",
        metavar="COMPONENT=RATIO",
        help="Share to remove from one component, such as qk=0.3; may be repeated.",
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option(metavar="LAYER.COMPONENT=RANK", help="A rank set by hand; may be repeated."),
]
Bounds = Annotated[
    bool,
    typer.Option(
        "--bounds", help="Method modegpt: the error of every slot beside the bound of the paper."
    ),
]


def read_recipe(ctx: typer.Context) -> Recipe:
    """The recipe of a command: the file's fields, then the flags given, each checked, and names
    looked up before any work.
    """
    from ..methods import find_method
    from ..policies import find_policy

    names = {field.name for field in fields(Recipe)}
    file = ctx.params.get("recipe")
    base = Recipe.read(file) if file is not None else Recipe()
    given = {
        name: value for name, value in ctx.params.items() if name in names and value is not None
    }
    if file is None and "model" not in given:
        raise InputError(
            "No model. Give a demo model (demo-llama, demo-opt), a folder or a hub id, or a "
            "--recipe that names one."
        )
    readers = {
        "override": _override,
        "option": _option,
        "policy_option": _option,
        "component_ratio": _component_ratio,
    }
    said = {flag: dict(map(read, ctx.params.get(flag) or ())) for flag, read in readers.items()}
    asked = base.with_(
        **given,
        options={**base.options, **said["option"]},
        policy_options={**base.policy_options, **said["policy_option"]},
        component_ratios={**base.component_ratios, **said["component_ratio"]},
        overrides={**base.overrides, **said["override"]},
    )
    find_method(asked.method).choose(asked.options)
    find_policy(asked.policy).choose(asked.policy_options)
    return asked


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"A setting reads NAME=VALUE; got '{text}'.")
    return name.strip(), value.strip()


def _component_ratio(text: str) -> tuple[str, float]:
    component, _, share = text.partition("=")
    try:
        return component.strip(), float(share)
    except ValueError:
        raise InputError(
            f"--component-ratio reads COMPONENT=RATIO, such as qk=0.3; got '{text}'."
        ) from None


def _override(text: str) -> tuple[str, int]:
    slot, _, rank = text.partition("=")
    if not rank.strip().isdigit():
        raise InputError(f"--override reads LAYER.COMPONENT=RANK, such as 3.mlp=120; got '{text}'.")
    return slot.strip(), int(rank)
