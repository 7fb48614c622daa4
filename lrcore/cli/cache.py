"""Command `cache`: lists and deletes cached files."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..system.errors import InputError
from ..system.files import cache_folder
from .arguments import AsJson
from .console import show

app = typer.Typer()


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete all entries that no running process uses.")
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Delete the least recently used entries until this size is reached, such as 5GB.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the cached files by kind, or delete them.

    The folder is $LRCORE_CACHE, the permanent limit $LRCORE_CACHE_LIMIT (20GB).
    """
    from ..system import cache as disk_cache

    if clear and limit is not None:
        raise InputError("--clear deletes all entries. Use either --clear or --limit.")
    permanent_limit = disk_cache.limit()
    if clear:
        removed = disk_cache.clear()
    else:
        size = None if limit is None else disk_cache.read_size(limit)
        removed = disk_cache.Removed() if size is None else disk_cache.trim(size)
    entries = disk_cache.entries()
    values: dict[str, Any] = {
        "folder": str(cache_folder()),
        "limit_megabytes": None if permanent_limit is None else permanent_limit / 1e6,
        "megabytes": _megabytes(entries),
    }
    if clear or limit is not None:
        values["deleted_megabytes"] = _megabytes(removed.entries)
        values["in_use_megabytes"] = _megabytes(removed.held)
    rows = [_row(kind, about, entries) for kind, about in disk_cache.KINDS.items()]
    show(as_json, values, "kinds", rows)


def _row(kind: str, about: str, entries: list[Any]) -> dict[str, Any]:
    """Return the row of a kind."""
    from ..system.cache import age

    of_kind = [entry for entry in entries if entry.kind == kind]
    return {
        "kind": kind,
        "entries": len(of_kind),
        "megabytes": _megabytes(of_kind),
        "last_used": age(of_kind[-1]) if of_kind else None,
        "description": about,
    }


def _megabytes(entries: Sequence[Any]) -> float:
    return round(float(sum(entry.bytes for entry in entries)) / 1e6, 3)
