"""Tokens of a long text from the tokens of its distinct words.

Byte-level tokenizers with the pattern of GPT-2 (also OPT and SmolLM2) split a text into words and
encode each word on its own. A text repeats its words, so each distinct word is encoded once. The
tokens are those of the complete text, because all its characters are compared with what the
tokenizer takes them for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import regex
import tokenizers
import torch
from numpy.typing import NDArray

from .tokenized import Tokenized, bytes_before

MIN_TEXT = 2**18  # characters; a shorter text repeats few words
BLOCK = 2**18  # characters that are split at a time
MAX_WORDS = 2**18  # distinct words in memory, some 50 MB; a larger number is forgotten
_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_WORD_END = regex.compile(r"\p{L}(?!\p{L})")  # a text is split behind each of these letters
_LETTER, _NUMBER, _SPACE = (regex.compile(kind) for kind in (r"\p{L}", r"\p{N}", r"\s"))
_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}

Encode = Callable[[Sequence[str]], Sequence[tokenizers.Encoding]]


def can_tokenize_words(text: str, tokenizer: Any) -> bool:
    """Return whether `tokenize_words` yields the tokens of a text."""
    if len(text) < MIN_TEXT or not getattr(tokenizer, "is_fast", False):
        return False
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    split, model = state["pre_tokenizer"] or {}, state["model"]
    if (
        {name: split.get(name) for name in _SPLIT} != _SPLIT
        or (state["normalizer"], state["truncation"], state["padding"]) != (None, None, None)
        or model["type"] != "BPE"
        or model["dropout"]
        or any(token["content"] in text for token in state["added_tokens"])
    ):
        return False
    return all(_has_its_kind(character, backend.pre_tokenizer) for character in set(text))


def _has_its_kind(character: str, pre_tokenizer: Any) -> bool:
    """Return whether the tokenizer and `_WORDS` agree on what a character is.

    Their tables may be of different versions of Unicode.
    """
    if "\ud800" <= character <= "\udfff":
        return False  # half of a character, which a tokenizer refuses
    kinds = [bool(kind.match(character)) for kind in (_LETTER, _NUMBER, _SPACE)]
    # a character continues a word of its own kind only
    letter, number, other = (
        len(pre_tokenizer.pre_tokenize_str(before + character)) == 1 for before in ("a", "1", "!")
    )
    return [letter, number, not (letter or number or other)] == kinds


def tokenize_words(text: str, encode: Encode) -> Iterator[Tokenized]:
    """Yield the tokens of consecutive blocks of a text that `can_tokenize_words` allows, int32.

    encode(words) encodes each word, without special tokens.
    """
    words = _Words(encode)
    start = 0
    while start < len(text):
        end = _WORD_END.search(text, start + BLOCK)
        stop = len(text) if end is None else end.end()
        yield words.tokens(_WORDS.findall(text, start, stop))
        start = stop


class _Words:
    """Distinct words in the order of their first use, and their tokens.

    The tokens are joined over the words. first [w + 1]: position of the first token of each word.
    ends: bytes from the begin of the word to the end of each token. size [w]: bytes of each word.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def _forget(self) -> None:
        self._number: dict[str, int] = {}
        self._ids, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)
        self._first, self._size = np.zeros(1, np.int64), np.empty(0, np.int64)

    def tokens(self, words: Sequence[str]) -> Tokenized:
        """Return the tokens of consecutive words."""
        if len(self._number) > MAX_WORDS:
            self._forget()
        new = [word for word in dict.fromkeys(words) if word not in self._number]
        if new:
            self._add(new)
        number = np.fromiter(map(self._number.__getitem__, words), np.int64, len(words))
        counts = self._first[number + 1] - self._first[number]
        place = np.arange(counts.sum()) + np.repeat(self._first[number] - _begins(counts), counts)
        ends = self._ends[place] + np.repeat(_begins(self._size[number]), counts)
        ends = np.maximum.accumulate(ends)
        return Tokenized(torch.from_numpy(self._ids[place]).int(), torch.from_numpy(ends).int())

    def _add(self, words: Sequence[str]) -> None:
        known, encodings = len(self._number), self._encode(words)
        self._number.update((word, known + i) for i, word in enumerate(words))
        ids = [encoding.ids for encoding in encodings]
        counts = np.array([len(part) for part in ids])
        ends = np.array([end for encoding in encodings for _, end in encoding.offsets])
        lengths = np.array([len(word) for word in words])
        before = bytes_before("".join(words))
        start = _begins(lengths)
        of_token = np.repeat(start, counts)
        self._ids = np.concatenate((self._ids, np.fromiter(chain(*ids), np.int64, len(ends))))
        in_bytes = before[of_token + ends] - before[of_token]
        self._ends = np.concatenate((self._ends, in_bytes))
        self._first = np.concatenate((self._first, self._first[-1] + np.cumsum(counts)))
        self._size = np.concatenate((self._size, before[start + lengths] - before[start]))


def _begins(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of consecutive parts begins, from their sizes [n]."""
    return np.cumsum(sizes) - sizes
