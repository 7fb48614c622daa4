"""Check of an output folder before a long computation, without imports of torch."""

import os
from pathlib import Path

from ..system.errors import InputError
from ..system.files import MARK, check_utf8
from ..system.path_access import expanded


def check_output_folder(folder: str | Path, overwrite: bool = False) -> None:
    """Raise InputError if `save` would refuse the folder."""
    folder = expanded(folder).absolute()
    check_utf8(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file. Give a folder to write the compressed model to.")
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (folder / MARK).is_file()
        and not overwrite
    ):
        raise InputError(
            f"'{folder}' is not empty and contains no compressed model (no {MARK}). Choose "
            "another folder, or empty it first."
        )
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"'{nearest}', a parent of '{folder}', is a file. Choose another folder.")
    if not os.access(nearest, os.W_OK):
        raise InputError(
            f"'{folder}' cannot be written: no permission in '{nearest}'. Choose another folder."
        )
