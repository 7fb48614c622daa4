"""The command `runs`: list, open, rename, tag, delete, compare."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from .arguments import AsJson
from .console import show

app = typer.Typer(
    help="The runs kept on this machine. List them; show, add, rename, tag, track, delete, compare "
    "them.",
    invoke_without_command=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where they are. Default: $LRCORE_RUNS, else ./runs.",
        show_default=False,
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Id, beginning of an id, or name.")]


def _runs(ctx: typer.Context) -> Any:
    from ..runs.runs import Runs, root

    return Runs(ctx.obj or root())


@app.callback()
def runs(
    ctx: typer.Context,
    folder: Folder = None,
    tag: Annotated[
        str | None, typer.Option(help="Only those with this tag.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The runs kept on this machine.

    List them; show, add, rename, tag, track, delete, compare them.
    """
    ctx.obj = folder
    if ctx.invoked_subcommand is None:
        kept = _runs(ctx)
        show(
            as_json,
            {"folder": str(kept.folder)},
            "runs",
            [summary(run) for run in reversed(kept.all(tag))],
        )


def summary(run: Any) -> dict[str, Any]:
    """A run in one row."""
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
    """What a perplexity was measured on; only those with the same one compare."""
    names = ("source", "name", "sampling")
    known = [str(described[name]) for name in names if described.get(name)]
    if described.get("sampling") == "random":
        known.append(f"seed {described.get('seed')}")
    if described.get("stride"):
        known.append(f"stride {described['stride']}")
    if described.get("windows") and described.get("seq_len"):
        known.append(f"{described['windows']} x {described['seq_len']}")
    if described.get("note"):
        known.append(f"({described['note']})")
    if described.get("on_calibration_text"):
        known.append("(calibration text)")
    return " ".join(known)


@app.command("show")
def show_run(ctx: typer.Context, run: RunName, as_json: AsJson = False) -> None:
    """Show all that is known of a run. Recipe, account, results, samples."""
    kept = _runs(ctx)
    entry = kept.find(run)
    values = {
        **summary(entry),
        "folder": str(entry.checkpoint),
        "account": {} if entry.account is None else entry.account.to_dict(),
        "evaluations": entry.evaluations,
    }
    show(as_json, {**values, "recipe": entry.recipe.to_dict(), "samples": kept.samples(entry.id)})


@app.command()
def add(
    ctx: typer.Context,
    checkpoint: Path,
    name: Annotated[str, typer.Option(help="Its name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Take up a folder that `compress` wrote. Its files stay where they are."""
    show(as_json, summary(_runs(ctx).add(checkpoint, name)))


@app.command()
def rename(ctx: typer.Context, run: RunName, name: str, as_json: AsJson = False) -> None:
    """Give a run another name."""
    kept = _runs(ctx)
    entry = kept.find(run)
    kept.rename(entry.id, name)
    show(as_json, summary(kept.get(entry.id)))


@app.command()
def tag(
    ctx: typer.Context,
    run: RunName,
    tags: list[str],
    remove: Annotated[bool, typer.Option("--remove", help="Take them off.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put tags on a run, or take them off."""
    kept = _runs(ctx)
    entry = kept.find(run)
    for one in tags:
        (kept.untag if remove else kept.tag)(entry.id, one)
    show(as_json, summary(kept.get(entry.id)))


@app.command()
def track(
    ctx: typer.Context,
    project: str,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN...]", help="As above. Default: all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write runs into a project of trackio's local store.

    What is there already is not written twice.
    """
    from ..runs.tracking import Tracker

    kept = _runs(ctx)
    chosen = [kept.find(run) for run in runs] if runs else kept.all()
    tracker = Tracker(project)
    for run in chosen:
        tracker.log_run(run)
    show(as_json, {"project": project, "runs": [run.id for run in chosen]})


@app.command()
def delete(
    ctx: typer.Context,
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a run and its checkpoint. Asks first; of a run that was only added, the files stay."""
    kept = _runs(ctx)
    entry = kept.find(run)
    if not yes and (
        as_json
        or not typer.confirm(f"Delete '{entry.name}' ({entry.id}) in {entry.folder}?", err=True)
    ):
        raise InputError(f"'{entry.name}' was not deleted. Say --yes to delete without a question.")
    kept.delete(entry.id)
    show(as_json, {"deleted": entry.id})


@app.command()
def compare(ctx: typer.Context, runs: list[str], as_json: AsJson = False) -> None:
    """Show only what differs between up to six runs. Recipe, account and perplexities."""
    from ..runs.differences import differences

    kept = _runs(ctx)
    chosen = [kept.find(one) for one in runs]
    show(as_json, {"compared": [run.id for run in chosen]}, "differences", differences(chosen))
