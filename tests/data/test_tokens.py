"""A text tokenised once for all models of one tokenizer."""

from collections import OrderedDict

import pytest

import lrcore
from lrcore.data import Texts, tokenise, tokenise_all, tokens

TEXTS = Texts(("Once upon a time", "there was a dog."), "test")


@pytest.fixture
def counted(monkeypatch):
    """How often a text was tokenised."""
    calls = []

    def counting(*arguments):
        calls.append(arguments)
        return tokenise(*arguments)

    monkeypatch.setattr(tokens, "tokenise", counting)
    monkeypatch.setattr(tokens, "_kept", OrderedDict())
    return calls


def test_a_text_is_tokenised_once_for_equal_tokenizers(counted):
    first, second = (lrcore.load("demo-llama").tokenizer for _ in range(2))
    result = tokenise_all(TEXTS, first)
    assert tokenise_all(TEXTS, second) is result
    assert result.ids.tolist() == tokenise(TEXTS.joined(), first).ids.tolist()
    assert len(counted) == 1


def test_another_text_or_a_changed_tokenizer_is_tokenised_anew(counted):
    tokenizer = lrcore.load("demo-llama").tokenizer
    plain = tokenise_all(TEXTS, tokenizer)
    assert len(tokenise_all(Texts(TEXTS.documents, "test", join=" "), tokenizer).ids) > 0
    tokenise_all(TEXTS, tokenizer, special_tokens=True)
    tokenizer.add_tokens(["upon a time"])
    assert len(tokenise_all(TEXTS, tokenizer).ids) < len(plain.ids)
    assert len(counted) == 4


def test_the_oldest_goes(counted):
    tokenizer = lrcore.load("demo-llama").tokenizer
    for number in range(12):
        tokenise_all(Texts((f"number {number}",), "test"), tokenizer)
    assert len(counted) == 12
    assert len(tokens._kept) == tokens.KEPT
