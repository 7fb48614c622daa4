"""The commands that change a model as a whole: layers dropped, or a narrower residual stream.

Heavy imports wait until they run.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import progress, show
from .measuring import AsJson, Device, Dtype, Revision

app = typer.Typer()

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Demo model, folder or hub id.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")]
Data = Annotated[str, typer.Option(help="Text to decide on.")]
Samples = Annotated[int, typer.Option(help="Windows of it.")]
SeqLen = Annotated[int, typer.Option(help="Tokens per window.")]
Seed = Annotated[int, typer.Option(help="Of the random choice of windows.")]


@app.command()
def shorten(
    model: Model,
    out: Out,
    layers: Annotated[int, typer.Option(help="How many decoder layers go.")],
    by: Annotated[
        str,
        typer.Option(
            help="influence (ShortGPT), or loss (SLEB): one after another, by the loss without it."
        ),
    ] = "influence",
    data: Data = "stories",
    samples: Samples = 64,
    seq_len: SeqLen = 256,
    seed: Seed = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Drop whole decoder layers.

    What is left is a dense model: `compress`, `evaluate` and `export --stock` take the folder.
    """
    import lrcore

    _check(out)
    recipe = lrcore.Recipe(model=model, data=data, samples=samples, seq_len=seq_len, seed=seed)
    made = lrcore.shorten(lrcore.load(model, revision, dtype, device), recipe, layers, by, progress)
    _keep(made, out, "shortened", as_json)


@app.command(name="slice")
def slice_(
    model: Model,
    out: Out,
    ratio: Annotated[
        float,
        typer.Option(
            help="Share of the decoder-linear parameters to remove, residual matrices counted."
        ),
    ] = 0.2,
    rotations: Annotated[
        str,
        typer.Option(help="block: a basis before every attention and MLP; one: the same for all."),
    ] = "block",
    multiple: Annotated[int, typer.Option(help="The width is a multiple of it, such as 8.")] = 1,
    data: Data = "stories",
    samples: Samples = 64,
    seq_len: SeqLen = 256,
    seed: Seed = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Rotate the residual stream and drop where it holds least (SliceGPT).

    `evaluate`, `generate` and `export` take the folder.
    """
    import lrcore

    _check(out)
    recipe = lrcore.Recipe(
        model=model, data=data, samples=samples, seq_len=seq_len, seed=seed, ratio=ratio
    )
    made = lrcore.slice_hidden(
        lrcore.load(model, revision, dtype, device), recipe, rotations, multiple, progress
    )
    _keep(made, out, "sliced", as_json)


def _check(out: Path) -> None:
    from lrcore.checkpoints.checkpoint import check_target

    check_target(out)


def _keep(made: Any, out: Path, entry: str, as_json: bool) -> None:
    """Write the model, and say what its report has under `entry`."""
    import lrcore

    show(
        as_json,
        {"out": str(lrcore.save(made, out)), entry: made.report[entry], **made.report["summary"]},
    )
