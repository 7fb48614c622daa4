"""Token windows of calibration and evaluation."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..system.errors import InputError, check_tokens_held, unknown
from ..system.settings import BOS
from .chat_template import template_key
from .long_conversations import DIVISION
from .texts import Texts
from .tokenized import Tokenized
from .tokens import bos_token, tokenize_all

SAMPLINGS = ("first", "random")


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, [n, seq_len] int64, n >= 1.

    starts: [n], positions of the first tokens in the text. protocol: JSON-able values that
    determine the windows. key: sha256 (hex) of shape and tokens. predicted_bytes: UTF-8 bytes of
    all tokens except the first of each window; None for tokenizers without offsets.
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
    """Return windows of `seq_len` >= 2 tokens of the documents, tokenized as a single text.

    tokenizer: has the interface of transformers' tokenizers; no special tokens are added, except
    those of a chat template. sampling: "first" for the first `samples` >= 1 non-overlapping
    complete windows, fewer for a short text; "random" for `samples` windows at random offsets with
    replacement, by `seed`. samples None: all non-overlapping windows.

    Windows of conversations begin at the positions of `_chat_positions`. Raises InputError for
    values out of range and for a text shorter than a window.
    """
    _check(samples, seq_len, sampling, seed)
    text = tokenize_all(texts, tokenizer, length=seq_len)
    available = len(text.ids)
    if available < seq_len:
        remedy = f"Use windows of at most {available} tokens, or a longer text."
        raise InputError(
            f"{texts.name} has {available} tokens, fewer than one window of {seq_len} tokens. "
            f"{remedy if available >= 2 else 'Choose a longer text.'}"
        )
    applied = "first" if samples is None else sampling
    positions = _chat_positions(text, seq_len)
    if applied == "random" and samples is not None:
        generator = torch.Generator().manual_seed(seed)
        count = available - seq_len + 1 if positions is None else len(positions)
        starts = torch.randint(count, (samples,), generator=generator)
        starts = starts if positions is None else positions[starts]
    elif positions is None:
        starts = torch.arange(0, available - seq_len + 1, seq_len)[:samples]
    else:
        starts = _without_overlap(positions, seq_len)[:samples]
    tokens = text.ids[starts[:, None] + torch.arange(seq_len)]  # [n, seq_len]
    protocol = {
        "source": texts.source,
        "fingerprint": texts.fingerprint,
        "join": texts.join,
        "special_tokens": False,
        "tokens_available": available,
        "seq_len": seq_len,
        "sampling": applied,
        "seed": seed if applied == "random" else None,
        "samples_asked": samples,
        "samples": len(tokens),
    } | texts.remarks
    if text.begins is not None:
        protocol |= _chat_protocol(tokenizer)
    predicted_bytes = None
    if text.ends is not None:
        predicted_bytes = sum(
            text.bytes(start + 1, start + seq_len) or 0 for start in starts.tolist()
        )
    return Windows(tokens, starts, protocol, key_of(tokens), predicted_bytes)


def _chat_protocol(tokenizer: Any) -> dict[str, str]:
    """Return how conversations become text, as entries of a protocol."""
    rendered = {"join": "", "chat_template": template_key(tokenizer)}
    return rendered | {"long_conversations": DIVISION}


def with_bos(windows: Windows, texts: Texts, tokenizer: Any, bos: str) -> Windows:
    """Return windows of `texts` with the beginning-of-text token by a setting of `BOS`.

    It replaces the last token of a window. Windows that begin with it, as conversations can, are
    unchanged. tokenizer: of the model. Raises InputError as `bos_token` does.
    """
    if bos == BOS[0]:
        return windows
    token = bos_token(tokenizer, bos)
    windows = replace(windows, protocol=windows.protocol | {"bos": bos})
    if token is None:
        return windows
    tokens, byte_count = begin_with(windows.tokens, token), windows.predicted_bytes
    if byte_count is not None:
        length = tokens.shape[1]
        text = tokenize_all(texts, tokenizer, length=length)
        firsts = zip(windows.starts.tolist(), windows.tokens[:, 0].tolist(), strict=True)
        shifts = ((start, int(first != token)) for start, first in firsts)
        byte_count = sum(
            text.bytes(start + 1 - shift, start + length - shift) or 0 for start, shift in shifts
        )
    return replace(windows, tokens=tokens, key=key_of(tokens), predicted_bytes=byte_count)


def begin_with(tokens: Tensor, token: int | None) -> Tensor:
    """Return windows [n, t] that begin with a token and omit the last one, if it is not None.

    Windows that begin with the token are unchanged.
    """
    if token is None:
        return tokens
    shifted = torch.cat((torch.full_like(tokens[:, :1], token), tokens[:, :-1]), 1)
    return torch.where(tokens[:, :1] == token, tokens, shifted)


def windows_aside(
    texts: Texts, tokenizer: Callable[..., Any], windows: Windows, samples: int
) -> Tensor:
    """Return windows of the text that overlap neither `windows` of this text nor each other.

    [n, seq_len] in order, n <= samples, evenly spread over the text; n = 0 if no gap between
    `windows` is long enough.
    """
    length = windows.tokens.shape[1]
    text = tokenize_all(texts, tokenizer, length=length)
    ids = text.ids
    free = torch.ones(len(ids) + 2, dtype=torch.int8)
    free[0] = free[-1] = 0  # limits of the first and the last gap
    for start in windows.starts.tolist():
        free[start + 1 : start + 1 + length] = 0
    positions = _chat_positions(text, length)
    if positions is None:
        starts = _starts_in_gaps(free, length)
    else:
        used = (1 - free[:-1]).cumsum(0)  # [tokens + 1], before each token
        is_free = used[positions + length] - used[positions] == 0
        starts = _without_overlap(positions[is_free], length)
    if len(starts) > samples:
        starts = starts[torch.arange(samples) * len(starts) // samples]
    return ids[starts[:, None] + torch.arange(length)]


def _starts_in_gaps(free: Tensor, length: int) -> Tensor:
    """Return starts of windows without overlap in the gaps of a text.

    free: int8 [tokens + 2], 1 for tokens of a gap, 0 at both ends.
    """
    changes = free.diff()
    begins, ends = (changes == 1).nonzero().flatten(), (changes == -1).nonzero().flatten()
    return torch.cat(
        [
            torch.arange(begin, end - length + 1, length)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            if end - begin >= length
        ]
        or [torch.zeros(0, dtype=torch.long)]
    )


def _chat_positions(text: Tokenized, length: int) -> Tensor | None:
    """Return the positions at which windows of conversations begin; None for plain text.

    A window begins with a conversation, or a part of one, and continues with the next ones. In a
    part of several windows, each complete window of this part is a window as well.
    """
    if text.begins is None:
        return None
    ends = [*text.begins[1:].tolist(), len(text.ids)]
    parts = [
        torch.arange(begin, max(begin + 1, end - length + 1), length)
        for begin, end in zip(text.begins.tolist(), ends, strict=True)
    ]
    positions = torch.cat(parts)
    return positions[positions + length <= len(text.ids)]


def _without_overlap(positions: Tensor, length: int) -> Tensor:
    """Return the first positions [n], in their order, that are at least `length` apart."""
    starts, end = [], 0
    for position in positions.tolist():
        if position >= end:
            starts.append(position)
            end = position + length
    return torch.tensor(starts, dtype=torch.long)


def key_of(tokens: Tensor) -> str:
    """Return the sha256 (hex) of shape and ids of windows [n, t], the same on all machines."""
    ids = tokens.cpu().numpy().astype("<i8")
    return hashlib.sha256(repr(tuple(tokens.shape)).encode() + ids.tobytes()).hexdigest()


def _check(samples: int | None, seq_len: int, sampling: str, seed: int) -> None:
    if sampling not in SAMPLINGS:
        raise unknown("sampling", str(sampling), SAMPLINGS)
    if type(seq_len) is not int or seq_len < 2:
        raise InputError(
            f"seq_len must be a whole number >= 2, got {seq_len!r}: a window predicts the "
            "second token from the first."
        )
    if samples is not None and (type(samples) is not int or samples < 1):
        raise InputError(
            f"samples must be a whole number >= 1 or None for all windows, got {samples!r}."
        )
    if sampling == "random" and samples is not None:
        check_tokens_held(samples, seq_len)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise InputError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}.")
