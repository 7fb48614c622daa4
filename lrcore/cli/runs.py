"""Command `runs`: lists and manages runs."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..system.errors import InputError
from .arguments import AsJson
from .console import show

app = typer.Typer(
    help="Runs on this machine: list, show, add, rename, tag, track, delete and compare them.",
    invoke_without_command=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the runs. Default: $LRCORE_RUNS, else ./runs.",
        show_default=False,
    ),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Id, first characters of an id, or name.")
]


def _runs(ctx: typer.Context) -> Any:
    from ..runs.runs import Runs, runs_folder

    return Runs(ctx.obj or runs_folder())


@app.callback()
def runs(
    ctx: typer.Context,
    folder: Folder = None,
    tag: Annotated[
        str | None, typer.Option(help="List only runs with this tag.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Runs on this machine: list, show, add, rename, tag, track, delete and compare them."""
    ctx.obj = folder
    if ctx.invoked_subcommand is None:
        store = _runs(ctx)
        rows = [summary(run) for run in reversed(store.all(tag))]
        show(as_json, {"folder": str(store.folder)}, "runs", rows)


def summary(run: Any) -> dict[str, Any]:
    """Return the row of a run."""
    last = (run.evaluations or [{}])[-1]
    return {
        "id": run.id,
        "name": run.name,
        "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
        "model": run.recipe.model,
        "method": run.method,
        "policy": run.policy,
        "ratio": run.fields.get("ratio"),
        "parameters": None if run.account is None else run.account.model.parameters,
        "perplexity": last.get("perplexity"),
        "protocol": protocol(last.get("protocol", {})),
        "tags": list(run.tags),
    }


def protocol(described: Mapping[str, Any]) -> str:
    """Return a short text of a protocol. Only perplexities of the same protocol are comparable."""
    names = ("source", "name", "sampling")
    parts = [str(described[name]) for name in names if described.get(name)]
    if described.get("sampling") == "random":
        parts.append(f"seed {described.get('seed')}")
    if described.get("bos"):
        parts.append(f"bos {described['bos']}")
    if described.get("stride"):
        parts.append(f"stride {described['stride']}")
    if described.get("windows") and described.get("seq_len"):
        parts.append(f"{described['windows']} x {described['seq_len']}")
    if described.get("note"):
        parts.append(f"({described['note']})")
    if described.get("on_calibration_text"):
        parts.append("(calibration text)")
    return " ".join(parts)


@app.command("show")
def show_run(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Show a run: recipe, size and cost, results, samples."""
    store = _runs(ctx)
    entry = store.find(run)
    values = {
        **summary(entry),
        "folder": str(entry.checkpoint),
        "account": {} if entry.account is None else entry.account.to_dict(),
        "evaluations": entry.evaluations,
    }
    show(as_json, {**values, "recipe": entry.recipe.to_dict(), "samples": store.samples(entry.id)})


@app.command()
def add(
    ctx: typer.Context,
    checkpoint: Path,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "",
    as_json: AsJson = False,
) -> None:
    """Add a folder that `compress` wrote. Its files are not moved."""
    show(as_json, summary(_runs(ctx).add(checkpoint, name)))


@app.command()
def rename(ctx: typer.Context, run: RunName, name: str, as_json: AsJson = False) -> None:
    """Rename a run."""
    store = _runs(ctx)
    entry = store.find(run)
    store.rename(entry.id, name)
    show(as_json, summary(store.get(entry.id)))


@app.command()
def tag(
    ctx: typer.Context,
    run: RunName,
    tags: list[str],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tags.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add tags to a run, or remove them."""
    store = _runs(ctx)
    entry = store.find(run)
    for name in tags:
        (store.untag if remove else store.tag)(entry.id, name)
    show(as_json, summary(store.get(entry.id)))


@app.command()
def track(
    ctx: typer.Context,
    project: str,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN...]", help="Ids or names. Default: all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write runs to a project of trackio's local store.

    Existing entries are not written again.
    """
    from ..runs.tracking import Tracker

    store = _runs(ctx)
    chosen = [store.find(run) for run in runs] if runs else store.all()
    tracker = Tracker(project)
    for run in chosen:
        tracker.log_run(run)
    show(as_json, {"project": project, "runs": [run.id for run in chosen]})


@app.command()
def delete(
    ctx: typer.Context,
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a run and its checkpoint after confirmation. Files of added folders stay."""
    store = _runs(ctx)
    entry = store.find(run)
    if not yes and (
        as_json
        or not typer.confirm(f"Delete '{entry.name}' ({entry.id}) in {entry.folder}?", err=True)
    ):
        raise InputError(
            f"'{entry.name}' was not deleted. Add --yes to delete without confirmation."
        )
    store.delete(entry.id)
    show(as_json, {"deleted": entry.id})


@app.command()
def compare(ctx: typer.Context, runs: list[str], as_json: AsJson = False) -> None:
    """Show the differences between up to six runs: recipe, size, cost and perplexities."""
    from ..runs.differences import differences

    store = _runs(ctx)
    chosen = [store.find(name) for name in runs]
    show(as_json, {"compared": [run.id for run in chosen]}, "differences", differences(chosen))
