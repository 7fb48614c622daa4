"""Where models and texts of this machine may be read: anywhere, unless `confine` names folders.

A server that others reach confines what they may name; see SECURITY.md.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import InputError, quoted

_MOST = 10_000  # files and folders that are looked at for links
_SECRET = 6  # characters of the shortest value of the environment that is taken out of a text
_PATH = re.compile(r"(?<![\w/:.~])(?:/[^\s/'\"<>:;,()]+)+/?|(?<!\w)[A-Za-z]:\\[^\s'\"<>;,()]+")
_roots: tuple[Path, ...] = ()


def confine(roots: Sequence[str | Path]) -> None:
    """From now on this process reads models and texts in these folders only, whatever name, link or
    ".." leads elsewhere; relative names start in them, in their order. What is built in, and what
    comes of the hub, is read as before. No folders: anything may be read.

    Raises InputError for a folder that is not there.
    """
    global _roots
    folders = [expanded(root) for root in roots]
    for root, folder in zip(roots, folders, strict=True):
        if not folder.is_dir():
            raise InputError(f"No folder '{root}' to read models and texts in. Check the path.")
    _roots = tuple(folder.resolve() for folder in folders)


def expanded(name: str | Path) -> Path:
    """A path whose "~" is the home folder. Raises InputError for that of a user who has none."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{quoted(str(name))} begins with the home folder of nobody. Write the whole path."
        ) from error


def place_of(name: str | Path) -> Path:
    """The place that a name leads to, whether or not anything is there.

    Raises InputError where it is outside the folders of `confine`.
    """
    if not _roots:
        return expanded(name)
    started = [Path(name)] if Path(name).is_absolute() else [root / name for root in _roots]
    inside = [place for place in map(_resolved, started) if place is not None]
    if not inside:
        raise InputError(
            f"'{name}' is outside the folders that this server reads models and texts in. Give a "
            "name in one of them, a built-in name, or a hub id."
        )
    return next((place for place in inside if os.path.lexists(place)), inside[0])


def check_links(folder: Path) -> None:
    """Raise InputError where a link in a folder leads outside the folders of `confine`."""
    if not _roots:
        return
    for count, path in enumerate(folder.rglob("*")):
        if count >= _MOST:
            raise InputError(f"'{folder.name}' holds more than {_MOST:,} files. Name one of them.")
        if path.is_symlink() and _resolved(path) is None:
            raise InputError(
                f"'{folder.name}/{path.name}' is a link that leads outside the folders that this "
                "server reads. Copy the file there."
            )


def _resolved(path: Path) -> Path | None:
    """Where a path leads; None where that is outside, or nowhere."""
    try:
        place = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a zero byte
        return None
    if place.is_symlink():  # a circle, which Python from 3.13 on leaves as it is
        return None
    return place if any(place.is_relative_to(root) for root in _roots) else None


def without_paths(text: str) -> str:
    """A text as others may read it: once `confine` was called, paths are cut to their last part,
    and values of the environment that name a place or a secret to the variable.
    """
    if not _roots:
        return text
    for variable, value in os.environ.items():
        secret = re.search("TOKEN|KEY|SECRET|PASS", variable)
        if len(value) >= _SECRET and (secret or "://" in value):
            text = text.replace(value, f"${variable}")
    for root in (*_roots, Path.cwd(), Path.home()):
        text = text.replace(f"{root}{os.sep}", "")
    return _PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], text)
