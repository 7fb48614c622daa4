"""Rows of tokens and scored tokens of a text, by the protocols of `PROTOCOLS`."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..data import (
    Texts,
    Tokenized,
    answers,
    apart_from,
    file_and_split,
    has_generation_tags,
    is_rendered,
    load_test_texts,
    make_windows,
    overlapping,
    template_key,
    tokenize,
    tokenize_all,
    with_bos,
)
from ..models.kv_cache import check_kv_bits
from ..models.load import LoadedModel
from ..recipes.history import texts_seen
from ..system.errors import InputError
from ..system.settings import BOS, check_settings
from .evaluation_settings import DEFAULT_LENGTH, EvaluationSettings, Protocol, find_protocol

# Tokens [t] of a forward pass, and the number of scored tokens at the end (at most t - 1).
Row = tuple[Tensor, int]


@dataclass(frozen=True, eq=False)
class Passages:
    """The rows of a protocol.

    protocol: all settings and data that the rows depend on, as plain values. bytes, words: size of
    the text of the scored tokens; None if not counted. overlapping: fingerprints of the texts that
    share content with the scored text.
    """

    rows: list[Row]
    protocol: dict[str, Any]
    bytes: int | None = None
    words: int | None = None
    overlapping: frozenset[str] = frozenset()

    def protocol_for(self, model: LoadedModel) -> dict[str, Any]:
        """Return the protocol, with "on_calibration_text" if the model was calibrated or trained on
        a part of the text.
        """
        seen = self.overlapping & texts_seen(model.history)
        return self.protocol | ({"on_calibration_text": True} if seen else {})


@dataclass(frozen=True)
class _Source:
    """Argument of the functions in `_CUTS`, which cut a text into rows."""

    model: LoadedModel
    texts: Texts
    settings: EvaluationSettings
    protocol: Protocol


def use_held_out(models: Sequence[LoadedModel], settings: EvaluationSettings) -> EvaluationSettings:
    """Replace a file by its held-out tail if a model was calibrated or trained on the file.

    Raises InputError if the text cannot be read.
    """
    texts = _read(models, settings.data)
    return replace(settings, data=texts.source) if texts.part else settings


def _read(models: Sequence[LoadedModel], data: str) -> Texts:
    """Read the text to score: the held-out tail of a file without a split if a model was
    calibrated or trained on the file.
    """
    seen = texts_seen([step for model in models for step in model.history])
    texts = load_test_texts(data)
    return texts if file_and_split(data)[1] else apart_from(texts, seen)


def make_passages(
    model: LoadedModel, settings: EvaluationSettings, *compared: LoadedModel
) -> Passages:
    """Return the rows of a protocol. compared: further models that score the same rows.

    If a model was calibrated on a file, the rows are from the held-out tail of the file. Raises
    InputError if the protocol does not support a setting, a value is out of range, the text cannot
    be read, is too short, or has tokens outside the vocabulary of the model.
    """
    protocol = find_protocol(settings.protocol)
    if settings.stride is not None and protocol.kind != "strided":
        raise InputError(
            f"stride = {settings.stride} does not apply to protocol '{protocol.name}'. Use "
            "protocol 'strided'."
        )
    if protocol.kind != "windows" and settings.sampling != "first":
        raise InputError(
            f"sampling '{settings.sampling}' does not apply to protocol '{protocol.name}', which "
            "scores all windows in order. Use protocol 'windows'."
        )
    if protocol.seq_len is not None and settings.seq_len is not None:
        raise InputError(
            f"seq_len = {settings.seq_len} does not apply to protocol '{protocol.name}', which "
            "has a fixed length. Use protocol 'windows'."
        )
    check_settings(settings)
    if protocol.kind != "windows" and settings.bos != BOS[0]:
        raise InputError(
            f"bos '{settings.bos}' does not apply to protocol '{protocol.name}', which defines the "
            "special tokens. Use protocol 'windows'."
        )
    if settings.kv_bits is not None:
        check_kv_bits(settings.kv_bits)
        if compared:
            raise InputError(
                "Comparisons do not support kv_bits, because they use no cache. Use `evaluate` for "
                "a single model, or a sweep for several models."
            )
    texts = _read((model, *compared), settings.data)
    if protocol.kind not in ("windows", "answers"):
        texts = texts.as_plain_text(
            f"Use protocol windows or assistant: protocol '{protocol.name}' reads"
        )
    passages = _CUTS[protocol.kind](_Source(model, texts, settings, protocol))
    model.check_tokens(max((int(tokens.max()) for tokens, _ in passages.rows), default=0))
    cache_entry = {} if settings.kv_bits is None else {"kv_bits": settings.kv_bits}
    return replace(
        passages, protocol=passages.protocol | cache_entry, overlapping=overlapping(texts)
    )


def _windows(source: _Source) -> Passages:
    model, settings = source.model, source.settings
    length = settings.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    windows = make_windows(
        source.texts, model.tokenizer, settings.samples, length, settings.sampling, settings.seed
    )
    windows = with_bos(windows, source.texts, model.tokenizer, settings.bos)
    rows = [(tokens, length - 1) for tokens in windows.tokens]
    protocol = {"name": source.protocol.name} | windows.protocol | _row_counts(rows)
    return Passages(rows, protocol, windows.predicted_bytes)


def _blocks(source: _Source) -> Passages:
    model, protocol = source.model, source.protocol
    assert protocol.seq_len is not None
    assert protocol.join is not None
    documents = source.texts.documents[: protocol.documents]
    texts = replace(source.texts, documents=documents, join=protocol.join)
    text = tokenize_all(texts, model.tokenizer, special_tokens=True)
    length = min(protocol.seq_len, model.context or protocol.seq_len)
    limits = [n for n in (protocol.windows, source.settings.samples) if n is not None]
    starts = range(0, len(text.ids) - length + 1, length)[: min(limits, default=None)]
    if not starts:
        raise InputError(
            f"{texts.name} has {len(text.ids)} tokens, fewer than one window of {length} "
            f"('{protocol.name}'). Use a longer text."
        )
    rows = [(text.ids[start : start + length], length - 1) for start in starts]
    spans = [(start + 1, start + length) for start in starts]
    entries = _protocol_entries(replace(source, texts=texts), text, length, rows)
    return Passages(rows, entries, _bytes(text, spans))


def _strided(source: _Source) -> Passages:
    model, texts, settings = source.model, source.texts, source.settings
    length = settings.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    stride = settings.stride or max(1, length // 2)
    if length < 2 or not 1 <= stride < length:
        raise InputError(
            f"stride must be from 1 to seq_len - 1; got {stride} with seq_len {length}."
        )
    text = tokenize_all(texts, model.tokenizer)
    if len(text.ids) < 2:
        raise InputError(
            f"{texts.name} has {len(text.ids)} tokens; at least 2 are needed. Use a longer text."
        )
    spans = list(stride_spans(len(text.ids), length, stride))[: settings.samples]
    rows = [(text.ids[first:last], scored) for first, last, scored in spans]
    byte_count = _bytes(text, [(last - scored, last) for _, last, scored in spans])
    return Passages(rows, _protocol_entries(source, text, length, rows, stride=stride), byte_count)


def stride_spans(tokens: int, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, scored) for each window, which contains the tokens first to last - 1.

    The last `scored` tokens of a window are predicted; each token but the first is predicted once.
    tokens: length of the text. length: maximum length of a window.
    """
    first, reached = 0, 1
    while reached < tokens:
        last = min(first + length, tokens)
        yield first, last, last - reached
        first, reached = first + stride, last


