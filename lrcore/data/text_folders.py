"""Folders of text files: the files that `datasets` would read as another format, or skip."""

import glob
from collections.abc import Iterable
from pathlib import Path

from .extensions import PLAIN, TABLES, ending

CARD = "README.md"
_TASK = ".toml"  # describes a task for agents, whose text is in .md files


def markdown_files(folder: Path) -> dict[str, list[str]]:
    """Return the files of a folder of .md files, also beside .txt files, as patterns by split.

    `datasets` finds the splits, but reads .md files as tasks for agents. README.md is the card of a
    data set. {} for folders without .md files, and with files of other formats.
    """
    from huggingface_hub import metadata_load

    card = folder / CARD
    if card.is_file() and "configs" in (metadata_load(card) or {}):  # it names files and splits
        return {}
    found = _data_files(folder)
    endings = {ending(Path(file)) for files in found.values() for file in files}
    if ".md" not in endings or endings & {*TABLES, _TASK}:
        return {}
    return {
        split: [glob.escape(file) for file in files if ending(Path(file)) in PLAIN]
        for split, files in found.items()
    }


def unread_files(folder: Path, read: Iterable[str]) -> int:
    """Return the number of files with texts in a folder that are not among the read files."""
    named = {Path(file).resolve() for file in read}
    found = {Path(file).resolve() for files in _data_files(folder).values() for file in files}
    return sum(1 for file in found - named if ending(file) in PLAIN + TABLES)


def _data_files(folder: Path) -> dict[str, list[str]]:
    """Return the files of a folder by split, without cards, as `datasets` finds them."""
    from datasets.data_files import DataFilesDict, EmptyDatasetError, get_data_patterns

    base = folder.resolve().as_posix()
    try:
        return {
            str(split): list(map(str, files))
            for split, files in DataFilesDict.from_patterns(
                get_data_patterns(base), base_path=base
            ).items()
        }
    except (EmptyDatasetError, FileNotFoundError):  # the reader of the folder reports it
        return {}
