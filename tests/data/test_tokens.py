"""Texts that are tokenized once for all models with the same tokenizer."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lrcore
from lrcore.data import Texts, Tokenized, tokenize, tokenize_all, tokens
from lrcore.data.tokenized import keep_tokens, read_tokens
from lrcore.system.cache import entries

TEXTS = Texts(("Once upon a time", "there was a dog."), "test")


@pytest.fixture
def tokenize_calls(monkeypatch):
    """Record the calls of `tokenize`, and return the list of them."""
    calls = []

    def counting(*arguments):
        calls.append(arguments)
        return tokenize(*arguments)

    monkeypatch.setattr(tokens, "tokenize", counting)
    monkeypatch.setattr(tokens, "_cached", OrderedDict())
    return calls


def test_a_text_is_tokenized_once_for_equal_tokenizers(tokenize_calls):
    first, second = (lrcore.load("demo-llama").tokenizer for _ in range(2))
    result = tokenize_all(TEXTS, first)
    assert tokenize_all(TEXTS, second) is result
    assert result.ids.tolist() == tokenize(TEXTS.joined(), first).ids.tolist()
    assert len(tokenize_calls) == 1


def test_a_different_text_or_a_changed_tokenizer_is_tokenized_separately(tokenize_calls):
    tokenizer = lrcore.load("demo-llama").tokenizer
    plain = tokenize_all(TEXTS, tokenizer)
    assert len(tokenize_all(Texts(TEXTS.documents, "test", join=" "), tokenizer).ids) > 0
    tokenize_all(TEXTS, tokenizer, special_tokens=True)
    tokenizer.add_tokens(["upon a time"])
    assert len(tokenize_all(TEXTS, tokenizer).ids) < len(plain.ids)
    assert len(tokenize_calls) == 4


def test_the_oldest_text_is_evicted_from_the_cache(tokenize_calls):
    tokenizer = lrcore.load("demo-llama").tokenizer
    for number in range(12):
        tokenize_all(Texts((f"number {number}",), "test"), tokenizer)
    assert len(tokenize_calls) == 12
    assert len(tokens._cached) == tokens.MAX_CACHED


def test_special_tokens_as_plain_text_are_tokenized_separately(tokenize_calls):
    tokenizer = lrcore.load("demo-llama").tokenizer
    texts = Texts((f"Once{tokenizer.eos_token}upon a time",), "test")
    special = tokenize_all(texts, tokenizer)
    tokenizer.split_special_tokens = True
    assert len(tokenize_all(texts, tokenizer).ids) > len(special.ids)


@pytest.fixture
def disk_cache(tokenize_calls, tmp_path, monkeypatch):
    """Set up an empty disk cache that stores texts of any length; return the recorded calls."""
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "MIN_STORED", 1)
    return tokenize_calls


def in_a_new_process(tokenizer) -> Tokenized:
    tokens._cached.clear()
    return tokenize_all(TEXTS, tokenizer)


def stored_file() -> Path:
    (entry,) = [entry for entry in entries() if entry.kind == "tokens"]
    return entry.path


def assert_equal(text, expected) -> None:
    assert torch.equal(text.ids, expected.ids)
    assert torch.equal(text.ends, expected.ends)
    assert (text.ids.dtype, text.ends.dtype) == (torch.long, torch.long)


def test_a_long_text_is_tokenized_in_the_first_process_only(disk_cache):
    tokenizer = lrcore.load("demo-llama").tokenizer
    first = in_a_new_process(tokenizer)
    stored_file()
    assert_equal(in_a_new_process(tokenizer), first)
    assert len(disk_cache) == 1


def test_a_short_text_is_not_stored(disk_cache, monkeypatch):
    monkeypatch.setattr(tokens, "MIN_STORED", 99)
    in_a_new_process(lrcore.load("demo-llama").tokenizer)
    assert not entries()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def change_a_token(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def without_metadata(file: Path) -> None:
    save_file(load_file(file), file)


@pytest.mark.parametrize("damage", [cut_off, change_a_token, without_metadata])
def test_damaged_tokens_are_replaced(disk_cache, damage):
    tokenizer = lrcore.load("demo-llama").tokenizer
    first = in_a_new_process(tokenizer)
    content = stored_file().read_bytes()
    damage(stored_file())
    assert_equal(in_a_new_process(tokenizer), first)
    assert len(disk_cache) == 2
    assert stored_file().read_bytes() == content


def test_tokens_of_more_than_two_gigabytes_are_stored(disk_cache, tmp_path):
    text = Tokenized(torch.tensor([7, 8, 9]), torch.tensor([5, 2**31 + 3, 2**32 + 1]))
    keep_tokens(tmp_path / "tokens.safetensors", text)
    assert_equal(read_tokens(tmp_path / "tokens.safetensors"), text)


def test_texts_are_tokenized_even_if_the_cache_is_not_writable(disk_cache, tmp_path):
    (tmp_path / "cache").touch()
    tokenizer = lrcore.load("demo-llama").tokenizer
    assert_equal(in_a_new_process(tokenizer), tokenize(TEXTS.joined(), tokenizer))
