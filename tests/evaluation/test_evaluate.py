"""Perplexity, compared with a plain loop and a published value, and the handling of NaN."""

import importlib
import json
import math

import pytest
import torch

import lrcore
from lrcore.evaluation.evaluate import (
    Evaluation,
    evaluate,
    perplexity_by_position,
    token_losses,
    window_losses,
)
from lrcore.system.errors import Cancelled

module = importlib.import_module("lrcore.evaluation.evaluate")  # `lrcore.evaluate` is the function


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@torch.inference_mode()
def by_hand(model, windows):
    """Return the losses of all predicted tokens, computed one by one in float64."""
    losses = []
    for window in windows:
        for t in range(1, len(window)):
            logits = model.network(input_ids=window[None, :t]).logits[0, -1].double()
            losses.append(float(torch.logsumexp(logits, 0) - logits[window[t]]))
    return losses


def cut(model, text, count, length):
    """Return the first windows of a text by definition."""
    ids = torch.tensor(model.tokenizer(text, add_special_tokens=False).input_ids)
    return [ids[i * length : (i + 1) * length] for i in range(count)]


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_opt"])
def test_perplexity_equals_that_of_a_plain_loop(family, request, story_file, story_text):
    model = lrcore.load(str(request.getfixturevalue(family)))
    result = evaluate(model, str(story_file), samples=3, seq_len=12)
    losses = by_hand(model, cut(model, story_text, 3, 12))
    assert result.tokens == len(losses) == 33
    assert result.windows == 3
    assert result.nll == pytest.approx(sum(losses) / 33, rel=1e-6)
    assert result.perplexity == pytest.approx(math.exp(result.nll))


def test_all_full_windows_are_scored_for_any_batch_size(model, story_file, story_text):
    length = len(model.tokenizer(story_text, add_special_tokens=False).input_ids)
    unbatched, batched = (
        evaluate(model, str(story_file), seq_len=100, batch=batch) for batch in (1, 16)
    )
    assert unbatched.windows == length // 100
    assert unbatched.tokens == unbatched.windows * 99
    assert unbatched.nll == pytest.approx(batched.nll, rel=1e-6)


def test_the_loss_in_chunks_equals_the_loss_in_one_pass(model, monkeypatch):
    tokens = torch.randint(3, 300, (3, 20))
    losses = window_losses(model, tokens)
    monkeypatch.setattr(module, "_ROWS", 7 * 300)
    monkeypatch.setattr(module, "_LOGIT_BYTES", 1)
    assert torch.allclose(window_losses(model, tokens), losses, rtol=1e-5)
    assert losses.shape == (3, 19)
    assert losses.dtype == torch.float32


def test_the_protocol_contains_all_settings_of_the_measurement(model, story_file):
    result = evaluate(model, str(story_file), samples=2, seq_len=16, sampling="random", seed=5)
    message = result.protocol
    assert {
        key: message[key] for key in ("join", "special_tokens", "seq_len", "sampling", "seed")
    } == {
        "join": "\n\n",
        "special_tokens": False,
        "seq_len": 16,
        "sampling": "random",
        "seed": 5,
    }
    assert (message["windows"], message["tokens"], message["dtype"]) == (2, 32, "float32")
    assert message["source"]
    assert message["device"]
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.seconds > 0


