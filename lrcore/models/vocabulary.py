"""Numbers in the files of a tokenizer, looked at before its library makes tables as long."""

import re
from pathlib import Path

from ..errors import InputError

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json")
MOST = 2**24  # tokens of a vocabulary; the largest have a quarter of a million
# Keys with a number of eight digits or more; in a text a quote has a backslash before it.
_LARGE = re.compile(rb'(?<!\\)"\s*:\s*([0-9]{8,})')
LENGTH = b'"max_length'  # of a text, which may be any


def check_vocabulary(folder: Path) -> None:
    """Raise InputError where a token of a tokenizer has a number that no vocabulary has, or a text
    is to be filled up to such a length.
    """
    for name in FILES:
        file = folder / name
        text = file.read_bytes() if file.is_file() else b""
        for found in _LARGE.finditer(text):
            number, begin = found[1][:20].decode(), found.start()
            if int(number) > MOST and not text.endswith(LENGTH, 0, begin):
                raise InputError(
                    f"'{file}' has the number {number}, and no vocabulary is so large. The file is "
                    "damaged or made up: copy it again."
                )
