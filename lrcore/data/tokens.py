"""Tokenization of texts, with byte offsets of the token ends."""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from ..system.errors import InputError, unknown
from ..system.files import cache_folder, cache_key
from ..system.memory import free_memory, raise_unless_free
from ..system.resource_errors import raise_shortage
from ..system.settings import BOS
from .chat_template import is_rendered, render, template_key
from .long_conversations import tokenized_parts
from .text_growth import USUAL, growth_of
from .texts import Texts
from .tokenized import Tokenized, bytes_before, keep_tokens, read_tokens
from .word_tokens import BLOCK, can_tokenize_words, tokenize_words

PANIC = "PanicException"  # of pyo3, which does not export it
# Characters that are tokenized at a time. A tokenizer that does not split a text into words takes
# twice as long per character in parts of 2**18 as in parts of 2**14.
PART = 2**15
MAX_FAILURES = 4  # cuts in a row that changed tokens
AROUND = 500  # characters on each side of a cut whose tokens are compared
# Ends of words: a letter before a space and a letter; in a text without spaces, a letter or digit
# before a mark. Apostrophes are part of a word.
_WORD_ENDS = (
    re.compile(r"[^\W\d_](?= [^\W\d_])"),
    re.compile(r"[^\W_](?=[ ,.;:!?/|、。，．：；！？][^\W_])"),
)
WITH_OFFSETS = {"return_offsets_mapping": True, "return_attention_mask": False}
FORMAT = 1  # of the cached files; increase it when the meaning of the contents changes
MIN_STORED = 2**18  # characters of a text in the disk cache; shorter ones take a few tenths of 1 s
MAX_CACHED = 8  # tokenized texts; a million tokens take 16 MB


def encoded(tokenizer: Callable[..., Any], text: str | Sequence[str], **options: Any) -> Any:
    """Return `tokenizer(text, **options)`, of a text or of several, without the warning for texts
    beyond the context.

    Raises InputError if it fails. The author of a model defines the patterns; the library stops an
    endless match with a panic, which is not an `Exception` and would end the thread.
    """
    try:
        return tokenizer(text, verbose=False, **options)
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise_shortage(error)
        raise InputError(
            f"The tokenizer failed on a text of {len(''.join(text)):,} characters "
            f"({type(error).__name__}). The files are damaged: copy them again."
        ) from error


def bos_token(tokenizer: Any, bos: str) -> int | None:
    """Return the beginning-of-text token that a setting of `BOS` puts before a text, or None.

    Raises InputError for another setting, and for "always" if the tokenizer has no such token.
    """
    if bos not in BOS:
        raise unknown("bos", str(bos), BOS)
    token: int | None = None if bos == "never" else tokenizer.bos_token_id
    if bos == "always" and token is None:
        raise InputError(
            "bos is 'always', but the tokenizer has no beginning-of-text token. Use 'auto' or "
            "'never'."
        )
    if bos == "auto" and token is not None and encoded(tokenizer, "a").input_ids[:1] != [token]:
        return None
    return token


def tokenize(text: str, tokenizer: Callable[..., Any], special_tokens: bool = False) -> Tokenized:
    """Tokenize a text.

    special_tokens: add special tokens around the text (add_special_tokens). A long text is
    tokenized in parts, with the tokens of the whole text. Raises ResourceError for a text that is
    too long for the free memory, before the system kills the process.
    """
    if not special_tokens and can_tokenize_words(text, tokenizer):
        return _tokenize_by_words(text, tokenizer)
    parts: Iterable[str] = [text] if special_tokens else _parts(text, tokenizer)
    tokenized, longest = [], 0
    for part in parts:
        if len(part) >= longest:
            _check_memory(len(part), tokenizer)
            longest = len(part)
        tokenized.append(_tokenize_part(part, tokenizer, special_tokens))
    return _joined(tokenized)


def _tokenize_part(text: str, tokenizer: Callable[..., Any], special_tokens: bool) -> Tokenized:
    """Return the tokens of a part.

    Those of a fast tokenizer are int32, unless the part has 2 GiB, and int64 after `_joined`.
    Other tokenizers return ids of images, which do not fit into int32.
    """
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    options = WITH_OFFSETS if is_fast else {}
    encoding = encoded(tokenizer, text, add_special_tokens=special_tokens, **options)
    dtype = np.int32 if is_fast else np.int64
    ids = torch.from_numpy(np.array(encoding["input_ids"], dtype=dtype))
    if not is_fast or not len(ids):
        return Tokenized(ids, None)
    ends = np.maximum.accumulate(np.array([end for _, end in encoding["offset_mapping"]]))
    byte_ends = torch.from_numpy(bytes_before(text)[ends])
    return Tokenized(ids, byte_ends.int() if int(byte_ends[-1]) < 2**31 else byte_ends)


def _tokenize_by_words(text: str, tokenizer: Any) -> Tokenized:
    def encode_each(words: Sequence[str], verbose: bool) -> Any:
        # without lists of masks and types per word, which take as long as the encoding
        return tokenizer.backend_tokenizer.encode_batch(words, add_special_tokens=False)

    _check_memory(BLOCK, tokenizer)
    return _joined(list(tokenize_words(text, partial(encoded, encode_each))))


def _parts(text: str, tokenizer: Callable[..., Any]) -> Iterator[str]:
    """Yield parts of about PART characters; their joined tokens are those of the text.

    The text is cut at ends of words, where tokenizers split a text, and only if the tokens around
    the cut do not change. After a few failures in a row the rest is one part.
    """
    start, position, failures = 0, PART, 0
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    while is_fast and position < len(text) and failures < MAX_FAILURES:
        cut = _word_end(text, position)
        if cut is None:
            position += PART
        elif _is_cut(text, cut, tokenizer):
            yield text[start:cut]
            start, position, failures = cut, cut + PART, 0
        else:
            position, failures = cut, failures + 1
    yield text[start:]


