"""Data sets of the Hugging Face hub, read by `datasets` without their code."""

import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from ..system.errors import InputError
from ..system.path_access import check_links, place_of
from ..system.resource_errors import raise_shortage
from .conversations import has_messages
from .hub_safety import (
    check_card,
    check_file,
    check_folder,
    check_names,
    is_packed,
    leaving_archives,
)
from .rows import Documents, documents_of
from .text_folders import markdown_files, unread_files

# Characters read from a split: about 15 M tokens, ten times any published calibration.
CHARACTERS = 64_000_000
_MAX_DOWNLOAD = 2_000_000_000  # bytes; larger repositories (C4 has 300 GB) are streamed
_MAX_FILES = 10_000  # of a local folder
_TIMEOUT = 20  # seconds until the first response of the hub
_FORM = "owner/name, owner/name:config or owner/name:config:split"
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
# Characters of URLs and paths, which names of configs and splits must not contain.
_FORBIDDEN = re.compile(r"[/\\@?#%<>|*\"]")
_OFFLINE_HINT = "Built-in data (stories, python-docs) and local files need no network."


class NoTestSplit(InputError):
    """A data set has a single split, which is not the test split."""


def read(data: str, role: str, revision: str | None = None) -> tuple[Documents, str]:
    """Return the documents of a hub data set and their source, "name:config:split@commit".

    data: `name`, `name:config` or `name:config:split`, then optionally #FIELD. The first rows are
    read, up to 64 million characters. Raises InputError for an invalid or unknown name, if the hub
    cannot be reached, and if no field is text; NoTestSplit if the test split of a data set with
    another split is named.
    """
    data, _, field = data.partition("#")
    name, config, split = _parts(data, role)
    commit, bytes_stored = _look_up(name, revision)
    folder = place_of(name)
    rows, unread = _load(
        str(folder) if folder.is_dir() else name,
        config,
        split,
        commit or revision,
        stream=bytes_stored > _MAX_DOWNLOAD,
    )
    source = f"{name}:{config or 'default'}:{split}" + (
        f"@{commit or revision}" if commit or revision else ""
    )
    documents = documents_of(rows, source, field)._replace(unread_files=unread)
    return documents, source + (f"#{field}" if field else "")


def rows(name: str, config: str | None, split: str, count: int | None = None) -> list[dict]:
    """Return the first `count` rows of a hub data set, up to 64 million characters; images are
    {"bytes", "path"}. Raises InputError like `read`.
    """
    commit, bytes_stored = _look_up(name, None)
    folder = place_of(name)
    path = str(folder) if folder.is_dir() else name
    return _load(path, config, split, commit, bytes_stored > _MAX_DOWNLOAD, count)[0]


def _parts(data: str, role: str) -> tuple[str, str | None, str]:
    name, *rest = data.split(":")
    if len(rest) > 2 or not name or " " in data or any(map(_FORBIDDEN.search, rest)):
        raise InputError(f"Cannot read the data set name '{data}'. A hub data set is {_FORM}.")
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or ("test" if role == "test" else "train")


