"""Long texts tokenized in parts, with the tokens and ends of the complete text."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import lrcore
from lrcore.data import tokenize, tokens

WORDS = (
    "once",
    "upon",
    "a",
    "time",
    "Ben’s",
    "3.5",
    "x9",
    "end.",
    "\n\n",
    "  ",
    "naïve",
    "你好",
    "😀",
)


SYLLABLES = ("人", "我们", "你好", "天气", "ab", "12", "😀", "が", "。", "，", "：")


def mixed_text(seed: int, count: int = 3000) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice((" ", " ", "", "\n")) for _ in range(count))


def text_without_spaces(seed: int, count: int = 5000) -> str:
    return "".join(random.Random(seed).choices(SYLLABLES, k=count))


def trained(normalizer=None, pre_tokenizer=None) -> PreTrainedTokenizerFast:
    """Train a BPE tokenizer on mixed texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"])
    lines = [*mixed_text(9).split("\n"), *text_without_spaces(9).split("我们")]
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoders.BPEDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


SENTENCEPIECE = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
TOKENIZERS = {
    "bytes": lambda: trained(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": lambda: trained(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "words": lambda: trained(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "white space": lambda: trained(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "whole text": lambda: trained(normalizer=SENTENCEPIECE),
    "demo-llama": lambda: lrcore.load("demo-llama").tokenizer,
}


@pytest.mark.parametrize("make_text", [mixed_text, text_without_spaces])
@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_parts_have_the_tokens_of_the_complete_text(name, make_text, monkeypatch) -> None:
    tokenizer = TOKENIZERS[name]()
    for seed in range(3):
        text = make_text(seed)
        undivided = tokenize(text, tokenizer)
        with monkeypatch.context() as patch:
            patch.setattr(tokens, "PART", 300)
            parts = tokenize(text, tokenizer)
            if name in ("bytes", "demo-llama"):
                assert len(list(tokens._parts(text, tokenizer))) > 10
        assert torch.equal(parts.ids, undivided.ids)
        assert torch.equal(parts.ends, undivided.ends)


def test_a_text_without_word_boundaries_is_a_single_part(monkeypatch) -> None:
    monkeypatch.setattr(tokens, "PART", 300)
    assert list(tokens._parts("ab" * 999, lrcore.load("demo-llama").tokenizer)) == ["ab" * 999]


def test_a_text_is_not_divided_after_several_failed_attempts(monkeypatch) -> None:
    monkeypatch.setattr(tokens, "PART", 300)
    attempts = []
    monkeypatch.setattr(tokens, "_is_cut", lambda *arguments: attempts.append(arguments))
    text = mixed_text(0)
    assert list(tokens._parts(text, lrcore.load("demo-llama").tokenizer)) == [text]
    assert len(attempts) == tokens.MAX_FAILURES
