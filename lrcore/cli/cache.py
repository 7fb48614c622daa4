"""The command `cache`: what is kept on disk, and deleting it. Heavy imports are not needed."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import cache_folder
from .arguments import AsJson
from .console import show

app = typer.Typer()


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete all that no running process reads.")
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Delete the least recently used until the rest has this size, such as 5GB.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what is kept on disk, by kind; or delete it.

    The folder is $LRCORE_CACHE, the limit that is always kept $LRCORE_CACHE_LIMIT (20GB).
    """
    from .. import cache as kept

    if clear and limit is not None:
        raise InputError("--clear deletes everything: give it or --limit, not both.")
    most, own = kept.limit(), None if limit is None else kept.read_size(limit)
    removed = kept.clear() if clear else kept.Removed() if own is None else kept.trim(own)
    there = kept.entries()
    values: dict[str, Any] = {
        "folder": str(cache_folder()),
        "limit_megabytes": None if most is None else most / 1e6,
        "megabytes": _megabytes(there),
    }
    if clear or limit is not None:
        values["deleted_megabytes"] = _megabytes(removed.entries)
        values["in_use_megabytes"] = _megabytes(removed.held)
    show(as_json, values, "kinds", [_row(kind, about, there) for kind, about in kept.KINDS.items()])


def _row(kind: str, about: str, there: list[Any]) -> dict[str, Any]:
    """What there is of one kind."""
    from ..cache import age

    own = [entry for entry in there if entry.kind == kind]
    return {
        "kind": kind,
        "entries": len(own),
        "megabytes": _megabytes(own),
        "last_used": age(own[-1]) if own else None,
        "what it is": about,
    }


def _megabytes(entries: Sequence[Any]) -> float:
    return round(float(sum(entry.bytes for entry in entries)) / 1e6, 3)
