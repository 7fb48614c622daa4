"""How a text becomes forward passes, and which tokens are scored: the protocols of
`settings.PROTOCOLS`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..data import (
    Texts,
    Tokenised,
    apart_from,
    file_and_split,
    load_texts,
    make_windows,
    overlapping,
    tokenise,
    tokenise_all,
)
from ..errors import InputError
from ..history import texts_seen
from ..models.load import LoadedModel
from ..models.quantised_cache import check_kv_bits
from ..settings import check_settings
from .settings import DEFAULT_LENGTH, EvaluationSettings, Protocol, find_protocol

# Tokens [t] of one forward pass, and how many of the last are scored (at most t - 1).
Row = tuple[Tensor, int]


@dataclass(frozen=True, eq=False)
class Passages:
    """The rows that a protocol scores.

    protocol: JSON-able, everything that the rows depend on. bytes, words: of the text of the scored
    tokens; None where not counted. overlapping: fingerprints of the texts that hold some of it.
    """

    rows: list[Row]
    protocol: dict[str, Any]
    bytes: int | None = None
    words: int | None = None
    overlapping: frozenset[str] = frozenset()

    def described(self, model: LoadedModel) -> dict[str, Any]:
        """The protocol; with "on_calibration_text" where the model was calibrated or trained on
        some of the text.
        """
        seen = self.overlapping & texts_seen(model.history)
        return self.protocol | ({"on_calibration_text": True} if seen else {})


@dataclass(frozen=True)
class _Source:
    """What the rows are cut from: the texts, by a protocol's row and the caller's settings."""

    model: LoadedModel
    texts: Texts
    settings: EvaluationSettings
    row: Protocol


def apart(models: Sequence[LoadedModel], settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with the held-out tail of a file in its place, where one of the models was
    calibrated or trained on the rest. Raises InputError where the text cannot be read.
    """
    texts = _read(models, settings.data)
    return replace(settings, data=texts.source) if texts.part else settings


def _read(models: Sequence[LoadedModel], data: str) -> Texts:
    """The text to score: of a file without a split, the held-out tail where one of the models was
    calibrated or trained on the rest.
    """
    seen = texts_seen([step for model in models for step in model.history])
    texts = load_texts(data, role="test")
    return texts if file_and_split(data)[1] else apart_from(texts, seen)


def make_passages(
    model: LoadedModel, settings: EvaluationSettings, *others: LoadedModel
) -> Passages:
    """The rows that a protocol scores; others: models that are to score the same rows.

    Of a file that one of the models was calibrated on, the held-out tail.

    Raises InputError where the protocol does not have a setting or a value is out of range, and
    where the text is too short, cannot be read, or has tokens that the model does not know.
    """
    row = find_protocol(settings.protocol)
    if settings.stride is not None and row.kind != "strided":
        raise InputError(
            f"stride = {settings.stride} was given, but protocol '{row.name}' has none. Use "
            "protocol 'strided'."
        )
    if row.kind != "windows" and settings.sampling != "first":
        raise InputError(
            f"sampling '{settings.sampling}' was given, but protocol '{row.name}' takes all in "
            "order. Use protocol 'windows'."
        )
    if row.seq_len is not None and settings.seq_len is not None:
        raise InputError(
            f"seq_len = {settings.seq_len} was given, but protocol '{row.name}' fixes it. Use "
            "protocol 'windows' for your own."
        )
    check_settings(settings)
    if settings.kv_bits is not None:
        check_kv_bits(settings.kv_bits)
        if others:
            raise InputError(
                "Models are compared in whole windows, without a cache. Measure one with kv_bits "
                "by `evaluate`, or several by a sweep."
            )
    texts = _read((model, *others), settings.data)
    passages = _CUTS[row.kind](_Source(model, texts, settings, row))
    model.check_tokens(max((int(tokens.max()) for tokens, _ in passages.rows), default=0))
    cached = {} if settings.kv_bits is None else {"kv_bits": settings.kv_bits}
    return replace(passages, protocol=passages.protocol | cached, overlapping=overlapping(texts))


def _windows(source: _Source) -> Passages:
    model, settings = source.model, source.settings
    length = settings.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    windows = make_windows(
        source.texts, model.tokenizer, settings.samples, length, settings.sampling, settings.seed
    )
    rows = [(tokens, length - 1) for tokens in windows.tokens]
    protocol = {"name": source.row.name} | windows.protocol | _counted(rows)
    return Passages(rows, protocol, windows.predicted_bytes)