def _look_up(name: str, revision: str | None) -> tuple[str | None, int]:
    """Return the commit of a hub data set, or None, and its stored bytes.

    Call it before `datasets`: its errors are specific and immediate, whereas `datasets` retries for
    half a minute.
    """
    from huggingface_hub import HfApi, errors

    if (folder := place_of(name)).is_dir():
        _check_folder(name, folder)
        return None, 0
    if not _NAME.fullmatch(name) or ".." in name:
        raise _unknown(name)
    try:
        info = HfApi().dataset_info(
            name, revision=revision, timeout=_TIMEOUT, expand=["sha", "usedStorage", "cardData"]
        )
    except errors.OfflineModeIsEnabled:
        return None, 0  # the cache of `datasets` can have a copy
    except errors.GatedRepoError as error:
        raise InputError(
            f"The hub data set '{name}' is gated. Accept the terms on the hub and log in with a "
            f"token. {_OFFLINE_HINT}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"The hub data set '{name}' has no revision '{revision}'. Enter a branch, "
            "tag or commit, or omit the revision."
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise _unknown(name) from error
    except Exception as error:  # errors of the network library, whose names change with versions
        raise_shortage(error)
        raise InputError(
            f"'{name}' is neither a built-in name nor a local file, and the hub cannot be reached "
            f"({_first_line(error)}). Check the name, the network and HF_ENDPOINT; to use a cached "
            f"copy, set HF_HUB_OFFLINE=1. {_OFFLINE_HINT}"
        ) from error
    check_card(name, info.card_data.to_dict() if info.card_data else None)
    return info.sha, info.used_storage or 0


def _unknown(name: str) -> InputError:
    return InputError(
        f"Unknown data set '{name}': it is neither a built-in name nor a local file, and the hub "
        "has no public data set of this name. Check the spelling; private data sets need a token, "
        f"and files their extension. {_OFFLINE_HINT}"
    )


def _check_folder(name: str, folder: Path) -> None:
    """Raise InputError for a folder with too many files to list, and for cards and links that lead
    outside it.
    """
    count = 0
    for parent, _, names in os.walk(folder):
        count += len(names)
        if count > _MAX_FILES:
            raise InputError(
                f"The folder '{name}' has more than {_MAX_FILES:,} files, the limit for data sets. "
                f"Name a file, or the folder of the text. {_OFFLINE_HINT}"
            )
        for file in names:
            check_file(name, Path(parent) / file)
    check_links(folder)
    check_folder(name, folder)


def _load(
    name: str,
    config: str | None,
    split: str,
    revision: str | None,
    stream: bool,
    count: int | None = None,
) -> tuple[list[dict], int]:
    """Return the first rows of a split, and the number of files of a folder that are not read."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    # Names such as "csv" select a loader of local files, which would read the working folder.
    if name in _PACKAGED_DATASETS_MODULES:
        raise _unknown(name)
    try:
        dataset, unread = _opened(name, config, split, revision, stream)
        for column, kind in (dataset.features or {}).items():
            if isinstance(kind, datasets.Image):
                dataset = dataset.cast_column(column, datasets.Image(decode=False))
        return _first_rows(dataset, count), unread
    except InputError:
        raise
    except Exception as error:  # of many libraries: network, parsers, datasets
        raise_shortage(error)
        # the first line of the message names the existing configs or splits
        subject = f"'{name}' (config {config or 'default'}, split {split})"
        reason = _first_line(error).rstrip(".")
        if Path(name).is_dir():
            raise InputError(
                f"Cannot load the folder {subject}: {reason}. All files must have the same format: "
                ".txt or .md, .jsonl, .csv or .parquet. Enter FOLDER, FOLDER:config or "
                "FOLDER:config:split, or name a single file."
            ) from error
        raise InputError(
            f"Cannot load the hub data set {subject}: {reason}. Enter {_FORM}. {_OFFLINE_HINT}"
        ) from error


def _opened(
    name: str, config: str | None, split: str, revision: str | None, stream: bool
) -> tuple[Any, int]:
    """Return a split as `datasets` reads it, and the number of files of a folder that are not read
    because their format differs. Nothing is unpacked; compressed files are streamed.

    Raises InputError for archives, and NoTestSplit.
    """
    import datasets

    without_unpacking = leaving_archives()
    folder = Path(name)
    is_default = config in (None, "default")
    texts = markdown_files(folder) if folder.is_dir() and is_default else {}
    builder = datasets.load_dataset_builder(
        "text" if texts else name,
        None if texts else config,
        data_files=texts or None,
        revision=revision,
        download_config=without_unpacking,
    )
    files = [file for group in (builder.config.data_files or {}).values() for file in group]
    check_names(name, files)
    existing = [*(builder.config.data_files or builder.info.splits or {})]
    if split == "test" and len(existing) == 1 and existing != [split]:
        raise NoTestSplit(
            f"The data set '{name}' has no split test, only {existing[0]}. Name the split: {_FORM}."
        )
    unread = unread_files(folder, files) if folder.is_dir() else 0
    if stream or any(map(is_packed, files)):
        return builder.as_streaming_dataset(split=split), unread
    builder.download_and_prepare(download_config=without_unpacking)
    return builder.as_dataset(split=split), unread


def _first_rows(rows: Iterable[dict], count: int | None = None) -> list[dict]:
    first_rows, characters = [], 0
    for row in islice(rows, count):
        first_rows.append(row)
        characters += sum(map(_characters, row.values()))
        if characters >= CHARACTERS:
            break
    return first_rows


def _characters(value: Any) -> int:
    """Return the characters of a text, or of the messages of a conversation."""
    if isinstance(value, str):
        return len(value)
    messages = value if has_messages(value) else ()
    return sum(len(part) for message in messages for part in _texts_of(message))


def _texts_of(message: Any) -> list[str]:
    values = message.values() if isinstance(message, dict) else ()
    return [value for value in values if isinstance(value, str)]


def _first_line(error: Exception) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
