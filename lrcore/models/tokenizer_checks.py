"""Checks of tokenizer files before their library reads them.

The library allocates tables as long as the token ids in a file, and texts as long as its rules make
them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..data.text_growth import Part, growth, growth_of, most_added
from ..system.errors import InputError

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json")
MAX_TOKENS = 2**24  # tokens of a vocabulary; the largest have 2**18
MAX_TOKEN_BYTES = 10_000  # bytes of a token, or of the prefix of a continued token
MAX_GROWTH = (
    256.0  # factor by which a text may grow; 12 in the supported families, see text_growth.py
)
MAX_ADDED_TOKENS = 1000  # tokens added to a text
# Keys with a number of eight digits or more; in a text, a backslash precedes the quote.
_LARGE = re.compile(rb'(?<!\\)"\s*:\s*([0-9]{8,})')
LENGTH_KEY = b'"max_length'  # of a text, which is not limited
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# A tokenizer without vocabulary. The library reads components in all its formats, including older
# ones without field names, and writes them in a single format.
EMPTY_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}
REMEDY = "The file is damaged: copy it again."


def check_vocabulary(folder: Path) -> None:
    """Raise InputError for tokenizer files with impossible token ids, padding, tokens or rules.

    A token must not be as long as a text, and a text of usual length must not grow to a length that
    exhausts the memory.
    """
    for name in FILES:
        file = folder / name
        text = file.read_bytes() if file.is_file() else b""
        for match in _LARGE.finditer(text):
            number, begin = match[1][:20].decode(), match.start()
            if int(number) > MAX_TOKENS and not text.endswith(LENGTH_KEY, 0, begin):
                raise InputError(
                    f"'{file}' has the number {number}, which exceeds any vocabulary. {REMEDY}"
                )
        if name == FILES[0]:
            _check_texts(file, text)


def check_growth(tokenizer: Any, folder: Path) -> None:
    """Raise InputError if a tokenizer makes texts too long."""
    times = growth_of(tokenizer)
    if times > MAX_GROWTH:
        raise InputError(f"The tokenizer in '{folder}' {_growth_problem(times)}. {REMEDY}")


def _check_texts(file: Path, text: bytes) -> None:
    """Raise InputError for rules that make texts too long, and for tokens that are too long.

    Files that the library cannot read are skipped, since it refuses them.
    """
    try:
        tokenizer = json.loads(text)
        parts = {name: tokenizer.get(name) for name in PARTS}
        read = json.loads(
            Tokenizer.from_str(json.dumps(EMPTY_TOKENIZER | parts, allow_nan=False)).to_str()
        )
        sizes = (len(token.encode("utf-8", "replace")) for token in _tokens(tokenizer))
        longest = max(sizes, default=0)
    except Exception:  # of the library, or values of unexpected types
        return
    if problem := _text_problem(read) or _token_problem(longest):
        raise InputError(f"'{file}' {problem}. {REMEDY}")


def _text_problem(read: Part) -> str:
    """Return how a tokenizer, as the library writes it, makes texts too long; "" if it does not."""
    before = growth(*(read[name] for name in ("normalizer", "pre_tokenizer", "post_processor")))
    times = max(before, growth(read["decoder"]))
    if times > MAX_GROWTH:
        return _growth_problem(times)
    added = most_added(read["post_processor"])
    return (
        f"adds {added:,} tokens to each text, which is too many" if added > MAX_ADDED_TOKENS else ""
    )


def _token_problem(longest: int) -> str:
    if longest <= MAX_TOKEN_BYTES:
        return ""
    return f"has a token of {longest:,} bytes, which exceeds the token length of any vocabulary"


def _growth_problem(times: float) -> str:
    return f"makes a text up to {times:.3g} times as long, which is too much"


def _tokens(tokenizer: Part) -> Iterator[str]:
    """Yield all tokens of a tokenizer.json, and the strings that tokens are made of."""
    model = tokenizer["model"]
    vocab = model["vocab"]
    yield from vocab if isinstance(vocab, Mapping) else (token for token, *_ in vocab)
    yield from (token["content"] for token in tokenizer.get("added_tokens") or ())
    for part in (model, tokenizer.get("padding") or {}, tokenizer.get("decoder") or {}):
        yield from (value for value in part.values() if isinstance(value, str))