def _blocks(source: _Source) -> Passages:
    model, row = source.model, source.row
    assert row.seq_len is not None
    assert row.join is not None
    documents = source.texts.documents[: row.documents]
    texts = replace(source.texts, documents=documents, join=row.join)
    text = tokenise_all(texts, model.tokenizer, special_tokens=True)
    length = min(row.seq_len, model.context or row.seq_len)
    limits = [n for n in (row.windows, source.settings.samples) if n is not None]
    starts = range(0, len(text.ids) - length + 1, length)[: min(limits, default=None)]
    if not starts:
        raise InputError(
            f"{texts.source} has {len(text.ids)} tokens, fewer than one window of {length} "
            f"('{row.name}'). Use a longer text."
        )
    rows = [(text.ids[start : start + length], length - 1) for start in starts]
    spans = [(start + 1, start + length) for start in starts]
    described = _described(replace(source, texts=texts), text, length, rows)
    return Passages(rows, described, _bytes(text, spans))


def _strided(source: _Source) -> Passages:
    model, texts, settings = source.model, source.texts, source.settings
    length = settings.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    stride = settings.stride or max(1, length // 2)
    if length < 2 or not 1 <= stride < length:
        raise InputError(
            f"A stride goes from 1 to seq_len - 1; got stride {stride} with seq_len {length}."
        )
    text = tokenise_all(texts, model.tokenizer)
    if len(text.ids) < 2:
        raise InputError(
            f"{texts.source} has {len(text.ids)} tokens; at least 2 are needed, one to read and "
            "one to predict."
        )
    spans = list(stride_spans(len(text.ids), length, stride))[: settings.samples]
    rows = [(text.ids[first:last], scored) for first, last, scored in spans]
    counted = _bytes(text, [(last - scored, last) for _, last, scored in spans])
    return Passages(rows, _described(source, text, length, rows, stride=stride), counted)


def stride_spans(tokens: int, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, scored) of every window: tokens first..last - 1, the last `scored` predicted.

    Every token but the first is predicted once.
    """
    first, reached = 0, 1
    while reached < tokens:
        last = min(first + length, tokens)
        yield first, last, last - reached
        first, reached = first + stride, last


def _documents(source: _Source) -> Passages:
    model, texts, settings = source.model, source.texts, source.settings
    length = settings.seq_len or model.context
    if length is None:
        raise InputError(
            f"'{model.name}' sets no context length, so protocol '{source.row.name}' needs one: "
            "give seq_len."
        )
    model.check_length(length)
    texts = replace(texts, documents=texts.documents[: settings.samples])
    prefix, available = prefix_token(model), 0
    rows: list[Row] = []
    for document in texts.documents:
        ids = tokenise(document, model.tokenizer).ids
        available += len(ids)
        rows += [(part, scored) for part, scored in rolling(ids, prefix, length)]
    described = _described(replace(source, texts=texts), None, length, rows)
    described |= {
        "prefix_token": model.tokenizer.convert_ids_to_tokens(prefix),
        "tokens_available": available,
    }
    counted = sum(len(document.encode("utf-8", "surrogatepass")) for document in texts.documents)
    # as lm-eval counts words: a blank at either end of a document adds an empty one
    words = sum(len(re.split(r"\s+", document)) for document in texts.documents)
    return Passages(rows, described, counted, words)


def prefix_token(model: LoadedModel) -> int:
    """The token before a document's first, as in lm-eval: the tokenizer's bos, else its eos.

    Raises InputError where the tokenizer has neither.
    """
    tokenizer = model.tokenizer
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if token is None:
        raise InputError(
            f"The tokenizer of '{model.name}' has no beginning- or end-of-text token to put "
            "before a document."
        )
    return int(token)


def rolling(ids: Tensor, prefix: int, length: int) -> Iterator[Row]:
    """Windows [t], t <= length + 1, that score every token of a document, ids [n], once.

    The first window starts with `prefix`, the next ones with one token of context, and a short last
    one with as many as fit.
    """
    whole = torch.cat((torch.tensor([prefix]), ids))  # whole[i] is read before ids[i] is predicted
    done = 0
    while done < len(ids):
        scored = min(length, len(ids) - done)
        first = 0 if done == 0 else done + scored - length if scored < length else done
        yield whole[first : done + scored + 1], scored
        done += scored


def _described(
    source: _Source, text: Tokenised | None, length: int, rows: list[Row], **more: Any
) -> dict[str, Any]:
    """The protocol as plain values; text: where all documents are tokenised as one."""
    model, texts = source.model, source.texts
    special = source.row.kind == "blocks"
    return {
        "name": source.row.name,
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
        **({"part": texts.part} if texts.part else {}),
        **more,
        **_counted(rows),
    }


def _counted(rows: list[Row]) -> dict[str, int]:
    return {"windows": len(rows), "tokens": sum(len(tokens) for tokens, _ in rows)}


def _bytes(text: Tokenised, spans: list[tuple[int, int]]) -> int | None:
    """Bytes of the tokens in all spans [first, last); None where the tokenizer has no offsets."""
    return None if text.ends is None else sum(text.bytes(*span) or 0 for span in spans)


_CUTS = {"windows": _windows, "blocks": _blocks, "strided": _strided, "documents": _documents}
