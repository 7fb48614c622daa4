"""Evaluation protocols, compared with plain loops in float64 that predict each token from a
separate row.
"""

import json
import math

import pytest
import torch

import lrcore
from lrcore.data import Texts, tokenize
from lrcore.evaluation.evaluation_settings import PROTOCOLS
from lrcore.evaluation.protocols import make_passages, rolling_windows, stride_spans


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama), dtype="float64")


@pytest.fixture(scope="module")
def documents(story_text):
    return [story_text[:500], "Où est Zoë? 🙂", story_text[500:900], "One."]


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8"
    )
    return path


@torch.inference_mode()
def losses_of(model, predicted):
    """Return the losses of tokens by their previous tokens; predicted: pairs of (previous tokens,
    token).
    """
    before, tokens = zip(*predicted, strict=True)
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in before], batch_first=True)
    logits = model.network(input_ids=rows).logits
    last = logits[torch.arange(len(rows)), [len(ids) - 1 for ids in before]].double()
    return torch.nn.functional.cross_entropy(last, torch.tensor(tokens), reduction="none").tolist()


def ids_of(model, text, special=False):
    return model.tokenizer(text, add_special_tokens=special).input_ids


@pytest.mark.parametrize(
    ("name", "join"),
    [
        ("gptq-2048", "\n\n"),
        ("gptq-4096", "\n\n"),
        ("gptq-2048-c4", " "),
        ("gptq-2048-ptb", " "),
    ],
)
def test_gptq_windows_are_as_long_as_the_context(model, rows_file, documents, name, join):
    ids = ids_of(model, join.join(documents), special=True)
    result = lrcore.evaluate(model, str(rows_file), samples=2, protocol=name)
    windows = [ids[:128], ids[128:256]]
    losses = losses_of(
        model, [(window[:t], window[t]) for window in windows for t in range(1, 128)]
    )
    assert result.nll == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert (result.windows, result.tokens) == (2, 2 * 127)
    message = result.protocol
    assert (message["name"], message["seq_len"], message["join"], message["special_tokens"]) == (
        name,
        128,
        join,
        True,
    )
    assert message["special_tokens_added"] == model.tokenizer.num_special_tokens_to_add()


