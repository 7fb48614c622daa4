"""The command that makes the residual stream narrower. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Annotated

import typer

from .console import progress, show
from .measuring import AsJson, Device, Dtype, Revision

app = typer.Typer()


@app.command(name="slice")
def slice_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Demo model, folder or hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    ratio: Annotated[float, typer.Option(help="Share of the decoder-linear parameters to remove, residual matrices counted.")] = 0.2,
    rotations: Annotated[str, typer.Option(help="block: a basis before every attention and MLP; one: the same for all.")] = "block",
    multiple: Annotated[int, typer.Option(help="The width is a multiple of it, such as 8.")] = 1,
    data: Annotated[str, typer.Option(help="Text to find the bases on.")] = "stories",
    samples: Annotated[int, typer.Option(help="Windows of it.")] = 64,
    seq_len: Annotated[int, typer.Option(help="Tokens per window.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the random choice of windows.")] = 0,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Rotate the residual stream and drop where it holds least (SliceGPT). `evaluate`, `generate` and `export` take the folder."""
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target

    check_target(out)
    loaded = lrcore.load(model, revision, dtype, device)
    recipe = lrcore.Recipe(model=model, data=data, samples=samples, seq_len=seq_len, seed=seed, ratio=ratio)
    made = lrcore.slice_hidden(loaded, recipe, rotations, multiple, progress)
    show(as_json, {"out": str(lrcore.save(made, out)), "sliced": made.report["sliced"], **made.report["summary"]})
