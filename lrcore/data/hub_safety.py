"""Checks of data sets before `datasets` reads them: archives, and paths outside the data set.

`datasets` unpacks every file that begins like an archive, regardless of name and unpacked size. It
also follows all paths and addresses in the card of a data set: a card could make a server read
private files, or send requests to internal hosts.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..system.errors import InputError

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar", ".eval")
# Compressed single files, which are read as streams.
_COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".lz4")
_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"7z\xbc\xaf\x27\x1c", b"Rar!")
_TAR, _TAR_OFFSET = b"ustar", 257
_CARDS = ("README.md", ".huggingface.yaml")
_PATH_FIELDS = ("data_files", "data_dir")


def is_packed(file: str) -> bool:
    """Return whether a file is a compressed single file, by name."""
    return file.lower().endswith(_COMPRESSED)


def check_names(name: str, files: Iterable[str]) -> None:
    """Raise InputError if a file of a data set has the name of an archive."""
    for file in files:
        if file.lower().endswith(_ARCHIVES):
            raise _archive_error(name, file)


def check_file(name: str, file: Path) -> None:
    """Raise InputError if a file is an archive, by name or by the first bytes."""
    check_names(name, [file.name])
    try:
        with file.open("rb") as opened:
            start = opened.read(_TAR_OFFSET + len(_TAR))
    except OSError:  # the reader of the file reports it
        return
    if start.startswith(_MAGIC) or start[_TAR_OFFSET:] == _TAR:
        raise _archive_error(name, file.name)


def leaving_archives() -> Any:
    """Return a DownloadConfig of `datasets` that unpacks no downloaded file."""
    from datasets import DownloadConfig

    class LeavingArchives(DownloadConfig):
        """`datasets` sets `extract_compressed_file` on a copy; this class keeps it False."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value if name != "extract_compressed_file" else False)

    return LeavingArchives()


def check_folder(name: str, folder: Path) -> None:
    """Raise InputError if a card in a folder is unreadable or names files outside the folder."""
    import yaml
    from huggingface_hub import metadata_load

    for card in (folder / file for file in _CARDS):
        if not card.is_file():
            continue
        try:
            text = card.read_text(encoding="utf-8") if card.suffix == ".yaml" else ""
            check_card(name, yaml.safe_load(text) if text else metadata_load(card))
        except (yaml.YAMLError, ValueError, OSError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The card '{card.name}' of the data set '{name}' cannot be read. Repair it, or "
                "name a single file of the folder."
            ) from error


def check_card(name: str, card: Any) -> None:
    """Raise InputError if the metadata of a card name files outside the data set."""
    configs = card.get("configs") if isinstance(card, Mapping) else None
    for config in configs if isinstance(configs, list) else ():
        values = [config.get(f) for f in _PATH_FIELDS] if isinstance(config, Mapping) else []
        for path in _strings(values):
            if "://" in path or path.startswith(("/", "~", "\\")) or _has_parent(path):
                raise InputError(
                    f"The card of the data set '{name}' names '{path[:80]}', which is outside the "
                    "data set. Such data sets are refused. Choose another data set."
                )


def _has_parent(path: str) -> bool:
    return ".." in PurePosixPath(path.replace("\\", "/")).parts


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for element in value:
            yield from _strings(element)


def _archive_error(name: str, file: str) -> InputError:
    return InputError(
        f"The data set '{name}' has the archive '{file.rpartition('/')[2][:80]}', which is not "
        "unpacked. Unpack it and name the file with the text, or choose another data set."
    )
