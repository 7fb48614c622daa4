"""How much longer a tokenizer may make a text: by its normalizer, pre-tokenizer, post-processor and
decoder, which the author of a model chooses.

One step that puts a million characters in the place of one, or many that each put two, would take
all memory.
"""

import base64
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

Part = Mapping[str, Any]  # of a tokenizer.json, such as its normalizer
MOST = 1e15  # of what is counted
USUAL = 16.0  # times that those of known families may: of Llama 2, 12
LIGATURE = 33  # bytes that NFKC makes of one character, at most
SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")
# What this project's parser of patterns takes otherwise than the library's: classes such as
# [[:space:]].
_OTHERWISE = re.compile(r"\[:")
_CLASS = re.compile(r"\\[pP]\{[^{}]*\}")  # of characters, which the parser does not know


def growth(*parts: Part | None) -> float:
    """The most by which these parts, one after the other, make the bytes of a text more, at least
    1. What Unicode says of characters, normal forms and lower case, is left out: it is no choice of
    the author.
    """
    times, charmaps = 1.0, []
    for step in (step for part in parts for step in _steps(part)):
        if step.get("type") == "Precompiled":
            charmaps.append(_longest(str(step.get("precompiled_charsmap") or "")))
        else:
            times = min(times * _times(step), MOST)
    if charmaps and min(charmaps) <= LIGATURE:
        charmaps.remove(min(charmaps))  # NFKC, as SentencePiece has it
    for longest in charmaps:
        times = min(times * max(1, longest), MOST)
    return times


def growth_of(tokenizer: Any) -> float:
    """The same of a fast tokenizer of transformers on the way to tokens; 1 for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    found = (getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer"))
    return growth(*(json.loads(part.__getstate__()) for part in found if part is not None))


def most_added(processor: Part | None) -> int:
    """How many tokens a post-processor puts around a text, or between two, at most."""
    total = 0
    for step in _steps(processor):
        known = step.get("special_tokens") or {}
        kinds = _kinds(step)
        named = (
            [one["SpecialToken"]["id"] for one in kind if "SpecialToken" in one] for kind in kinds
        )
        total += max(sum(len(known[name]["ids"]) for name in names) for names in named)
    return total


def _steps(part: Part | None) -> Iterator[Part]:
    """The steps of a part, those of a sequence in their order."""
    if not isinstance(part, Mapping):
        return
    inner = [one for name in SEQUENCES for one in part.get(name) or ()]
    if not inner:
        yield part
    for one in inner:
        yield from _steps(one)


def _times(step: Part) -> float:
    """By how much one step makes bytes more, where it is applied to every character."""
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
            return max(1.0, *(sum("Sequence" in piece for piece in one) for one in _kinds(step)))
    return 1.0


def _kinds(template: Part) -> tuple[Any, Any]:
    """Its pieces for one text, and for two; some are written as texts, "$A [SEP]"."""
    return template.get("single") or (), template.get("pair") or ()


def _narrowest(pattern: Any) -> int:
    """Bytes that a pattern matches at least; 0 where it may match between characters, or is not
    understood.
    """
    if not isinstance(pattern, Mapping):
        return 0
    if "String" in pattern:
        return len(str(pattern["String"]).encode("utf-8", "replace"))
    words = str(pattern.get("Regex", ""))
    if _OTHERWISE.search(words):
        return 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of what the parser would take otherwise one day
            return int(re._parser.parse(_CLASS.sub(r"\\w", words)).getwidth()[0])  # type: ignore[attr-defined]
    except (re.error, ValueError, OverflowError, RecursionError, Warning):
        return 0


def _longest(charmap: str) -> int:
    """Bytes of the longest text that a compiled map of SentencePiece, in base64, puts in the place
    of a character: the texts follow a trie whose length the first four bytes say.
    """
    try:
        blob = base64.b64decode(charmap)
    except ValueError:
        return 0  # which the library refuses
    return max(map(len, blob[4 + int.from_bytes(blob[:4], "little") :].split(b"\0")))
