"""The commands that make a model of another: fewer layers or experts, a narrower residual stream,
bases that layers share, quantised or sparse weights, healed factors. Heavy imports wait until they
run.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..compression.expert_pruning.settings import ExpertPruning
from ..compression.healing.settings import Healing
from ..compression.quantising import Quantising
from ..compression.sharing import Sharing
from ..compression.shortening.settings import Shortening
from ..compression.slicing.settings import Slicing
from ..compression.sparsifying import Sparsifying
from ..models.hub import on_this_machine
from ..recipe import Recipe
from .arguments import AsJson, FolderOrRun, Loading, Model
from .console import progress, show
from .flags import flags
from .reports import step_report

app = typer.Typer()

TEXT = ("data", "samples", "seq_len", "seed")  # of a recipe, for what decides on a text

Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")]


@app.command()
@flags(recipe=TEXT, loading=("revision", "dtype", "device"))
def shorten(
    model: Model,
    out: Out,
    shortening: Shortening,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Drop whole decoder layers.

    What is left is a dense model: `compress`, `evaluate` and `export --stock` take the folder.
    """
    _check(out, model, loading.revision)
    import lrcore

    layers, by = shortening.layers, shortening.by
    dense = loading.load(model)
    made = lrcore.shorten(dense, recipe.with_(model=model), layers, by, progress)
    _keep(made, out, as_json)


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
    """Drop whole routed experts, or merge them into others.

    Every layer loses equally many. What is left is a dense model of the same family: `compress`,
    `evaluate` and `export --stock` take the folder.
    """
    _check(out, model, loading.revision)
    import lrcore

    recipe = recipe.with_(model=model)
    dense = loading.load(model)
    _keep(lrcore.prune_experts(dense, recipe, pruning, progress), out, as_json)


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
    """Rotate the residual stream and drop where it holds least (SliceGPT).

    The ratio counts decoder-linear parameters, residual matrices among them.
    `evaluate`, `generate` and `export` take the folder.
    """
    _check(out, model, loading.revision)
    import lrcore

    recipe = recipe.with_(model=model)
    rotations, multiple = slicing.rotations, slicing.multiple
    dense = loading.load(model)
    made = lrcore.slice_hidden(dense, recipe, rotations, multiple, progress)
    _keep(made, out, as_json)


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
    """Factor matrices of neighbouring layers with one basis (Basis Sharing).

    The ratio counts decoder-linear parameters. `evaluate`, `generate` and `export` take the folder.
    """
    _check(out, model, loading.revision)
    import lrcore

    dense, text = loading.load(model), recipe.with_(model=model)
    _keep(lrcore.share_bases(dense, text, sharing.group, progress), out, as_json)


@app.command()
@flags(recipe=TEXT, loading=("dtype", "device"))
def quantise(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="Demo model, folder, hub id, or a run of the page."
        ),
    ],
    out: Out,
    quantising: Quantising,
    recipe: Recipe,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Quantise a model's weights to 8, 4, 3 or 2 bits.

    Without data (HQQ) or on calibration text (GPTQ); `evaluate`, `compare` and `export` take the
    folder.
    """
    _check(out)
    progress.waits_for("load")
    import lrcore
    from lrcore.checkpoints.export import run_checkpoint

    before = loading.load(run_checkpoint(model))
    made = lrcore.quantise(
        before,
        quantising.bits,
        quantising.group,
        progress,
        quantiser=quantising.quantiser,
        recipe=recipe.with_(model=model),
    )
    values = {"out": str(lrcore.save(made, out)), "quantised": step_report(made.history[-1])}
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
    """Keep two of every four weights (2:4), or a share of all.

    The size falls, masks counted; no CPU is faster by it.
    """
    _check(out, model, loading.revision)
    import lrcore

    before, text = loading.load(model), recipe.with_(model=model)
    _keep(lrcore.sparsify(before, text, sparsifying, progress), out, as_json)


@app.command()
@flags(loading=("dtype", "device"))
def heal(
    model: FolderOrRun,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the healed model to.")],
    settings: Healing,
    loading: Loading,
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The dense model, where it has moved.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the factors of a compressed model against its dense one.

    Goes on where it was stopped; `evaluate` and `export` take DIR.
    """
    _check(out)
    progress.waits_for("load")
    import lrcore
    from lrcore.checkpoints.export import run_checkpoint

    state = out.expanduser().absolute().with_name(f".{out.name}.healing.safetensors")
    small = loading.load(run_checkpoint(model))
    made = lrcore.heal(small, settings, teacher=teacher, state=state, progress=progress)
    folder = lrcore.save(made, out)
    state.unlink(missing_ok=True)
    healing = step_report(made.history[-1])
    if not as_json:  # a person reads neither curves nor protocols, nor settings left out
        healing = {
            name: value
            for name, value in healing.items()
            if not isinstance(value, list | dict | None)
        }
    sizes = {"parameters": made.size.parameters, "kv_bytes_per_token": made.size.kv_bytes}
    show(as_json, {"out": str(folder), "healing": healing, **sizes})


def _check(out: Path, model: str | None = None, revision: str | None = None) -> None:
    """Raises InputError where there is no such model, or `out` cannot be written."""
    if model is not None:
        on_this_machine(model, revision)
    from lrcore.checkpoints.out import check_out

    check_out(out)


def _keep(made: Any, out: Path, as_json: bool) -> None:
    """Write the model, and show its last step and its account."""
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
