"""The command that drops whole layers. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Annotated

import typer

from .console import progress, show
from .measuring import AsJson, Device, Dtype, Revision

app = typer.Typer()


@app.command()
def shorten(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Demo model, folder or hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    layers: Annotated[int, typer.Option(help="How many decoder layers go.")],
    by: Annotated[str, typer.Option(help="influence (ShortGPT), or loss (SLEB): one after another, by the loss without it.")] = "influence",
    data: Annotated[str, typer.Option(help="Text to choose on.")] = "stories",
    samples: Annotated[int, typer.Option(help="Windows of it.")] = 64,
    seq_len: Annotated[int, typer.Option(help="Tokens per window.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the random choice of windows.")] = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Drop whole decoder layers. What is left is a dense model: `compress`, `evaluate` and `export --stock` take the folder."""
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target

    check_target(out)
    loaded = lrcore.load(model, revision, dtype, device)
    recipe = lrcore.Recipe(model=model, data=data, samples=samples, seq_len=seq_len, seed=seed)
    made = lrcore.shorten(loaded, recipe, layers, by, progress)
    show(as_json, {"out": str(lrcore.save(made, out)), "shortened": made.report["shortened"], **made.report["summary"]})
