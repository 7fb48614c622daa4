"""One text as tokens, with the byte offset at which each token ends."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lrcore.data.texts import Texts
from lrcore.errors import InputError
from lrcore.memory import free_memory, raise_unless_free
from lrcore.shortage import raise_shortage
from lrcore.text_growth import USUAL, growth_of

PANIC = "PanicException"  # of pyo3, which has no module to import it from
KEPT = 8  # tokenised texts: a million tokens take 16 MB


@dataclass(frozen=True, eq=False)
class Tokenised:
    """A tokenised text: ids [n] int64 and ends [n] int64.

    ends: UTF-8 bytes of the text up to the end of each token, never decreasing (a special token
    ends where the one before it does); None where the tokenizer gives no offsets.
    """

    ids: Tensor
    ends: Tensor | None

    def bytes(self, first: int, last: int) -> int | None:
        """UTF-8 bytes of the tokens first..last - 1; None where the tokenizer gives no offsets."""
        if self.ends is None:
            return None
        return int(self.ends[last - 1]) - (int(self.ends[first - 1]) if first else 0)


def encoded(tokenizer: Callable[..., Any], text: str, **options: Any) -> Any:
    """What a tokenizer makes of a text, as `tokenizer(text, **options)` gives it, without a warning
    where that is beyond the context: texts are cut into windows later.

    Raises InputError where it fails. Patterns come of the author of the model, and one that never
    ends is stopped by a panic of the library, which is no `Exception` and would end a thread.
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
            f"The tokenizer fails on a text of {len(text):,} characters ({type(error).__name__}). "
            "Its files are damaged or made up: copy them again."
        ) from error


def tokenise(text: str, tokenizer: Callable[..., Any], special_tokens: bool = False) -> Tokenised:
    """The whole text tokenised at once.

    special_tokens: with those that the tokenizer adds around a text (add_special_tokens). Raises
    Shortage where the memory does not suffice: beyond it the tokenizer would end the process.
    """
    need = round(PER_CHARACTER * len(text) * max(1.0, growth_of(tokenizer) / USUAL))
    remedy = "Take a part of the text, or free memory."
    raise_unless_free(need, f"The tokens of {len(text):,} characters", remedy, free_memory())
    fast = bool(getattr(tokenizer, "is_fast", False))
    offsets = {"return_offsets_mapping": True} if fast else {}
    found = encoded(tokenizer, text, add_special_tokens=special_tokens, **offsets)
    ids = torch.tensor(found["input_ids"], dtype=torch.long)
    if not fast or not len(ids):
        return Tokenised(ids, None)
    ends = np.maximum.accumulate(np.array([end for _, end in found["offset_mapping"]]))
    return Tokenised(ids, torch.from_numpy(_bytes_before(text)[ends]))


# Bytes of a character on the way to tokens, as 100 MB of stories took: what a fast tokenizer keeps
# of each token, and its place in the text as Python objects.
PER_CHARACTER = 130

_kept: OrderedDict[tuple[str, str, bool], Tokenised] = OrderedDict()
_lock = threading.Lock()


def tokenise_all(
    texts: Texts, tokenizer: Callable[..., Any], special_tokens: bool = False
) -> Tokenised:
    """The documents tokenised as one text.

    The last few are kept, since models of one tokenizer are measured on one text again and again;
    under a key of all that a fast tokenizer holds. The tensors are shared: do not write to them.
    Raises InputError for images, unless the tokenizer is one that `encoder_of` returned.
    """
    if texts.images and not getattr(tokenizer, "reads_images", False):
        raise InputError(
            f"{texts.source} has images, with which models are calibrated and answer tasks. "
            "Perplexity, answers and healing need a data set of text."
        )
    if not getattr(tokenizer, "is_fast", False):
        return tokenise(texts.joined(), tokenizer, special_tokens)
    state = tokenizer.backend_tokenizer.to_str()  # type: ignore[attr-defined]
    key = (hashlib.sha256(state.encode()).hexdigest(), texts.fingerprint, special_tokens)
    with _lock:
        tokenised = _kept.get(key)
    tokenised = tokenised or tokenise(texts.joined(), tokenizer, special_tokens)
    with _lock:
        _kept[key] = tokenised
        _kept.move_to_end(key)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return tokenised


def _bytes_before(text: str) -> NDArray[np.int64]:
    """UTF-8 bytes before each character and at the end, [characters + 1]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate(([0], np.cumsum(sizes)))
