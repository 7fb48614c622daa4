"""Archives among the files of a data set: none is opened. `datasets` would unpack whatever begins
like one, by whichever name, without a look at how much that becomes.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lrcore.errors import InputError

_ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar", ".eval")
# Of a single text, which is read as a stream as far as it is needed.
_PACKED = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".lz4")
_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"7z\xbc\xaf\x27\x1c", b"Rar!")
_TAR, _TAR_AT = b"ustar", 257


def is_packed(file: str) -> bool:
    """Whether a file, by its name, is a compressed single one."""
    return file.lower().endswith(_PACKED)


def check_names(name: str, files: Iterable[str]) -> None:
    """Raise InputError where one of a data set's files is an archive by its name."""
    for file in files:
        if file.lower().endswith(_ENDINGS):
            raise _refused(name, file)


def check_file(name: str, file: Path) -> None:
    """Raise InputError where a file of a folder is an archive, by its name or by how it begins."""
    check_names(name, [file.name])
    try:
        with file.open("rb") as opened:
            start = opened.read(_TAR_AT + len(_TAR))
    except OSError:  # who reads the file says so
        return
    if start.startswith(_BEGINNINGS) or start[_TAR_AT:] == _TAR:
        raise _refused(name, file.name)


def leaving_archives() -> Any:
    """A DownloadConfig of `datasets` by which nothing that was downloaded is unpacked."""
    from datasets import DownloadConfig

    class LeavingArchives(DownloadConfig):
        """The readers of `datasets` set this field on a copy."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value if name != "extract_compressed_file" else False)

    return LeavingArchives()


def _refused(name: str, file: str) -> InputError:
    return InputError(
        f"The data set '{name}' holds the archive '{file.rpartition('/')[2][:80]}', which is not "
        "opened. Unpack it and name the file that holds the text, or choose another data set."
    )