def test_windows_with_nan_are_counted_and_not_dropped(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    clean = evaluate(model, str(story_file), samples=4, seq_len=16)
    token = int(cut(model, story_file.read_text(encoding="utf-8"), 4, 16)[2][3])
    plain = model.network.forward

    def with_nan(input_ids, **options):
        out = plain(input_ids=input_ids, **options)
        out.logits[(input_ids == token).any(1) & (torch.arange(len(input_ids)) == 2)] = float("nan")
        return out

    model.network.forward = with_nan
    damaged = evaluate(model, str(story_file), samples=4, seq_len=16)
    assert damaged.nonfinite == 1
    assert damaged.windows == clean.windows == 4
    assert math.isnan(damaged.perplexity)
    assert math.isfinite(damaged.nll_finite)
    assert damaged.to_dict()["perplexity"] is None
    assert damaged.to_dict()["nonfinite"] == 1


def test_an_overflowing_perplexity_is_infinite(model, monkeypatch, story_file):
    monkeypatch.setattr(module, "window_losses", lambda *_: torch.full((2, 3), 1e4))
    assert evaluate(model, str(story_file), seq_len=4).perplexity == math.inf


def test_progress_counts_windows_and_may_cancel(model, story_file):
    seen = []
    evaluate(
        model,
        str(story_file),
        samples=5,
        seq_len=8,
        batch=2,
        progress=lambda *step: seen.append(step),
    )
    assert seen == [("evaluate", 2, 5), ("evaluate", 4, 5), ("evaluate", 5, 5)]

    def stop(*_):
        raise Cancelled

    with pytest.raises(Cancelled):
        evaluate(model, str(story_file), samples=5, seq_len=8, batch=2, progress=stop)


def test_windows_beyond_the_context_and_foreign_tokenizers_are_refused(model, story_file):
    with pytest.raises(lrcore.InputError, match=r"129 tokens exceed the context .* \(128\)"):
        evaluate(model, str(story_file), seq_len=129)
    with pytest.raises(lrcore.InputError, match=r"token id 300, .* has 300"):
        window_losses(model, torch.full((1, 4), 300))


@pytest.mark.parametrize(
    "text", ["Once upon a time, “Où est Zoë?” 🙂 said 日本 .", "a", " two  spaces\n\nand lines "]
)
def test_token_losses_are_aligned_with_the_text(model, text):
    result = token_losses(model, text)
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    assert "".join(piece for piece, _ in result) == text
    assert len(result) == len(ids)
    assert math.isnan(result[0][1])
    assert [loss for _, loss in result[1:]] == pytest.approx(
        by_hand(model, torch.tensor([ids])), rel=1e-4
    )
    with pytest.raises(lrcore.InputError, match="empty"):
        token_losses(model, "")


def test_the_published_perplexity_is_reproduced(reference):
    model = lrcore.load(str(reference / "models" / "stories260K"))
    result = evaluate(
        model, str(reference / "text" / "tinystories.evaluation.txt"), samples=128, seq_len=256
    )
    assert isinstance(result, Evaluation)
    assert (result.windows, result.tokens, result.nonfinite) == (128, 128 * 255, 0)
    assert result.perplexity == pytest.approx(8.0763, abs=5e-5)


def test_token_pieces_of_a_trained_tokenizer_concatenate_to_the_text(reference):
    model = lrcore.load(str(reference / "models" / "stories260K"))
    text = "Once upon a time, there was a café. “Hi!” said Tom."
    assert "".join(piece for piece, _ in token_losses(model, text)) == text


def test_long_windows_have_perplexities_by_position() -> None:
    losses = torch.arange(2 * 2047, dtype=torch.float64).view(2, 2047) / 1000
    perplexities = perplexity_by_position(losses)
    assert list(perplexities) == ["256", "512", "1024", "2048"]
    assert perplexities["256"] == pytest.approx(math.exp(float(losses[:, :255].mean())))
    assert perplexities["512"] == pytest.approx(math.exp(float(losses[:, 255:511].mean())))
    assert perplexities["2048"] == pytest.approx(math.exp(float(losses[:, 1023:].mean())))
    assert list(perplexity_by_position(losses[:, :1999])) == ["256", "512", "1024", "2000"]
    assert list(perplexity_by_position(losses[:, :1099])) == ["256", "512", "1100"]
    assert perplexity_by_position(losses[:, :510]) is None


def test_short_windows_have_no_perplexities_by_position(tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    short = lrcore.evaluate(model, str(story_file), samples=1, seq_len=64)
    assert "by_position" not in short.to_dict()
