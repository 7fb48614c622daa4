"""The command that writes a Hugging Face folder. Heavy imports wait until it runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ..settings import setting
from .arguments import AsJson, FolderOrRun, Loading
from .console import show
from .flags import flags

app = typer.Typer()


@dataclass(frozen=True)
class Target:
    """What kind of folder is written, and where it is uploaded."""

    stock: bool = setting(
        False, "An architecture of transformers, without code; where the ranks allow it."
    )
    push_to_hub: str | None = setting(
        None, "Upload the folder to this repository too.", metavar="OWNER/NAME"
    )
    public: bool = setting(False, "Make a new repository public.")


@app.command()
@flags(loading=("dtype",))
def export(
    model: FolderOrRun,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    target: Target,
    loading: Loading,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What `evaluate --json` printed, for the card; repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder.

    It loads without this project, by trust_remote_code or, with --stock, without any code.
    """
    import lrcore
    from lrcore.checkpoints.checkpoint import check_target
    from lrcore.checkpoints.export import read_results, run_checkpoint

    check_target(out)
    results = read_results(model, result or ())
    small = replace(loading, device="cpu").load(run_checkpoint(model))
    folder, repository = lrcore.export(small, out, results, target.stock), target.push_to_hub
    if repository:
        repository = lrcore.push(folder, repository, private=not target.public)
    show(as_json, {"out": str(folder), "results": len(results), "repository": repository})
