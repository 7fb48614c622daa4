"""The files of a tokenizer, looked at before its library makes tables and texts as long as they
say: numbers, tokens, and what a text may become.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import InputError
from ..text_growth import Part, growth, growth_of, most_added

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json")
MOST = 2**24  # tokens of a vocabulary; the largest have a quarter of a million
LONGEST = 10_000  # bytes of a token, or of what continues one
GROWN = 256.0  # times that a text may become as long; of known families 12, see text_growth.py
ADDED = 1000  # tokens around a text
# Keys with a number of eight digits or more; in a text a quote has a backslash before it.
_LARGE = re.compile(rb'(?<!\\)"\s*:\s*([0-9]{8,})')
LENGTH = b'"max_length'  # of a text, which may be any
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# A tokenizer of nothing, with which the library reads parts in all forms that it takes, and writes
# them in one: it knows older ones, without the names of their fields.
BARE = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}
REMEDY = "The file is damaged or made up: copy it again."


def check_vocabulary(folder: Path) -> None:
    """Raise InputError where a token of a tokenizer has a number that no vocabulary has, or a text
    is to be filled up to such a length; where a token is as long as a text, and where a text of
    usual length could become one that takes all memory.
    """
    for name in FILES:
        file = folder / name
        text = file.read_bytes() if file.is_file() else b""
        for found in _LARGE.finditer(text):
            number, begin = found[1][:20].decode(), found.start()
            if int(number) > MOST and not text.endswith(LENGTH, 0, begin):
                raise InputError(
                    f"'{file}' has the number {number}, and no vocabulary is so large. {REMEDY}"
                )
        if name == FILES[0]:
            _check_texts(file, text)


def check_growth(tokenizer: Any, folder: Path) -> None:
    """The same of a tokenizer that was made of other files. Raises InputError."""
    times = growth_of(tokenizer)
    if times > GROWN:
        raise InputError(f"The tokenizer in '{folder}' {_grown(times)}. {REMEDY}")


def _check_texts(file: Path, text: bytes) -> None:
    """The same for what a tokenizer makes of texts, and texts of tokens. What the library does not
    read is left to it: it refuses the whole file.
    """
    try:
        whole = json.loads(text)
        parts = {one: whole.get(one) for one in PARTS}
        read = json.loads(Tokenizer.from_str(json.dumps(BARE | parts, allow_nan=False)).to_str())
        longest = max((len(one.encode("utf-8", "replace")) for one in _tokens(whole)), default=0)
    except Exception:  # of the library, or values in the places of others
        return
    if told := _much_text(read) or _long_token(longest):
        raise InputError(f"'{file}' {told}. {REMEDY}")


def _much_text(read: Part) -> str:
    """What a tokenizer, as the library writes it, does to texts that none does; "" for nothing."""
    before = growth(*(read[name] for name in ("normalizer", "pre_tokenizer", "post_processor")))
    times = max(before, growth(read["decoder"]))
    if times > GROWN:
        return _grown(times)
    added = most_added(read["post_processor"])
    return f"adds {added:,} tokens to every text, and none has to" if added > ADDED else ""


def _long_token(longest: int) -> str:
    if longest <= LONGEST:
        return ""
    return f"has a token of {longest:,} bytes, and no vocabulary has one so long"


def _grown(times: float) -> str:
    return f"makes a text up to {times:.3g} times as long, and no tokenizer has to"


def _tokens(whole: Part) -> Iterator[str]:
    """All tokens of a tokenizer.json, and what they are made of."""
    model = whole["model"]
    vocab = model["vocab"]
    yield from vocab if isinstance(vocab, Mapping) else (token for token, *_ in vocab)
    yield from (one["content"] for one in whole.get("added_tokens") or ())
    for part in (model, whole.get("padding") or {}, whole.get("decoder") or {}):
        yield from (value for value in part.values() if isinstance(value, str))
