"""The tokenizer settings of a GGUF file: byte-level BPE, and BPE converted from SentencePiece."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...system.errors import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # llama.cpp's types of tokens
_COMMON = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's names of pre-tokenizers
_CUTS = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (_COMMON.replace("NUMBER", r"\p{N}{1,3}"), "ByteLevel"): "llama-bpe",
    (_COMMON.replace("NUMBER", r"\p{N}"), "ByteLevel"): "qwen2",
}
_BYTES = {f"<0x{number:02X}>" for number in range(256)}
_TAKE_SAFETENSORS = "Export the model as a folder of transformers instead."


def vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[str, Any]:
    """Return the settings `tokenizer.*` of a GGUF file.

    size: rows of the embedding; rows without a token are marked as unused. Raises InputError for a
    tokenizer that llama.cpp would interpret differently.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    model = described["model"]
    if model["type"] != "BPE":
        raise InputError(
            f"The tokenizer has the type {model['type']}, but GGUF files are written with BPE "
            f"only. {_TAKE_SAFETENSORS}"
        )
    named = {number: token for token, number in model["vocab"].items()}
    types = {number: BYTE if token in _BYTES else NORMAL for number, token in named.items()}
    for token in described["added_tokens"]:
        named[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    if model.get("unk_token") in model["vocab"]:
        types[model["vocab"][model["unk_token"]]] = UNKNOWN
    tokens = [named.get(number, f"[PAD{number}]") for number in range(size)]
    values: dict[str, Any] = {
        "ggml.tokens": tokens,
        "ggml.token_type": [types.get(number, UNUSED) for number in range(size)],
    }
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    if model.get("byte_fallback"):
        values |= {"ggml.model": "llama", "ggml.scores": _scores(tokens, merges)}
        values["ggml.add_space_prefix"] = _has_prefix(described)
    else:
        values |= {"ggml.model": "gpt2", "ggml.pre": _cut(described)}
        values["ggml.merges"] = [" ".join(pair) for pair in merges]
    values |= _special(tokenizer, size)
    return {f"tokenizer.{name}": value for name, value in values.items()}


def _special(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[str, Any]:
    """Return ids of special tokens, whether they begin and end texts, and the chat template."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    special = {name: getattr(tokenizer, f"{name}_token_id") for name in names}
    values: dict[str, Any] = {
        f"ggml.{names[name]}_token_id": number
        for name, number in special.items()
        if number is not None and number < size
    }
    ids = tokenizer("a", verbose=False).input_ids
    values["ggml.add_bos_token"] = special["bos"] is not None and ids[0] == special["bos"]
    values["ggml.add_eos_token"] = special["eos"] is not None and ids[-1] == special["eos"]
    template = getattr(tokenizer, "chat_template", None)
    return values | ({"chat_template": template} if isinstance(template, str) else {})


def _scores(tokens: list[str], merges: list[tuple[str, ...]]) -> list[float]:
    """Return scores that decrease with the merge rank; SentencePiece merges in this order."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges, 1):
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks.get(token, 0)) for token in tokens]


def _has_prefix(described: Mapping[str, Any]) -> bool:
    """Return True if a space is put before the text."""
    steps = [*_steps(described["normalizer"]), *_steps(described["pre_tokenizer"])]
    return any(
        step["type"] == "Prepend"
        or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in steps
    )


def _cut(described: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the pre-tokenizer. Raises InputError if it is unknown."""
    steps = list(_steps(described["pre_tokenizer"]))
    kinds = tuple(step.get("pattern", {}).get("Regex") or step["type"] for step in steps)
    grouped = [step for step in steps if step["type"] == "Digits" and not step["individual_digits"]]
    prefixed = [step for step in steps if step.get("add_prefix_space")]
    if kinds not in _CUTS or grouped or prefixed:
        types = ", ".join(step["type"] for step in steps) or "none"
        raise InputError(
            f"The pre-tokenizer ({types}) has no known equivalent in llama.cpp, so its tokens "
            f"would differ. {_TAKE_SAFETENSORS}"
        )
    return _CUTS[kinds]


def _steps(described: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer in order."""
    if described is None:
        return
    nested = described.get("pretokenizers") or described.get("normalizers")
    if nested is None:
        yield described
    for step in nested or ():
        yield from _steps(step)
