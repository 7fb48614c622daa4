"""Windows of texts, with a tokenizer that has one token per character."""

import warnings

import pytest
import torch

from lrcore.data import Texts, make_windows, windows_aside
from lrcore.system.errors import InputError


class Characters:
    def __call__(self, text, add_special_tokens=True, verbose=True):
        return {"input_ids": [999] * add_special_tokens + [ord(character) for character in text]}


def texts(*documents):
    return Texts(documents, "here")


def as_text(windows):
    return ["".join(map(chr, row)) for row in windows.tokens.tolist()]


def test_all_windows_are_full_and_do_not_overlap():
    windows = make_windows(texts("abcd", "efg"), Characters(), None, 4)
    assert as_text(windows) == ["abcd", "\n\nef"]  # "g" does not fill a window
    assert windows.tokens.dtype == torch.long


def test_first_windows_are_the_beginning_and_the_protocol_reports_a_shortage():
    windows = make_windows(texts("abcdefgh"), Characters(), 1, 3, "first")
    assert as_text(windows) == ["abc"]
    windows = make_windows(texts("abcdefgh"), Characters(), 9, 3, "first")
    assert as_text(windows) == ["abc", "def"]
    assert windows.protocol["samples_asked"] == 9
    assert windows.protocol["samples"] == 2


def test_random_windows_are_contiguous_and_reach_both_ends():
    text = "".join(chr(200 + i) for i in range(100))
    windows = make_windows(texts(text), Characters(), 2000, 10, "random", seed=3)
    starts = windows.tokens[:, 0] - 200
    assert windows.tokens.shape == (2000, 10)
    assert torch.equal(windows.tokens, 200 + starts[:, None] + torch.arange(10))
    assert set(starts.tolist()) == set(range(91))  # both ends are reached


def test_windows_depend_on_the_seed_only():
    text = texts("abcdefghijklmnopqrstuvwxyz" * 20)
    first, repeated, reseeded = (
        make_windows(text, Characters(), 8, 16, "random", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.tokens, repeated.tokens)
    assert first.key == repeated.key != reseeded.key
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    make_windows(text, Characters(), 8, 16)
    assert torch.equal(before, torch.rand(1))  # the global generator is unchanged


def test_a_window_may_be_as_long_as_the_text():
    for sampling in ("first", "random"):
        assert as_text(make_windows(texts("abc"), Characters(), 1, 3, sampling)) == ["abc"]


def test_the_protocol_describes_the_windows():
    text = texts("abcdefgh")
    assert make_windows(text, Characters(), 2, 3, "random", 7).protocol == {
        "source": "here",
        "fingerprint": text.fingerprint,
        "join": "\n\n",
        "special_tokens": False,
        "tokens_available": 8,
        "seq_len": 3,
        "sampling": "random",
        "seed": 7,
        "samples_asked": 2,
        "samples": 2,
    }
    all_windows = make_windows(text, Characters(), None, 3, "random", 7).protocol
    assert (all_windows["sampling"], all_windows["seed"], all_windows["samples"]) == (
        "first",
        None,
        2,
    )


def test_the_key_depends_on_shape_and_tokens():
    keys = {
        make_windows(texts(text), Characters(), None, length).key
        for text in ("abcdef", "abcdeg")
        for length in (2, 3)
    }
    assert len(keys) == 4


def test_the_fingerprint_depends_on_content_and_join():
    assert (
        texts("ab", "c").fingerprint
        == Texts(("ab", "c"), "elsewhere", fingerprint="made up").fingerprint
    )
    assert (
        len(
            {
                texts("ab", "c").fingerprint,
                texts("a", "bc").fingerprint,
                Texts(("ab", "c"), "here", " ").fingerprint,
            }
        )
        == 3
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (None, 20),
            r"here has 8 tokens, fewer than one window of 20 tokens\. Use windows of at most 8 "
            r"tokens, or a longer text\.",
        ),
        ((None, 1), r"seq_len must be a whole number >= 2, got 1"),
        ((None, 2.0), r"seq_len must be .* got 2\.0"),
        ((0, 4), r"samples must be a whole number >= 1 or None for all windows, got 0"),
        ((-3, 4), r"samples must be .* got -3"),
        ((True, 4), r"samples must be .* got True"),
        ((2, 4, "randm"), r"Unknown sampling 'randm'\. Did you mean 'random'\?"),
        ((2, 4, "random", -1), r"seed must be .* got -1"),
    ],
)
def test_invalid_arguments_are_reported(arguments, message):
    with pytest.raises(InputError, match=message):
        make_windows(texts("abcdefgh"), Characters(), *arguments)


def test_blank_texts_are_refused():
    with pytest.raises(InputError, match=r"here has no text: all 2 documents are blank"):
        texts(" ", "\n")


def test_a_text_longer_than_the_context_causes_no_warning(caplog):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "word": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", model_max_length=16
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows = make_windows(texts("word " * 100_000), tokenizer, None, 64)
    assert windows.tokens.shape == (1562, 64)
    assert not caplog.records


def aside(text, windows, samples):
    return ["".join(map(chr, row)) for row in windows_aside(text, Characters(), windows, samples)]


def test_windows_aside_are_disjoint_from_the_windows_and_each_other():
    text = texts("abcdefghijkl")
    assert aside(text, make_windows(text, Characters(), 2, 3, "first"), 9) == ["ghi", "jkl"]
    assert aside(text, make_windows(text, Characters(), None, 3), 9) == []
    unique = texts("".join(chr(200 + i) for i in range(400)))
    windows = make_windows(unique, Characters(), 8, 10, "random", seed=3)
    aside_windows = windows_aside(unique, Characters(), windows, 1000)
    assert aside_windows.unique().numel() == aside_windows.numel()  # disjoint from each other
    assert not torch.isin(aside_windows, windows.tokens).any()
    gaps = torch.tensor([0, *sorted(windows.starts.tolist()), 400]).diff()
    assert len(aside_windows) >= int((gaps.max() - 10) // 10)


def test_windows_aside_are_spread_over_the_text():
    text = texts("".join(chr(200 + i) for i in range(110)))
    windows = make_windows(text, Characters(), 1, 10, "first")
    aside_windows = windows_aside(text, Characters(), windows, 5)
    assert (aside_windows[:, 0] - 200).tolist() == [10, 30, 50, 70, 90]
