"""Token windows: the samples of calibration and evaluation."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lrcore.data.texts import Texts
from lrcore.data.tokens import tokenise_all
from lrcore.errors import InputError, check_tokens_held, unknown

SAMPLINGS = ("first", "random")


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, [n, seq_len] int64, n >= 1.

    starts [n]: place of each window's first token in the text. protocol: JSON-able, everything that
    the windows depend on. key: sha256 (hex) of shape and tokens. predicted_bytes: UTF-8 bytes of
    all tokens but the first of each window; None where the tokenizer gives no offsets.
    """

    tokens: Tensor
    starts: Tensor
    protocol: dict[str, Any]
    key: str
    predicted_bytes: int | None = None


def make_windows(
    texts: Texts,
    tokenizer: Callable[..., Any],
    samples: int | None,
    seq_len: int,
    sampling: str = "random",
    seed: int = 0,
) -> Windows:
    """Windows of ``seq_len`` tokens from the documents, tokenised as one text.

    No special tokens are added. sampling "first": the first ``samples`` non-overlapping windows,
    fewer where the text ends (a partial window is left out). sampling "random": ``samples`` windows
    at random offsets, drawn with replacement by a generator of ``seed``. samples None: all
    non-overlapping windows in order, whatever the sampling. samples >= 1, seq_len >= 2. tokenizer:
    called as a transformers tokenizer is.
    Raises InputError for values out of range and for a text shorter than one window.
    """
    _check(samples, seq_len, sampling, seed)
    text = tokenise_all(texts, tokenizer)
    available = len(text.ids)
    if available < seq_len:
        shorter = f"Use seq_len <= {available} or a longer text."
        raise InputError(
            f"{texts.source} has {available} tokens, fewer than one window of seq_len = {seq_len}. "
            f"{shorter if available >= 2 else 'Choose a longer text.'}"
        )
    drawn = "first" if samples is None else sampling
    if drawn == "random" and samples is not None:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(available - seq_len + 1, (samples,), generator=generator)
    else:
        starts = torch.arange(0, available - seq_len + 1, seq_len)[:samples]
    tokens = text.ids[starts[:, None] + torch.arange(seq_len)]  # [n, seq_len]
    protocol = {
        "source": texts.source,
        "fingerprint": texts.fingerprint,
        "join": texts.join,
        "special_tokens": False,
        "tokens_available": available,
        "seq_len": seq_len,
        "sampling": drawn,
        "seed": seed if drawn == "random" else None,
        "samples_asked": samples,
        "samples": len(tokens),
    } | ({"part": texts.part} if texts.part else {})
    counted = None
    if text.ends is not None:
        counted = sum(text.bytes(at + 1, at + seq_len) or 0 for at in starts.tolist())
    return Windows(tokens, starts, protocol, key_of(tokens), counted)


def windows_aside(
    texts: Texts, tokenizer: Callable[..., Any], windows: Windows, samples: int
) -> Tensor:
    """Windows of the text that share no token with `windows`, which were made of it, nor with each
    other: [n, seq_len], in order, n <= samples, 0 where no gap is as long as a window.

    Of all that fit they are spread evenly over the text.
    """
    ids, length = tokenise_all(texts, tokenizer).ids, windows.tokens.shape[1]
    free = torch.ones(len(ids) + 2, dtype=torch.int8)
    free[0] = free[-1] = 0  # so that a gap has both ends
    for start in windows.starts.tolist():
        free[start + 1 : start + 1 + length] = 0
    turns = free.diff()
    begins, ends = (turns == 1).nonzero().flatten(), (turns == -1).nonzero().flatten()
    starts = torch.cat(
        [
            torch.arange(begin, end - length + 1, length)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            if end - begin >= length
        ]
        or [torch.zeros(0, dtype=torch.long)]
    )
    if len(starts) > samples:
        starts = starts[torch.arange(samples) * len(starts) // samples]
    return ids[starts[:, None] + torch.arange(length)]


def key_of(tokens: Tensor) -> str:
    """sha256 (hex) of shape and ids of windows [n, t], the same on every machine."""
    ids = tokens.cpu().numpy().astype("<i8")
    return hashlib.sha256(repr(tuple(tokens.shape)).encode() + ids.tobytes()).hexdigest()


def _check(samples: int | None, seq_len: int, sampling: str, seed: int) -> None:
    if sampling not in SAMPLINGS:
        raise unknown("sampling", str(sampling), SAMPLINGS)
    if type(seq_len) is not int or seq_len < 2:
        raise InputError(
            f"seq_len = {seq_len!r}: a window needs at least 2 tokens, one to read and one to "
            "predict. Give a whole number >= 2."
        )
    if samples is not None and (type(samples) is not int or samples < 1):
        raise InputError(
            f"samples = {samples!r}: give a whole number >= 1, or None for all windows."
        )
    if sampling == "random" and samples is not None:
        check_tokens_held(samples, seq_len)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed!r}: give a whole number from 0 to 2^63 - 1.")
