"""One text as tokens, and how many bytes of the text each token reaches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokenised:
    """ids [n] int64.

    ends [n] int64: the UTF-8 bytes of the text up to the end of each token, never falling (a
    special token reaches no further than the one before it); None where the tokenizer gives no
    offsets.
    """

    ids: Tensor
    ends: Tensor | None

    def bytes(self, first: int, last: int) -> int | None:
        """Bytes of the text that the tokens first..last - 1 add to what the tokens before
        `first` reach.
        """
        if self.ends is None:
            return None
        return int(self.ends[last - 1]) - (int(self.ends[first - 1]) if first else 0)


def tokenise(text: str, tokenizer: Callable[..., Any], special_tokens: bool = False) -> Tokenised:
    """The whole text tokenised at once.

    special_tokens: with those that the tokenizer puts around a text, as `tokenizer(text)` does.
    """
    # verbose=False: the text is meant to be longer than the model's context, it is cut into windows
    # afterwards.
    wanted = {"return_offsets_mapping": True} if getattr(tokenizer, "is_fast", False) else {}
    found = tokenizer(text, add_special_tokens=special_tokens, verbose=False, **wanted)
    ids = torch.tensor(found["input_ids"], dtype=torch.long)
    if not wanted or not len(ids):
        return Tokenised(ids, None)
    ends = np.maximum.accumulate(np.array([end for _, end in found["offset_mapping"]]))
    return Tokenised(ids, torch.from_numpy(_bytes_before(text)[ends]))


def _bytes_before(text: str) -> np.ndarray:
    """UTF-8 bytes before each character and at the end, [characters + 1]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate(([0], np.cumsum(sizes)))