def _documents(source: _Source) -> Passages:
    model, texts, settings = source.model, source.texts, source.settings
    length = _context_length(source)
    texts = replace(texts, documents=texts.documents[: settings.samples])
    prefix, available = prefix_token(model), 0
    rows: list[Row] = []
    for document in texts.documents:
        ids = tokenize(document, model.tokenizer).ids
        available += len(ids)
        rows += [(part, scored) for part, scored in rolling_windows(ids, prefix, length)]
    entries = _protocol_entries(replace(source, texts=texts), None, length, rows)
    entries |= {
        "prefix_token": model.tokenizer.convert_ids_to_tokens(prefix),
        "tokens_available": available,
    }
    byte_count = sum(len(document.encode("utf-8", "surrogatepass")) for document in texts.documents)
    # lm-eval counts an empty word for whitespace at either end of a document
    words = sum(len(re.split(r"\s+", document)) for document in texts.documents)
    return Passages(rows, entries, byte_count, words)


def _context_length(source: _Source) -> int:
    """Return the maximum length of a row of a document.

    Raises InputError if it exceeds the context, or if the model has no context length.
    """
    model, length = source.model, source.settings.seq_len or source.model.context
    if length is None:
        raise InputError(
            f"'{model.name}' has no context length. Set seq_len for protocol "
            f"'{source.protocol.name}'."
        )
    model.check_length(length)
    return length


