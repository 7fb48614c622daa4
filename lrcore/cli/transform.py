"""Commands that apply a step to a model: pruning of layers and experts, slicing, basis sharing,
quantization, sparsity and healing.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..compression.steps.step_settings import (
    ExpertPruning,
    Healing,
    LayerPruning,
    Quantizing,
    Sharing,
    Slicing,
    Sparsifying,
)
from ..models.hub import locate_local
from ..recipes.recipe import Recipe
from .arguments import AsJson, FolderOrRun, Loading, Model
from .console import progress, show
from .flags import flags
from .reports import step_report

app = typer.Typer()

# Fields of a recipe that select the calibration text, the flags of steps that read a text.
TEXT = ("data", "samples", "seq_len", "seed")

Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the new model.")]


@app.command()
@flags(recipe=TEXT, loading=("revision", "dtype", "device"))
def prune_layers(
    model: Model,
    out: Out,
    pruning: LayerPruning,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Remove decoder layers.

    The result is a dense model for `compress`, `evaluate` and `export --standard`.
    """
    _check(out, model, loading.revision)
    import lrcore

    recipe = recipe.with_(model=model)
    dense = loading.load(model)
    made = lrcore.prune_layers(dense, recipe, pruning.layers, pruning.criterion, progress)
    _save(made, out, as_json)


@app.command(name="prune-experts")
@flags(recipe=TEXT, loading=("revision", "dtype", "device"))
def prune_experts(
    model: Model,
    out: Out,
    pruning: ExpertPruning,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Remove routed experts, or merge them.

    All layers lose the same number of experts. The result is a dense model of the same family for
    `compress`, `evaluate` and `export --standard`.
    """
    _check(out, model, loading.revision)
    import lrcore

    recipe = recipe.with_(model=model)
    dense = loading.load(model)
    _save(lrcore.prune_experts(dense, recipe, pruning, progress), out, as_json)


@app.command(name="slice")
@flags(recipe=(*TEXT, "ratio"), loading=("revision", "dtype", "device"))
def slice_(
    model: Model,
    out: Out,
    slicing: Slicing,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Rotate the residual stream and remove the least important columns (SliceGPT).

    The ratio counts decoder-linear parameters, including residual matrices. The result is for
    `evaluate`, `generate` and `export`.
    """
    _check(out, model, loading.revision)
    import lrcore

    recipe = recipe.with_(model=model)
    rotations, multiple = slicing.rotations, slicing.multiple
    dense = loading.load(model)
    made = lrcore.slice_hidden(dense, recipe, rotations, multiple, progress)
    _save(made, out, as_json)


@app.command()
@flags(recipe=(*TEXT, "ratio"), loading=("revision", "dtype", "device"))
def share(
    model: Model,
    out: Out,
    sharing: Sharing,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Factor matrices of neighboring layers with a shared basis (Basis Sharing).

    The ratio counts decoder-linear parameters. The result is for `evaluate`, `generate` and
    `export`.
    """
    _check(out, model, loading.revision)
    import lrcore

    dense, text = loading.load(model), recipe.with_(model=model)
    _save(lrcore.share_bases(dense, text, sharing.group, progress), out, as_json)


@app.command()
@flags(recipe=TEXT, loading=("dtype", "device"))
def quantize(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL_OR_RUN", help="Built-in model, folder, hub id, or run."),
    ],
    out: Out,
    quantizing: Quantizing,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Quantize the weights of a model to 8, 4, 3 or 2 bits.

    Without data, or by GPTQ with a calibration text. The result is for `evaluate`, `compare` and
    `export`.
    """
    _check(out)
    progress.waits_for("load")
    import lrcore

    from ..checkpoints.export import run_checkpoint

    before = loading.load(run_checkpoint(model))
    made = lrcore.quantize(
        before,
        quantizing.bits,
        quantizing.group,
        progress,
        quantizer=quantizing.quantizer,
        recipe=recipe.with_(model=model),
    )
    values = {"out": str(lrcore.save(made, out)), "quantized": step_report(made.history[-1])}
    sizes = {"megabytes_before": before.size.megabytes, "megabytes": made.size.megabytes}
    show(as_json, values | sizes)


@app.command()
@flags(recipe=TEXT, loading=("revision", "dtype", "device"))
def sparsify(
    model: Model,
    out: Out,
    sparsifying: Sparsifying,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Set weights to zero: two of every four (2:4), or a fraction of all.

    The stored size decreases, including masks; CPUs are not faster.
    """
    _check(out, model, loading.revision)
    import lrcore

    before, text = loading.load(model), recipe.with_(model=model)
    _save(lrcore.sparsify(before, text, sparsifying, progress), out, as_json)


@app.command()
@flags(loading=("dtype", "device"))
def heal(
    model: FolderOrRun,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the healed model.")],
    settings: Healing,
    loading: Loading,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The dense model, if it was moved.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the factors of a compressed model with the dense model as teacher.

    An interrupted training is continued. The result is for `evaluate` and `export`.
    """
    _check(out)
    progress.waits_for("load")
    import lrcore

    from ..checkpoints.export import run_checkpoint

    state = out.expanduser().absolute().with_name(f".{out.name}.healing.safetensors")
    small = loading.load(run_checkpoint(model))
    made = lrcore.heal(small, settings, teacher=teacher, state=state, progress=progress)
    folder = lrcore.save(made, out)
    state.unlink(missing_ok=True)
    healing = step_report(made.history[-1])
    if not as_json:  # print only single numbers and words, without curves and protocols
        healing = {
            name: value
            for name, value in healing.items()
            if not isinstance(value, list | dict | None)
        }
    sizes = {"parameters": made.size.parameters, "kv_bytes_per_token": made.size.kv_bytes}
    show(as_json, {"out": str(folder), "healing": healing, **sizes})


def _check(out: Path, model: str | None = None, revision: str | None = None) -> None:
    """Raise InputError for an unknown model, or if `out` cannot be written."""
    if model is not None:
        locate_local(model, revision)
    from ..checkpoints.output_folder import check_output_folder

    check_output_folder(out)


def _save(made: Any, out: Path, as_json: bool) -> None:
    """Save a model and print the last step, size and cost."""
    import lrcore

    step = made.history[-1]
    show(
        as_json,
        {
            "out": str(lrcore.save(made, out)),
            step.kind: step_report(step),
            **made.account.to_dict(),
        },
    )