def _word_end(text: str, begin: int) -> int | None:
    """Return the end of the first word in PART characters from `begin`, or None."""
    matches = (pattern.search(text, begin, begin + PART) for pattern in _WORD_ENDS)
    return next((match.end() for match in matches if match), None)


def _is_cut(text: str, cut: int, tokenizer: Callable[..., Any]) -> bool:
    """Return whether the tokens of the text around a position are those of its two sides."""
    sides = text[max(0, cut - AROUND) : cut], text[cut : cut + AROUND]
    left, right, both = (
        encoded(tokenizer, part, add_special_tokens=False).input_ids
        for part in (*sides, "".join(sides))
    )
    return bool(left + right == both)


def _joined(parts: Sequence[Tokenized]) -> Tokenized:
    """Return the tokens of consecutive parts, or of conversations, as those of one text."""
    ids = _concatenated([part.ids for part in parts])
    ends = [part.ends for part in parts if part.ends is not None]
    if len(ends) < len(parts):
        return Tokenized(ids, None)
    joined_ends, position, byte_count = _concatenated(ends), 0, 0
    for part in ends:
        of_part = joined_ends[position : position + len(part)]
        of_part += byte_count
        position, byte_count = position + len(part), int(of_part[-1])
    return Tokenized(ids, joined_ends)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return integers of any width as one int64 tensor."""
    joined = torch.empty(sum(map(len, parts)), dtype=torch.long)
    return torch.cat(tuple(parts), out=joined)


def _check_memory(characters: int, tokenizer: Any) -> None:
    need = round(PER_CHARACTER * characters * max(1.0, growth_of(tokenizer) / USUAL))
    remedy = "Use a part of the text, or free memory."
    raise_unless_free(need, f"The tokens of {characters:,} characters", remedy, free_memory())


# Peak memory per character in bytes, measured with 100 MB of stories: tokens of the library, and
# offsets as Python objects.
PER_CHARACTER = 130

_cached: OrderedDict[str, Tokenized] = OrderedDict()
_lock = threading.Lock()


def tokenize_all(
    texts: Texts,
    tokenizer: Callable[..., Any],
    special_tokens: bool = False,
    length: int | None = None,
) -> Tokenized:
    """Tokenize the documents as a single text, or one by one if a chat template renders them.

    length: tokens of a window; longer conversations are divided, see `tokenized_parts`.

    No special tokens are added to those that the template writes. The last few results are cached
    by text and by the complete state of a fast tokenizer, those of long plain texts also on disk.
    The tensors are shared: do not modify them. Raises InputError for images, unless `encoder_of`
    returned the tokenizer.
    """
    if texts.images and not getattr(tokenizer, "reads_images", False):
        raise InputError(
            f"{texts.name} has images, which calibration and tasks support. Use a data set of "
            "text for perplexity, answers and healing."
        )
    is_chat = is_rendered(texts, tokenizer)

    def compute() -> Tokenized:
        if is_chat:
            return _tokenize_conversations(texts, tokenizer, length)
        return tokenize(texts.joined(), tokenizer, special_tokens)

    if not getattr(tokenizer, "is_fast", False):
        return compute()
    conversations = (template_key(tokenizer), _hash("".join(texts.conversations)), str(length))
    chat = conversations if is_chat else ()
    key = cache_key(*tokenizer_state(tokenizer), texts.fingerprint, special_tokens, *chat)
    with _lock:
        tokenized = _cached.get(key)
    if tokenized is None:
        # A chat template can write the date, so the tokens of conversations are not stored.
        is_stored = not is_chat and sum(map(len, texts.documents)) >= MIN_STORED
        tokenized = stored(key, compute) if is_stored else compute()
    with _lock:
        _cached[key] = tokenized
        _cached.move_to_end(key)
        while len(_cached) > MAX_CACHED:
            _cached.popitem(last=False)
    return tokenized


def tokenizer_state(tokenizer: Any) -> tuple[str | bool, ...]:
    """Return all that the tokens of a fast tokenizer depend on, apart from the text."""
    kind = type(tokenizer)
    return (
        f"{kind.__module__}.{kind.__qualname__}",
        tokenizers.__version__,
        _hash(tokenizer.backend_tokenizer.to_str()),
        bool(getattr(tokenizer, "split_special_tokens", False)),  # not part of the backend's state
    )


def stored(key: str, compute: Callable[[], Tokenized]) -> Tokenized:
    """Return a plain text from the disk cache, or compute and store it.

    key: sha256 of all that the result depends on.
    """
    file = cache_folder() / "tokens" / f"{cache_key(FORMAT, key)}.safetensors"
    text = read_tokens(file)
    if text is None:
        text = compute()
        keep_tokens(file, text)
    return text


def _tokenize_conversations(
    texts: Texts, tokenizer: Callable[..., Any], length: int | None
) -> Tokenized:
    _check_memory(sum(map(len, texts.conversations)), tokenizer)

    def plain(text: str) -> Tokenized:
        return tokenize(text, tokenizer)

    parts: list[Tokenized] = []
    for conversation in texts.conversations:
        messages = json.loads(conversation)
        if length is None:
            parts.append(plain(render(tokenizer, messages)))
        else:
            parts += tokenized_parts(tokenizer, messages, length, plain)
    parts = [part for part in parts if len(part.ids)]
    if not parts:
        raise InputError(f"The chat template renders no text from {texts.name}. Choose other data.")
    lengths = torch.tensor([len(part.ids) for part in parts])
    return replace(_joined(parts), begins=lengths.cumsum(0) - lengths)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
