"""The folder that a model is written to: whether it may be, asked at once."""

import os
from pathlib import Path

from ..errors import InputError
from ..files import MARK, check_text
from ..places import expanded


def check_out(folder: str | Path, overwrite: bool = False) -> None:
    """Raise InputError where `save` would refuse the folder: worth asking before a long
    computation, and before torch is imported.
    """
    folder = expanded(folder).absolute()
    check_text(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file. Give a folder to write the compressed model to.")
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (folder / MARK).is_file()
        and not overwrite
    ):
        raise InputError(
            f"'{folder}' is not empty and holds no compressed model (no {MARK}). Choose another "
            "folder, or empty it first."
        )
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"'{folder}' is below the file '{nearest}'. Choose another folder.")
    if not os.access(nearest, os.W_OK):
        raise InputError(
            f"'{folder}' cannot be written: no permission in '{nearest}'. Choose another folder."
        )
