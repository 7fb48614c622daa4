"""Perplexity protocols by name: how a text becomes forward passes, and which of their tokens are
scored.

windows non-overlapping (or randomly placed) full windows, no special tokens; the caller's length
gptq-2048 GPTQ's script, also SVD-LLM's, A3's and MoDeGPT's: rows joined by a blank line, tokenised
once as the tokenizer does by
                 itself (with its special tokens), non-overlapping windows of 2048, or of the
                 context where that is shorter
gptq-2048-c4 the same for C4: the first 1100 documents joined by a space, the first 256 windows
(`get_c4_new`) gptq-2048-ptb the same for PTB: rows joined by a space (`get_ptb_new`)
strided a window that moves by `stride`: every token but the first is scored once, with at least
length - stride before it lm-eval-word per document, rolling, as lm-eval's `loglikelihood_rolling`
with a context of one token; perplexity per word and byte
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Texts, Tokenised, load_texts, make_windows, tokenise
from ..errors import InputError, unknown
from ..models.load import LoadedModel
from ..settings import setting

Row = tuple[
    Tensor, int
]  # tokens [t] of one forward pass, and how many of the last are scored (at most t - 1)


@dataclass(frozen=True)
class Protocol:
    """A row of the table. kind: how rows are cut. None where the data set or the caller decides."""

    name: str
    summary: str
    kind: str
    seq_len: int | None = None
    join: str | None = None
    documents: int | None = None
    windows: int | None = None


PROTOCOLS: Mapping[str, Protocol] = {
    row.name: row
    for row in (
        Protocol(
            "windows", "full windows of a length of your choice, no special tokens", "windows"
        ),
        Protocol(
            "gptq-2048",
            "rows joined by a blank line, tokenised once, windows of 2048 (as for WikiText-2)",
            "blocks",
            2048,
            "\n\n",
        ),
        Protocol(
            "gptq-2048-c4",
            "first 1100 documents joined by a space, first 256 windows of 2048",
            "blocks",
            2048,
            " ",
            1100,
            256,
        ),
        Protocol("gptq-2048-ptb", "rows joined by a space, windows of 2048", "blocks", 2048, " "),
        Protocol("strided", "a window that moves by a stride; every token scored once", "strided"),
        Protocol(
            "lm-eval-word",
            "per document, rolling, per word and byte, as lm-eval defines it",
            "documents",
        ),
    )
}
DEFAULT_LENGTH = 256


@dataclass(frozen=True, eq=False)
class Passages:
    """What is scored.

    rows: see `Row`. bytes, words: of the text that the scored tokens stand for; None where not
    counted.

    protocol: JSON-able, all that the rows depend on.
    """

    rows: list[Row]
    protocol: dict[str, Any]
    bytes: int | None = None
    words: int | None = None


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of one evaluation, before they meet a protocol.

    data: a data set, by name or file. samples: the most windows (documents, for a protocol on
    documents); None: all. seq_len None: the protocol's own, 256 for "windows" and "strided".
    sampling, "first" or "random", and seed: of "windows". stride: of "strided".
    """

    data: str = setting("stories", "Text to score: built-in name, file, or name:config:split.")
    samples: int | None = setting(None, "Number of windows (or documents). Default: all.")
    seq_len: int | None = setting(None, "Tokens per window. Default: the protocol's.")
    sampling: str = setting("first", "Which windows: first or random.")
    seed: int = setting(0, "Seed of the random choice.")
    protocol: str = setting(
        "windows", "windows, gptq-2048, gptq-2048-c4, gptq-2048-ptb, strided or lm-eval-word."
    )
    stride: int | None = setting(None, "Of protocol strided. Default: half a window.")

    @classmethod
    def of(
        cls, data: "str | EvaluationSettings", settings: Mapping[str, Any]
    ) -> "EvaluationSettings":
        """A data set and the other settings by name; or what is all of that already."""
        return data if isinstance(data, EvaluationSettings) else cls(data, **settings)


