"""Access to paths of this machine, unrestricted by default; see SECURITY.md."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import InputError, quoted

_MAX_FILES = 10_000  # of a folder that is searched for links
_MIN_SECRET = 6  # characters of environment values that are removed from texts
_PATH = re.compile(r"(?<![\w/:.~])(?:/[^\s/'\"<>:;,()]+)+/?|(?<!\w)[A-Za-z]:\\[^\s'\"<>;,()]+")
_roots: tuple[Path, ...] = ()


def restrict_paths(roots: Sequence[str | Path]) -> None:
    """Restrict the models and texts that this process reads to files in some folders.

    Links and ".." cannot lead outside. Relative names start in these folders, in their order.
    Built-in models and texts and the hub are not affected. An empty list removes the restriction.

    Raises InputError for a missing folder.
    """
    global _roots
    folders = [expanded(root) for root in roots]
    for root, folder in zip(roots, folders, strict=True):
        if not folder.is_dir():
            raise InputError(f"No folder '{root}' to read models and texts in. Check the path.")
    _roots = tuple(folder.resolve() for folder in folders)


def expanded(name: str | Path) -> Path:
    """Return a path with "~" expanded. Raises InputError for an unknown user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{quoted(str(name))} begins with an unknown home folder. Enter the full path."
        ) from error


def place_of(name: str | Path) -> Path:
    """Return the path that a name stands for; it need not exist.

    Raises InputError if it is outside the folders of `restrict_paths`.
    """
    if not _roots:
        return expanded(name)
    candidates = [Path(name)] if Path(name).is_absolute() else [root / name for root in _roots]
    inside = [path for path in map(_resolved, candidates) if path is not None]
    if not inside:
        raise InputError(
            f"'{name}' is outside the folders from which this server reads models and texts. Enter "
            "a name in these folders, a built-in name, or a hub id."
        )
    return next((path for path in inside if os.path.lexists(path)), inside[0])


def check_links(folder: Path) -> None:
    """Raise InputError for a link in a folder that leads outside those of `restrict_paths`."""
    if not _roots:
        return
    for count, path in enumerate(folder.rglob("*")):
        if count >= _MAX_FILES:
            raise InputError(
                f"'{folder.name}' has more than {_MAX_FILES:,} files. Name a single file."
            )
        if path.is_symlink() and _resolved(path) is None:
            raise InputError(
                f"'{folder.name}/{path.name}' links to a path outside the folders that this "
                "server reads. Copy the file."
            )


def _resolved(path: Path) -> Path | None:
    """Return the path without links, or None if it is invalid or outside the folders."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a zero byte
        return None
    if target.is_symlink():  # a circle of links in Python 3.13 and later
        return None
    return target if any(target.is_relative_to(root) for root in _roots) else None


def strip_paths(text: str) -> str:
    """Return a text without the paths and secrets of this machine.

    After `restrict_paths`, a path is cut to the last part, and the value of an environment variable
    that holds a path or a secret is replaced by the variable's name.
    """
    if not _roots:
        return text
    for variable, value in os.environ.items():
        secret = re.search("TOKEN|KEY|SECRET|PASS", variable)
        if len(value) >= _MIN_SECRET and (secret or "://" in value):
            text = text.replace(value, f"${variable}")
    for root in (*_roots, Path.cwd(), Path.home()):
        text = text.replace(f"{root}{os.sep}", "")
    return _PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], text)