def test_documents_and_windows_of_c4_are_limited(model, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"Tom had {i} apples."}) + "\n" for i in range(1200))
    )
    result = make_passages(model, lrcore.EvaluationSettings(str(path), protocol="gptq-2048-c4"))
    assert result.protocol["documents"] == 1100
    assert len(result.rows) == min(256, result.protocol["tokens_available"] // 128)


def test_the_strided_protocol_scores_each_token_once(model, story_file, story_text):
    ids = ids_of(model, story_text)[:400]
    path = story_file.with_name("short.txt")
    path.write_text(model.tokenizer.decode(ids))
    ids = ids_of(model, path.read_text())
    result = lrcore.evaluate(model, str(path), seq_len=40, protocol="strided", stride=12)
    predicted, reached = [], 1
    for first in range(0, len(ids), 12):
        last = min(first + 40, len(ids))
        predicted += [(ids[first:t], ids[t]) for t in range(reached, last)]
        reached = max(reached, last)
    losses = losses_of(model, predicted)
    assert len(losses) == len(ids) - 1 == result.tokens
    assert result.nll == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert (result.protocol["stride"], result.protocol["seq_len"]) == (12, 40)


@pytest.mark.parametrize(
    ("tokens", "length", "stride"), [(10, 4, 1), (10, 4, 3), (3, 8, 4), (2, 2, 1), (100, 7, 6)]
)
def test_stride_spans_cover_all_tokens_but_the_first(tokens, length, stride):
    spans = list(stride_spans(tokens, length, stride))
    scored = [t for _, last, count in spans for t in range(last - count, last)]
    assert scored == list(range(1, tokens))
    assert all(last - first <= length for first, last, _ in spans)
    assert all(
        last - count - first >= length - stride
        for first, last, count in spans[1:]
        if last - first == length
    )


def test_word_and_byte_perplexity_follow_the_definitions_of_lm_eval(model, rows_file, documents):
    result = lrcore.evaluate(model, str(rows_file), protocol="lm-eval-word")
    predicted = []
    for document in documents:
        ids = ids_of(model, document)
        done = 0
        while done < len(ids):
            scored = min(128, len(ids) - done)
            start = 0 if done == 0 else done if scored == 128 else done + scored - 128
            all_ids = [model.tokenizer.bos_token_id, *ids]
            predicted += [(all_ids[start : t + 1], ids[t]) for t in range(done, done + scored)]
            done += scored
    total = sum(losses_of(model, predicted))
    words = sum(len(document.split(" ")) for document in documents)
    octets = sum(len(document.encode()) for document in documents)
    assert result.word_perplexity == pytest.approx(math.exp(total / words), rel=1e-6)
    assert result.byte_perplexity == pytest.approx(math.exp(total / octets), rel=1e-6)
    assert result.bits_per_byte == pytest.approx(total / octets / math.log(2), rel=1e-6)
    assert result.protocol["prefix_token"] == "<s>"


def test_rolling_windows_cover_a_document():
    rows = list(rolling_windows(torch.arange(10, 20), prefix=1, length=4))
    assert [(row.tolist(), scored) for row, scored in rows] == [
        ([1, 10, 11, 12, 13], 4), ([13, 14, 15, 16, 17], 4), ([15, 16, 17, 18, 19], 2),
    ]  # fmt: skip
    assert list(rolling_windows(torch.tensor([], dtype=torch.long), 1, 4)) == []


def test_bits_per_byte_count_the_predicted_text(model, story_file, story_text):
    result = lrcore.evaluate(model, str(story_file), samples=1, seq_len=30)
    ids = ids_of(model, story_text)
    octets = len(model.tokenizer.decode(ids[1:30]).encode())
    assert result.bits_per_byte == pytest.approx(result.nll * 29 / octets / math.log(2), rel=1e-9)


def test_bytes_of_a_character_in_several_tokens_count_once(model):
    text = "a🙂b é"
    result = tokenize(text, model.tokenizer)
    assert result.bytes(0, len(result.ids)) == len(text.encode())
    assert sum(result.bytes(i, i + 1) for i in range(len(result.ids))) == len(text.encode())


def test_documents_with_nan_are_counted_and_not_dropped(tiny_llama, rows_file):
    model = lrcore.load(str(tiny_llama))
    plain = model.network.forward

    def with_nan(input_ids, **options):
        out = plain(input_ids=input_ids, **options)
        if input_ids.shape[1] < 40:
            out.logits[...] = float("nan")
        return out

    model.network.forward = with_nan
    result = lrcore.evaluate(model, str(rows_file), protocol="lm-eval-word").to_dict()
    assert result["nonfinite"] == 2
    assert (result["perplexity"], result["word_perplexity"], result["bits_per_byte"]) == (
        None,
        None,
        None,
    )
    assert result["nll_finite"] is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"protocol": "gptq2048"}, "Did you mean 'gptq-2048'"),
        ({"protocol": "gptq-2048", "seq_len": 64}, "fixed length"),
        ({"protocol": "gptq-2048", "sampling": "random"}, "in order"),
        ({"protocol": "windows", "stride": 4}, "does not apply"),
        ({"protocol": "strided", "seq_len": 16, "stride": 16}, "from 1 to seq_len - 1"),
        ({"protocol": "lm-eval-word", "samples": 0}, "at least 1|>= 1"),
    ],
)
def test_settings_that_do_not_apply_to_a_protocol_are_refused(model, rows_file, settings, words):
    with pytest.raises(lrcore.InputError, match=words):
        lrcore.evaluate(model, str(rows_file), **settings)


def test_all_protocols_describe_themselves(model, rows_file):
    for name in PROTOCOLS.keys() - {"assistant"}:  # needs conversations
        result = lrcore.evaluate(model, str(rows_file), samples=1, protocol=name).to_dict()
        json.dumps(result, allow_nan=False)
        assert result["protocol"].keys() >= {
            "name",
            "join",
            "seq_len",
            "windows",
            "tokens",
            "special_tokens",
            "dtype",
            "device",
            "source",
            "fingerprint",
        }
        assert result["seconds"] > 0


def test_word_perplexity_equals_that_of_lm_eval(model, documents, rows_file):
    pytest.importorskip(
        "lm_eval.models.huggingface", reason="lm-eval is not installed", exc_type=ImportError
    )
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    wrapped = HFLM(
        pretrained=model.network, tokenizer=model.tokenizer, backend="causal", batch_size=1
    )
    requested = [Instance("loglikelihood_rolling", {}, (document,), 0) for document in documents]
    total = -sum(wrapped.loglikelihood_rolling(requested, disable_tqdm=True))
    result = lrcore.evaluate(model, str(rows_file), protocol="lm-eval-word")
    words = sum(len(document.split(" ")) for document in documents)
    assert result.word_perplexity == pytest.approx(math.exp(total / words), rel=1e-6)


def test_the_fingerprint_depends_on_the_join():
    assert Texts(("a", "b"), "x", " ").fingerprint != Texts(("a", "b"), "x").fingerprint
