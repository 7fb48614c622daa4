"""Tokens of a text from those of its distinct words, against the tokens of the text."""

import random

import pytest
import torch
from tokenizers import Regex, normalizers, pre_tokenizers

from lrcore.data import tokens, word_tokens
from lrcore.data.tokens import tokenize
from lrcore.data.word_tokens import can_tokenize_words
from lrcore.models.hub import locate
from lrcore.models.load import read_tokenizer

PIECES = (
    *("the", "cat", "naïve", "Зима", "東京", "ſ", "Ǆ", "é", "e\u0301", "½", "٣", "²", "1999", "3"),
    *("'s", "'ll", "'", "''", "don't", "’s", "–", "...", "!?", "@-@", "<unk>", "€", "🙂", "\u200d"),
    *(
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n ",
        "\t",
        "\u00a0",
        "\u3000",
        "\x1c",
        "\x85",
        "\ufeff",
    ),
)


@pytest.fixture
def tokenizer():
    return read_tokenizer(locate("demo-llama"))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(word_tokens, "MIN_TEXT", 1)
    monkeypatch.setattr(word_tokens, "BLOCK", 200)


def whole(text, tokenizer, monkeypatch):
    """Return the tokens of a text that is encoded at once."""
    with monkeypatch.context() as patched:
        patched.setattr(tokens, "can_tokenize_words", lambda *_: False)
        patched.setattr(tokens, "PART", len(text) + 1)
        return tokenize(text, tokenizer)


@pytest.mark.parametrize("seed", range(20))
def test_words_have_the_tokens_and_bytes_of_the_text(seed, tokenizer, monkeypatch):
    text = "".join(random.Random(seed).choices(PIECES, k=1500))
    assert can_tokenize_words(text, tokenizer)
    expected = whole(text, tokenizer, monkeypatch)
    found = tokenize(text, tokenizer)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.ends, expected.ends)


def test_forgotten_words_are_encoded_again(tokenizer, monkeypatch):
    monkeypatch.setattr(word_tokens, "MAX_WORDS", 3)
    text = "".join(random.Random(0).choices(PIECES, k=1500))
    assert torch.equal(tokenize(text, tokenizer).ids, whole(text, tokenizer, monkeypatch).ids)


def test_a_text_without_spaces_is_split_into_blocks(tokenizer, monkeypatch):
    text, encode = "東京。大阪、" * 200, tokenizer.backend_tokenizer.encode_batch
    parts = list(word_tokens.tokenize_words(text, encode))
    assert len(parts) > 3
    ids = torch.cat([part.ids for part in parts]).long()
    assert torch.equal(ids, whole(text, tokenizer, monkeypatch).ids)


def test_a_word_is_encoded_once(tokenizer, monkeypatch):
    text, seen = "the cat saw the other cat " * 60, []
    monkeypatch.setattr(
        tokens, "encoded", lambda encode, words: seen.extend(words) or encode(words, verbose=False)
    )
    tokenize(text, tokenizer)
    assert sorted(seen) == sorted(["the", " cat", " saw", " the", " other", " "])


def test_texts_with_special_tokens_or_half_characters_are_left_out(tokenizer):
    assert not can_tokenize_words("a text<|endoftext|> with a token", tokenizer)
    assert not can_tokenize_words("a text \ud800", tokenizer)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", normalizers.NFC()),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        ("pre_tokenizer", pre_tokenizers.Split(Regex(r"\d"), "isolated")),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    ],
)
def test_other_tokenizers_are_left_out(part, value, tokenizer):
    setattr(tokenizer.backend_tokenizer, part, value)
    assert not can_tokenize_words("the cat", tokenizer)


def test_a_character_of_another_kind_than_in_the_tokenizer_is_left_out(tokenizer, monkeypatch):
    monkeypatch.setattr(word_tokens, "_LETTER", word_tokens.regex.compile("[a-z]"))
    assert can_tokenize_words("the cat", tokenizer)
    assert not can_tokenize_words("the Cat", tokenizer)
