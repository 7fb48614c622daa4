"""A text tokenised once for all models of one tokenizer."""

from collections import OrderedDict

import pytest

import lrcore
from lrcore.data import Texts, tokenize, tokenize_all, tokens

TEXTS = Texts(("Once upon a time", "there was a dog."), "test")


@pytest.fixture
def counted(monkeypatch):
    """How often a text was tokenised."""
    calls = []

    def counting(*arguments):
        calls.append(arguments)
        return tokenize(*arguments)

    monkeypatch.setattr(tokens, "tokenize", counting)
    monkeypatch.setattr(tokens, "_cached", OrderedDict())
    return calls


def test_a_text_is_tokenised_once_for_equal_tokenizers(counted):
    first, second = (lrcore.load("demo-llama").tokenizer for _ in range(2))
    result = tokenize_all(TEXTS, first)
    assert tokenize_all(TEXTS, second) is result
    assert result.ids.tolist() == tokenize(TEXTS.joined(), first).ids.tolist()
    assert len(counted) == 1


def test_another_text_or_a_changed_tokenizer_is_tokenised_anew(counted):
    tokenizer = lrcore.load("demo-llama").tokenizer
    plain = tokenize_all(TEXTS, tokenizer)
    assert len(tokenize_all(Texts(TEXTS.documents, "test", join=" "), tokenizer).ids) > 0
    tokenize_all(TEXTS, tokenizer, special_tokens=True)
    tokenizer.add_tokens(["upon a time"])
    assert len(tokenize_all(TEXTS, tokenizer).ids) < len(plain.ids)
    assert len(counted) == 4


def test_the_oldest_goes(counted):
    tokenizer = lrcore.load("demo-llama").tokenizer
    for number in range(12):
        tokenize_all(Texts((f"number {number}",), "test"), tokenizer)
    assert len(counted) == 12
    assert len(tokens._cached) == tokens.MAX_CACHED
