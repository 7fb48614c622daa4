"""Data sets of the Hugging Face hub, through `datasets`, without running their code."""

import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from lrcore.data.archives import check_file, check_names, is_packed, leaving_archives
from lrcore.data.declared import check_card, check_folder
from lrcore.data.rows import documents_of
from lrcore.errors import InputError
from lrcore.places import check_links, place_of
from lrcore.shortage import raise_shortage

# The most characters read of a split: about 15 M tokens, ten times any published calibration.
CHARACTERS = 64_000_000
_DOWNLOAD = 2_000_000_000  # bytes; a larger repository (C4 has 300 GB) is streamed
_FILES = 10_000  # of a local folder
_TIMEOUT = 20  # seconds for the hub's first answer
_FORM = "owner/name, owner/name:config or owner/name:config:split"
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_STRANGE = re.compile(r"[/\\@?#%<>|*\"]")  # in no config and no split: parts of an address or path
_INSTEAD = "Built-in data (stories, python-docs) and local files need no network."


def read(data: str, role: str, revision: str | None = None) -> tuple[list[str], str]:
    """The documents of a hub data set, and their source as "name:config:split@commit".

    data: ``name``, ``name:config`` or ``name:config:split``. Rows are read in order, up to the
    first 64 million characters. Raises InputError where the name is malformed or unknown, the hub
    cannot be reached, or no field holds text.
    """
    name, config, split = _parts(data, role)
    commit, bytes_stored = _look_up(name, revision)
    folder = place_of(name)
    rows = _load(
        str(folder) if folder.is_dir() else name,
        config,
        split,
        commit or revision,
        stream=bytes_stored > _DOWNLOAD,
    )
    source = f"{name}:{config or 'default'}:{split}" + (
        f"@{commit or revision}" if commit or revision else ""
    )
    return documents_of(rows, source), source


def rows(name: str, config: str | None, split: str, count: int | None = None) -> list[dict]:
    """The first `count` rows of a hub data set, up to 64 million characters, with an image as
    {"bytes", "path"}. Raises InputError as `read` does.
    """
    commit, bytes_stored = _look_up(name, None)
    folder = place_of(name)
    place = str(folder) if folder.is_dir() else name
    return _load(place, config, split, commit, bytes_stored > _DOWNLOAD, count)


def _parts(data: str, role: str) -> tuple[str, str | None, str]:
    name, *rest = data.split(":")
    if len(rest) > 2 or not name or " " in data or any(map(_STRANGE.search, rest)):
        raise InputError(f"Cannot read the data set name '{data}'. A hub data set is {_FORM}.")
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or ("test" if role == "test" else "train")


def _look_up(name: str, revision: str | None) -> tuple[str | None, int]:
    """Commit and stored bytes.

    Called first because its failures are exact and quick; `datasets` retries for half a minute.
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
        return None, 0  # `datasets` may still have a copy in its cache
    except errors.GatedRepoError as error:
        raise InputError(
            f"The hub data set '{name}' is gated. Accept its terms on the hub and log in with a "
            f"token. {_INSTEAD}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"The hub data set '{name}' has no revision '{revision}'. Give a branch, tag or "
            "commit of it, or none."
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise _unknown(name) from error
    except Exception as error:  # the network library's errors, whose names change with versions
        raise_shortage(error)
        raise InputError(
            f"'{name}' is no built-in name and no local file, so it was looked for on the hub, "
            f"which cannot be reached ({_first_line(error)}). Check the name, the network and "
            f"HF_ENDPOINT; with a copy in the cache, set HF_HUB_OFFLINE=1. {_INSTEAD}"
        ) from error
    check_card(name, info.card_data.to_dict() if info.card_data else None)
    return info.sha, info.used_storage or 0


def _unknown(name: str) -> InputError:
    return InputError(
        f"Unknown data set '{name}': it is no built-in name, no local file, and the hub has no "
        "public data set of that name. Check the spelling; a private one needs a token; a file "
        f"needs its extension. {_INSTEAD}"
    )


def _check_folder(name: str, folder: Path) -> None:
    """Raise InputError for a folder of so many files that listing them would take minutes, and for
    one whose card or links lead out of it.
    """
    count = 0
    for place, _, names in os.walk(folder):
        count += len(names)
        if count > _FILES:
            raise InputError(
                f"'{name}' is a folder with more than {_FILES:,} files, which is no data set of "
                f"`datasets`. Name one file, or the folder that holds the text. {_INSTEAD}"
            )
        for file in names:
            check_file(name, Path(place) / file)
    check_links(folder)
    check_folder(name, folder)


def _load(
    name: str,
    config: str | None,
    split: str,
    revision: str | None,
    stream: bool,
    count: int | None = None,
) -> list[dict]:
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if name in _PACKAGED_DATASETS_MODULES:  # a reader, which would read the present folder
        raise _unknown(name)
    try:
        found = _opened(name, config, split, revision, stream)
        for column, kind in (found.features or {}).items():
            if isinstance(kind, datasets.Image):
                found = found.cast_column(column, datasets.Image(decode=False))
        return _first_rows(found, count)
    except InputError:
        raise
    except Exception as error:  # of many libraries: the network's, the parsers', datasets' own
        raise_shortage(error)
        # `datasets` names the configs or splits that exist in the first line of its own message.
        what = f"'{name}' (config {config or 'default'}, split {split})"
        raise InputError(
            f"Cannot load the hub data set {what}: {_first_line(error)} Give it as {_FORM}. "
            f"{_INSTEAD}"
        ) from error


def _opened(name: str, config: str | None, split: str, revision: str | None, stream: bool) -> Any:
    """A split of `datasets`, no file of which was unpacked; compressed ones are read as streams.

    Raises InputError where one is an archive.
    """
    import datasets

    whole = leaving_archives()
    builder = datasets.load_dataset_builder(name, config, revision=revision, download_config=whole)
    files = [file for some in (builder.config.data_files or {}).values() for file in some]
    check_names(name, files)
    if stream or any(map(is_packed, files)):
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare(download_config=whole)
    return builder.as_dataset(split=split)


def _first_rows(rows: Iterable[dict], count: int | None = None) -> list[dict]:
    kept, characters = [], 0
    for row in islice(rows, count):
        kept.append(row)
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if characters >= CHARACTERS:
            break
    return kept


def _first_line(error: Exception) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