def _answers(source: _Source) -> Passages:
    tokenizer, texts, length = source.model.tokenizer, source.texts, _context_length(source)
    if not is_rendered(texts, tokenizer):
        raise InputError(
            f"Protocol '{source.protocol.name}' reads conversations and a tokenizer with a chat "
            f"template, but {texts.name} is plain text for this model. Use protocol windows, or a "
            "data set with messages."
        )
    texts = replace(texts, documents=texts.documents[: source.settings.samples], join="")
    rows: list[Row] = []
    available, byte_count = 0, 0
    for conversation in texts.conversations[: len(texts.documents)]:
        for answer in answers(tokenizer, json.loads(conversation)):
            ids, scored = answer.text.ids, answer.scored
            rows += answer_windows(ids, scored, length)
            available += scored
            byte_count += answer.text.bytes(len(ids) - scored, len(ids)) or 0
    if not rows:
        raise InputError(
            f"{texts.name} has no answer of the assistant after another message. Choose other data."
        )
    entries = _protocol_entries(source, None, length, rows) | {
        "join": "",
        "documents": len(texts.documents),
        "chat_template": template_key(tokenizer),
        "long_conversations": "answers in parts of at most half a window",
        "assistant_tokens": "marked" if has_generation_tags(tokenizer) else "after the prompt",
        "tokens_available": available,
    }
    return Passages(rows, entries, byte_count if tokenizer.is_fast else None)


def answer_windows(ids: Tensor, scored: int, length: int) -> Iterator[Row]:
    """Yield windows [t], t <= length, that score each of the last `scored` tokens of `ids` once.

    A conversation that fits is a single window. Otherwise a window scores at most half of its
    tokens, and earlier messages are cut off.
    """
    count = scored if len(ids) <= length else max(1, length // 2)
    position = len(ids) - scored
    while position < len(ids):
        last = min(position + count, len(ids))
        yield ids[max(0, last - length) : last], last - position
        position = last


def prefix_token(model: LoadedModel) -> int:
    """Return the token before a document, as in lm-eval: the bos token, or else the eos token.

    Raises InputError if the tokenizer has neither.
    """
    tokenizer = model.tokenizer
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if token is None:
        raise InputError(
            f"The tokenizer of '{model.name}' has no beginning-of-text or end-of-text token. Use "
            "a protocol other than lm-eval-word."
        )
    return int(token)


def rolling_windows(ids: Tensor, prefix: int, length: int) -> Iterator[Row]:
    """Yield windows [t], t <= length + 1, that score each token of a document, ids [n], once.

    The first window starts with `prefix`, and each further window with the token before its scored
    tokens. If fewer than `length` tokens remain for the last window, more of the preceding tokens
    fill it up; they are read but not scored.
    """
    tokens_with_prefix = torch.cat((torch.tensor([prefix]), ids))
    position = 0
    while position < len(ids):
        scored = min(length, len(ids) - position)
        first = 0 if position == 0 else position + scored - length if scored < length else position
        yield tokens_with_prefix[first : position + scored + 1], scored
        position += scored


def _protocol_entries(
    source: _Source, text: Tokenized | None, length: int, rows: list[Row], **extra: Any
) -> dict[str, Any]:
    """Return the protocol as plain values. text: all documents, if tokenized together."""
    model, texts = source.model, source.texts
    special = source.protocol.kind == "blocks"
    return {
        "name": source.protocol.name,
        "source": texts.source,
        "fingerprint": texts.fingerprint,
        "join": texts.join,
        "documents": len(texts.documents),
        "special_tokens": special,
        "special_tokens_added": model.tokenizer.num_special_tokens_to_add() if special else 0,
        "tokens_available": None if text is None else len(text.ids),
        "seq_len": length,
        "sampling": "first",
        "seed": None,
        "samples_asked": source.settings.samples,
        "samples": len(rows),
        **texts.remarks,
        **extra,
        **_row_counts(rows),
    }


def _row_counts(rows: list[Row]) -> dict[str, int]:
    return {"windows": len(rows), "tokens": sum(len(tokens) for tokens, _ in rows)}


def _bytes(text: Tokenized, spans: list[tuple[int, int]]) -> int | None:
    """Return the bytes of the spans [first, last); None for a tokenizer without offsets."""
    return None if text.ends is None else sum(text.bytes(*span) or 0 for span in spans)


_CUTS = {
    "windows": _windows,
    "blocks": _blocks,
    "strided": _strided,
    "documents": _documents,
    "answers": _answers,
}
