"""Folders and files that a browser can download, each once and by a random ticket.

A listener of the page, which runs behind the login, issues the ticket. The address of the download
has no path in it, so no request can name a file.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import lrcore

from .. import words

LIFETIME = 60.0  # seconds until a ticket expires; the browser uses it at once


@dataclass(frozen=True)
class Download:
    """A zip archive to write. files: paths by their names in the archive."""

    file_name: str
    files: dict[str, Path]


_issued: dict[str, tuple[Download, float]] = {}  # with the time of expiry, by ticket


def issue_ticket(download: Download) -> str:
    """Return a new ticket for a download."""
    expired = [name for name, (_, expiry) in [*_issued.items()] if expiry < time.monotonic()]
    for name in expired:
        _issued.pop(name, None)
    ticket = secrets.token_urlsafe(32)
    _issued[ticket] = download, time.monotonic() + LIFETIME
    return ticket


def use_ticket(ticket: str) -> Download | None:
    """Return the download of a ticket, which becomes invalid; None for an invalid ticket."""
    download, expiry = _issued.pop(ticket, (None, 0.0))
    return download if time.monotonic() < expiry else None


def download_of(path: Path, name: str) -> Download:
    """Return a file, or all files of a folder, as a download "name.zip".

    The archive unpacks into a folder `name`. Raises InputError if a link leads out of the folder.
    """
    root = path.parent.resolve() / path.name
    files = [file for file in sorted(root.rglob("*")) if file.is_file()] or [root]
    if not all(file.resolve().is_relative_to(root) for file in files):
        raise lrcore.InputError(words.compare_and_runs.LINK_LEADS_OUT.format(path.name))
    base = root if root.is_dir() else root.parent
    return Download(
        f"{name}.zip", {f"{name}/{file.relative_to(base).as_posix()}": file for file in files}
    )
