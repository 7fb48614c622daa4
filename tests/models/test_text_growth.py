"""Growth of texts by tokenizers: unlimited growth is refused, supported families pass."""

import base64
import json
import struct

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lrcore import InputError
from lrcore.data import tokens
from lrcore.data.text_growth import LIGATURE, USUAL, growth, growth_of
from lrcore.models.tokenizer_checks import (
    MAX_ADDED_TOKENS,
    MAX_GROWTH,
    MAX_TOKEN_BYTES,
    check_growth,
    check_vocabulary,
)

SPACE = "▁"


def charmap(longest: int) -> str:
    """Return a precompiled SentencePiece map with an empty trie and a text of this length."""
    return base64.b64encode(
        struct.pack("<I", 4) + bytes(4) + b"a\0" + b"b" * longest + b"\0"
    ).decode()


def precompiled(longest: int) -> dict:
    return {"type": "Precompiled", "precompiled_charsmap": charmap(longest)}


def as_json(part) -> dict:
    """Return a component of the library as in a tokenizer.json."""
    return json.loads(part.__getstate__())


def sequence(*steps) -> dict:
    return {"type": "Sequence", "normalizers": list(steps)}


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
PUNCTUATION = [  # of Moses, used by tokenizers for translation
    *(normalizers.Replace(pattern, '"') for pattern in "„“”"),
    *(normalizers.Replace(pattern, "'") for pattern in "‘’‚"),
    *(
        normalizers.Replace(Regex(pattern), " ")
        for pattern in (r"\s+", r"\p{Zs}+", r" {2,}", r"[\p{C}\n]")
    ),
    *(
        normalizers.Replace(pattern, replacement)
        for pattern, replacement in (("…", "..."), ("–", " - "), ("``", '"'))
    ),
]
KNOWN = {
    "BERT": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "CLIP": (
        normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        ),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+"), "removed"), BYTES]),
    ),
    "Gemma": (normalizers.Replace(" ", SPACE), pre_tokenizers.Split(" ", "merged_with_previous")),
    "GPT-2": (None, BYTES),
    "GPT-NeoX": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama": (
        normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
        None,
    ),
    "Moses": (normalizers.Sequence(PUNCTUATION), pre_tokenizers.Metaspace()),
    "XLNet": (
        normalizers.Sequence(
            [
                *(normalizers.Replace("``", '"'), normalizers.Replace("''", '"')),
                *(normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        ),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_tokenizers_of_known_families_have_little_growth(name):
    parts = [as_json(part) for part in KNOWN[name] if part is not None]
    assert growth(*parts) <= USUAL
    # preceded by NFKC of SentencePiece, as in T5 and XLM-R
    assert growth(precompiled(LIGATURE), *parts) <= USUAL


@pytest.mark.parametrize("name", KNOWN)
def test_texts_grow_by_at_most_the_estimate(name):
    normalizer, splitter = KNOWN[name]
    largest = growth(*(as_json(part) for part in KNOWN[name] if part is not None))
    for text in (" ", "a", "a b", "  ", "é", "―", "“`` ''", "日本", "…–\n\t"):
        grown = text if normalizer is None else normalizer.normalize_str(text)
        if splitter is not None:
            grown = "".join(piece for piece, _ in splitter.pre_tokenize_str(grown))
        assert len(grown.encode()) <= largest * len(text.encode())


HOSTILE = {
    "a million characters for one": (
        "normalizer",
        sequence(as_json(normalizers.Replace("a", "b" * 10**6))),
    ),
    "two for one, thirty times": (
        "normalizer",
        sequence(*[as_json(normalizers.Replace("a", "aa"))] * 30),
    ),
    "between all characters": (
        "normalizer",
        sequence(*[as_json(normalizers.Replace(Regex("(?=.)"), "x"))] * 30),
    ),
    "in the place of nothing": ("normalizer", as_json(normalizers.Replace("", "x" * 500))),
    "by a class of its own": (
        "normalizer",
        sequence(*[as_json(normalizers.Replace(Regex("[[:space:]]*"), "xx"))] * 9),
    ),
    "before every text": ("normalizer", as_json(normalizers.Prepend("x" * 1000))),
    "bytes of bytes": ("normalizer", sequence(*[as_json(normalizers.ByteLevel())] * 30)),
    "a map to a long text": ("normalizer", precompiled(5000)),
    "maps of maps": ("normalizer", sequence(*[precompiled(20)] * 3)),
    "split into bytes of bytes": (
        "pre_tokenizer",
        as_json(pre_tokenizers.Sequence([BYTES] * 30)),
    ),
    "marks before marks": (
        "pre_tokenizer",
        as_json(pre_tokenizers.Sequence([pre_tokenizers.Metaspace()] * 30)),
    ),
    "copies of the text": (
        "post_processor",
        as_json(processors.TemplateProcessing(single=" ".join(["$A"] * 300), special_tokens=[])),
    ),
    "in an older form": ("normalizer", [[[{"String": "a"}, "b" * 1000]]]),
    "without a name": ("normalizer", {"prepend": "x" * 1000}),
    "with another name": ("normalizer", {"type": "Nothing", "prepend": "x" * 1000}),
    "tokens decoded to long texts": (
        "decoder",
        as_json(decoders.Sequence([decoders.Replace("a", "aa")] * 30)),
    ),
}


def with_components(tiny_llama, folder, **parts):
    """Write a tokenizer with these components replaced; return the folder."""
    tokenizer_json = json.loads((tiny_llama / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json | parts))
    return folder


@pytest.mark.parametrize("case", HOSTILE)
def test_tokenizer_with_unlimited_growth_raises(case, tiny_llama, tmp_path):
    name, part = HOSTILE[case]
    with pytest.raises(InputError, match="times as long, which is too much") as error_info:
        check_vocabulary(with_components(tiny_llama, tmp_path, **{name: part}))
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("name", KNOWN)
def test_tokenizer_of_a_known_family_is_accepted(name, tiny_llama, tmp_path):
    components = dict(zip(("normalizer", "pre_tokenizer"), KNOWN[name], strict=True))
    check_vocabulary(
        with_components(
            tiny_llama,
            tmp_path,
            **{part: pattern and as_json(pattern) for part, pattern in components.items()},
        )
    )


def test_long_tokens_and_templates_with_many_tokens_raise(tiny_llama, tmp_path):
    tokenizer_json = json.loads((tiny_llama / "tokenizer.json").read_text())
    vocab = tokenizer_json["model"] | {
        "vocab": tokenizer_json["model"]["vocab"] | {"x" * (MAX_TOKEN_BYTES + 1): 5}
    }
    with pytest.raises(InputError, match="has a token of 10,001 bytes"):
        check_vocabulary(with_components(tiny_llama, tmp_path, model=vocab))
    mark = {"id": "[X]", "ids": [0] * 100, "tokens": ["a"] * 100}
    template = processors.TemplateProcessing(single="$A" + " [X]" * 20, special_tokens=[mark])
    with pytest.raises(InputError, match="adds 2,000 tokens to each text"):
        check_vocabulary(with_components(tiny_llama, tmp_path, post_processor=as_json(template)))
    assert MAX_ADDED_TOKENS < 2000


@pytest.mark.parametrize(
    "part",
    [5, [], {}, "x", {"type": "Sequence", "normalizers": 5}, {"type": "Replace", "pattern": []}],
)
def test_malformed_components_are_left_to_the_library(part, tiny_llama, tmp_path):
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model", "added_tokens")
    for name in names:
        check_vocabulary(with_components(tiny_llama, tmp_path, **{name: part}))


def test_larger_growth_reserves_more_memory(monkeypatch):
    """Growth below the limit is accepted."""
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.normalizer = normalizers.Replace("é", "a" * 400)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert USUAL < growth_of(tokenizer) == 200 < MAX_GROWTH
    text = "a " * 500
    monkeypatch.setattr(tokens, "free_memory", lambda: 2 * tokens.PER_CHARACTER * len(text))
    with pytest.raises(InputError, match="The tokens of 1,000 characters"):
        tokens.tokenize(text, tokenizer)
    backend.normalizer = normalizers.Replace("é", "a")
    assert len(tokens.tokenize(text, PreTrainedTokenizerFast(tokenizer_object=backend)).ids) == 500


def test_tokenizer_without_tokenizer_json_is_checked_once_loaded(tmp_path):
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    check_growth(PreTrainedTokenizerFast(tokenizer_object=backend), tmp_path)
    backend.normalizer = normalizers.Replace("a", "a" * 10**6)
    with pytest.raises(InputError, match=r"makes a text up to 1e\+06 times as long"):
        check_growth(PreTrainedTokenizerFast(tokenizer_object=backend), tmp_path)