def find_protocol(name: str) -> Protocol:
    """The row of a protocol. Raises InputError with the nearest name for an unknown one."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def make_passages(model: LoadedModel, asked: EvaluationSettings) -> Passages:
    """The rows that a protocol scores.

    Raises InputError for settings that the protocol does not have, and for too little text.
    """
    row = find_protocol(asked.protocol)
    if asked.stride is not None and row.kind != "strided":
        raise InputError(
            f"stride = {asked.stride} was given, but protocol '{row.name}' has none. Use protocol "
            "'strided'."
        )
    if row.kind != "windows" and asked.sampling != "first":
        raise InputError(
            f"sampling '{asked.sampling}' was given, but protocol '{row.name}' takes all in "
            "order. Use protocol 'windows'."
        )
    if row.seq_len is not None and asked.seq_len is not None:
        raise InputError(
            f"seq_len = {asked.seq_len} was given, but protocol '{row.name}' fixes it. Use "
            "protocol 'windows' for your own."
        )
    if asked.samples is not None and asked.samples < 1:
        raise InputError(f"samples = {asked.samples!r}: give a whole number >= 1, or None for all.")
    return _CUTS[row.kind](model, load_texts(asked.data, role="test"), asked, row)


def _windows(
    model: LoadedModel, texts: Texts, asked: EvaluationSettings, row: Protocol
) -> Passages:
    length = asked.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    windows = make_windows(
        texts, model.tokenizer, asked.samples, length, asked.sampling, asked.seed
    )
    rows = [(tokens, length - 1) for tokens in windows.tokens]
    return Passages(
        rows, {"name": row.name} | windows.protocol | _counted(rows), windows.predicted_bytes
    )


def _blocks(model: LoadedModel, texts: Texts, asked: EvaluationSettings, row: Protocol) -> Passages:
    texts = Texts(texts.documents[: row.documents], texts.source, row.join)
    text = tokenise(texts.joined(), model.tokenizer, special_tokens=True)
    length = min(row.seq_len, model.context or row.seq_len)
    limits = [n for n in (row.windows, asked.samples) if n is not None]
    starts = range(0, len(text.ids) - length + 1, length)[: min(limits, default=None)]
    if not starts:
        raise InputError(
            f"{texts.source} has {len(text.ids)} tokens, fewer than one window of {length} "
            f"('{row.name}'). Use a longer text."
        )
    rows = [(text.ids[start : start + length], length - 1) for start in starts]
    spans = [(start + 1, start + length) for start in starts]
    return Passages(
        rows, _described(model, texts, text, asked, row, length, rows), _bytes(text, spans)
    )


def _strided(
    model: LoadedModel, texts: Texts, asked: EvaluationSettings, row: Protocol
) -> Passages:
    length = asked.seq_len or min(DEFAULT_LENGTH, model.context or DEFAULT_LENGTH)
    model.check_length(length)
    stride = asked.stride or max(1, length // 2)
    if length < 2 or not 1 <= stride < length:
        raise InputError(
            f"A stride goes from 1 to seq_len - 1; got stride {stride} with seq_len {length}."
        )
    text = tokenise(texts.joined(), model.tokenizer)
    if len(text.ids) < 2:
        raise InputError(
            f"{texts.source} has {len(text.ids)} tokens; at least 2 are needed, one to read and "
            "one to predict."
        )
    spans = list(stride_spans(len(text.ids), length, stride))[: asked.samples]
    rows = [(text.ids[first:last], scored) for first, last, scored in spans]
    counted = _bytes(text, [(last - scored, last) for _, last, scored in spans])
    return Passages(
        rows, _described(model, texts, text, asked, row, length, rows, stride=stride), counted
    )


def stride_spans(tokens: int, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, scored) of every window: tokens first..last - 1 are read, the last `scored`
    of them predicted; none twice.
    """
    first, reached = 0, 1
    while reached < tokens:
        last = min(first + length, tokens)
        yield first, last, last - reached
        first, reached = first + stride, last


def _documents(
    model: LoadedModel, texts: Texts, asked: EvaluationSettings, row: Protocol
) -> Passages:
    length = asked.seq_len or model.context
    if length is None:
        raise InputError(
            f"'{model.name}' sets no context length, so protocol '{row.name}' needs one: give "
            "seq_len."
        )
    model.check_length(length)
    texts = Texts(texts.documents[: asked.samples], texts.source, texts.join)
    prefix, rows, available = prefix_token(model), [], 0
    for document in texts.documents:
        ids = tokenise(document, model.tokenizer).ids
        available += len(ids)
        rows += [(part, scored) for part, scored in rolling(ids, prefix, length)]
    described = _described(model, texts, None, asked, row, length, rows)
    described |= {
        "prefix_token": model.tokenizer.convert_ids_to_tokens(prefix),
        "tokens_available": available,
    }
    counted = sum(len(document.encode("utf-8", "surrogatepass")) for document in texts.documents)
    # lm-eval's own count of words: a blank at either end of the document makes an empty one, which
    # counts.
    return Passages(
        rows,
        described,
        counted,
        sum(len(re.split(r"\s+", document)) for document in texts.documents),
    )


def prefix_token(model: LoadedModel) -> int:
    """What stands before a document's first token: the tokenizer's beginning of text, else its
    end of text, as in lm-eval.
    """
    tokenizer = model.tokenizer
    found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if found is None:
        raise InputError(
            f"The tokenizer of '{model.name}' has no beginning- or end-of-text token to put "
            "before a document."
        )
    return found


def rolling(ids: Tensor, prefix: int, length: int) -> Iterator[Row]:
    """Windows in which every token of a document is scored once: the first starts at `prefix`, the
    next ones with one token of context, and the last one, where it is short, with as much as fits.
    ids [n]; at most `length` tokens are read at once.
    """
    whole = torch.cat((torch.tensor([prefix]), ids))  # whole[i] is read before ids[i] is predicted
    done = 0
    while done < len(ids):
        scored = min(length, len(ids) - done)
        first = 0 if done == 0 else done + scored - length if scored < length else done
        yield whole[first : done + scored + 1], scored
        done += scored


def _described(
    model: LoadedModel,
    texts: Texts,
    text: Tokenised | None,
    asked: EvaluationSettings,
    row: Protocol,
    length: int,
    rows: list[Row],
    **more: Any,
) -> dict[str, Any]:
    special = row.kind == "blocks"
    return {
        "name": row.name,
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
        "samples_asked": asked.samples,
        "samples": len(rows),
        **more,
        **_counted(rows),
    }


def _counted(rows: list[Row]) -> dict[str, int]:
    return {"windows": len(rows), "tokens": sum(len(tokens) for tokens, _ in rows)}


def _bytes(text: Tokenised, spans: list[tuple[int, int]]) -> int | None:
    return None if text.ends is None else sum(text.bytes(first, last) for first, last in spans)


_CUTS = {"windows": _windows, "blocks": _blocks, "strided": _strided, "documents": _documents}
