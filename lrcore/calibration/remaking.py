"""What is collected again where its file is damaged: a calibration does not hold the model."""

import weakref
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from safetensors import SafetensorError

from ..errors import InputError
from ..models.load import LoadedModel
from ..shortage import raise_shortage

T = TypeVar("T")
_remaking = RLock()  # one thread of a process at a time


class Again:
    """Collects what is missing in a folder, as long as somebody has the model.

    collect(model): writes the files that are not there, or not whole. Sent to another process, it
    takes the model along, as the place that it was read from.
    """

    def __init__(self, model: LoadedModel | None, collect: Callable[[LoadedModel], object]) -> None:
        self._model = None if model is None else weakref.ref(model)
        self._collect = collect

    def __call__(self) -> None:
        """Collect, or do nothing where the model is gone."""
        model = self._known()
        if model is not None:
            self._collect(model)

    def _known(self) -> LoadedModel | None:
        return None if self._model is None else self._model()

    def __reduce__(self) -> tuple[Any, ...]:
        return Again, (self._known(), self._collect)


def whole(path: Path, read: Callable[[], T | None], again: Again | None) -> T:
    """What `read` gives of a file; where that is None, or the file is gone or cannot be read, it is
    made again, once.

    Raises InputError where that is not possible; the file is deleted, so that the same command
    makes it.
    """
    value = _read(read)
    if value is None:
        with _remaking:
            value = _read(read)  # another thread may have been faster
            if value is None:
                path.unlink(missing_ok=True)
                if again is not None:
                    again()
                    value = _read(read)
    if value is None:
        raise InputError(
            f"'{path.name}' in the cache '{path.parent}' was damaged, or is gone. Start the same "
            "again, which collects it anew."
        )
    return value


def _read(read: Callable[[], T | None]) -> T | None:
    """What `read` gives; None where there is no file, or none that is whole."""
    try:
        return read()
    except (FileNotFoundError, SafetensorError) as error:
        raise_shortage(error)
        return None
