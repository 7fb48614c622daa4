"""Upper bounds on the growth of a text in a tokenizer: in normalizer, pre-tokenizer,
post-processor and decoder.

The author of a model defines these steps. A step that replaces a character by a million characters,
or many steps that double the text, would exhaust the memory.
"""

import base64
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

Part = Mapping[str, Any]  # of a tokenizer.json, such as the normalizer
MAX_GROWTH = 1e15
USUAL = 16.0  # above the growth of the tokenizers of known families; 12 for Llama 2
LIGATURE = 33  # maximum bytes of the NFKC form of a character
SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")
# Classes such as [[:space:]], which Python's parser of patterns reads differently.
_POSIX_CLASS = re.compile(r"\[:")
_UNICODE_CLASS = re.compile(r"\\[pP]\{[^{}]*\}")  # unknown to Python's parser


def growth(*parts: Part | None) -> float:
    """Return an upper bound, at least 1, on bytes after / bytes before a sequence of parts.

    Normal forms and lower case are excluded, because Unicode defines them.
    """
    times, charmaps = 1.0, []
    for step in (step for part in parts for step in _steps(part)):
        if step.get("type") == "Precompiled":
            charmaps.append(_longest(str(step.get("precompiled_charsmap") or "")))
        else:
            times = min(times * _step_growth(step), MAX_GROWTH)
    if charmaps and min(charmaps) <= LIGATURE:
        charmaps.remove(min(charmaps))  # NFKC, as SentencePiece has it
    for longest in charmaps:
        times = min(times * max(1, longest), MAX_GROWTH)
    return times


def growth_of(tokenizer: Any) -> float:
    """Return the `growth` in a fast tokenizer of transformers before tokenization; 1 for others."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = (getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer"))
    return growth(*(json.loads(part.__getstate__()) for part in parts if part is not None))


def most_added(processor: Part | None) -> int:
    """Return the maximum number of tokens that a post-processor adds around a text or a pair."""
    total = 0
    for step in _steps(processor):
        special_tokens = step.get("special_tokens") or {}
        names = (
            [piece["SpecialToken"]["id"] for piece in template if "SpecialToken" in piece]
            for template in _templates(step)
        )
        total += max(
            sum(len(special_tokens[name]["ids"]) for name in template) for template in names
        )
    return total


def _steps(part: Part | None) -> Iterator[Part]:
    """Yield the steps of a part, including those of sequences, in order."""
    if not isinstance(part, Mapping):
        return
    inner = [step for name in SEQUENCES for step in part.get(name) or ()]
    if not inner:
        yield part
    for step in inner:
        yield from _steps(step)


def _step_growth(step: Part) -> float:
    """Return the growth in bytes of a step that applies to all characters."""
    match step:
        case {"type": "Replace", "pattern": pattern, "content": str(content)}:
            width = _narrowest(pattern)
            size = len(content.encode("utf-8", "replace"))
            return max(1.0, size / width) if width else 1.0 + size
        case {"type": "Prepend", "prepend": str(mark)}:
            return 1.0 + len(mark.encode("utf-8", "replace"))
        case {"type": "Metaspace"}:
            return 1.0 + len(str(step.get("replacement", "▁")).encode("utf-8", "replace"))
        case {"type": "ByteLevel"}:
            return 3.0 if step.get("add_prefix_space") else 2.0
        case {"type": "TemplateProcessing"}:
            counts = (sum("Sequence" in piece for piece in t) for t in _templates(step))
            return max(1.0, *counts)
    return 1.0


def _templates(step: Part) -> tuple[Any, Any]:
    """Return the templates of a text and of a pair: lists of pieces, or strings ("$A [SEP]")."""
    return step.get("single") or (), step.get("pair") or ()


def _narrowest(pattern: Any) -> int:
    """Return the minimum bytes of a match; 0 for empty matches and patterns that Python cannot
    parse.
    """
    if not isinstance(pattern, Mapping):
        return 0
    if "String" in pattern:
        return len(str(pattern["String"]).encode("utf-8", "replace"))
    words = str(pattern.get("Regex", ""))
    if _POSIX_CLASS.search(words):
        return 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # patterns whose meaning will change
            return int(re._parser.parse(_UNICODE_CLASS.sub(r"\\w", words)).getwidth()[0])  # type: ignore[attr-defined]
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return 0


def _longest(charmap: str) -> int:
    """Return the bytes of the longest replacement of a character in a compiled SentencePiece map.

    charmap: in base64; the first four bytes are the length of a trie, which the texts follow.
    """
    try:
        blob = base64.b64decode(charmap)
    except ValueError:
        return 0  # the library refuses it
    return max(map(len, blob[4 + int.from_bytes(blob[:4], "little") :].split(b"\0")))
