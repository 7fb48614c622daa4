"""What a text file leads to that cannot be read, as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside, a text file is read. Raises InputError in the place of what one leads to that is not
    UTF-8 or cannot be opened.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InputError(
            f"'{path}' is not UTF-8 text ({byte}): it has another encoding or is a binary file. "
            "Save it as UTF-8."
        ) from error
    except OSError as error:
        raise InputError(
            f"Cannot read '{path}': {error.strerror or error}. Check that it is a file and that "
            "you may read it."
        ) from error
