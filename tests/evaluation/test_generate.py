"""Generation, compared with a loop without a cache, and text pieces that concatenate to the
text.
"""

import importlib

import pytest
import torch

import lrcore
from lrcore.evaluation.generate import Decoder, generate, stream

module = importlib.import_module("lrcore.evaluation.generate")  # `lrcore.generate` is the function


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_opt"])
def model(request):
    return lrcore.load(str(request.getfixturevalue(request.param)))


@torch.inference_mode()
def greedy_without_cache(model, prompt, count):
    ids = model.tokenizer(prompt).input_ids
    generated = []
    for _ in range(count):
        token = int(
            model.network(input_ids=torch.tensor([ids + generated]), use_cache=False)
            .logits[0, -1]
            .argmax()
        )
        if token == model.tokenizer.eos_token_id:
            break
        generated.append(token)
    return model.tokenizer.decode(generated, skip_special_tokens=True)


def test_greedy_generation_equals_a_loop_without_cache(model):
    assert generate(model, "Once upon a time", max_new_tokens=24) == greedy_without_cache(
        model, "Once upon a time", 24
    )


def test_a_seed_determines_the_text_and_the_global_generator_is_unchanged(model):
    def sample(seed):
        return generate(model, "Tom", max_new_tokens=24, temperature=1.0, top_p=0.95, seed=seed)

    torch.manual_seed(1)
    first = sample(7)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert sample(7) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_a_tiny_nucleus_is_greedy(model):
    greedy = generate(model, "The dog", max_new_tokens=12)
    assert (
        generate(model, "The dog", max_new_tokens=12, temperature=0.5, top_p=1e-9, seed=3) == greedy
    )


def test_sampling_follows_the_probabilities(model):
    """Compare frequencies of the first token over many seeds with softmax(logits / temperature),
    within five standard errors.
    """
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    settings = lrcore.GenerationSettings(temperature=0.7)
    nucleus = lrcore.GenerationSettings(temperature=0.7, top_p=0.9)
    draws = torch.tensor(
        [
            module._choose(logits, settings, torch.Generator().manual_seed(seed))
            for seed in range(2000)
        ]
    )
    shares = torch.softmax(logits / 0.7, 0)
    for token, share in enumerate(shares.tolist()):
        assert (
            abs(float((draws == token).float().mean()) - share)
            < 5 * (share * (1 - share) / 2000) ** 0.5
        )
    chosen_ids = {
        module._choose(logits, nucleus, torch.Generator().manual_seed(seed)) for seed in range(300)
    }
    assert chosen_ids == {0, 1}  # shares 0.75, 0.18, ...: two tokens reach 0.9


def test_generation_ends_when_the_context_is_full(model, monkeypatch):
    prompt = "a" * 120  # the context has 128 positions
    monkeypatch.setattr(module, "_ends", lambda _model: set())
    assert len(chosen_tokens(model, prompt, 500, monkeypatch)) == model.context - len(
        model.tokenizer(prompt).input_ids
    )


def test_generation_ends_at_an_end_token(model, monkeypatch):
    first = chosen_tokens(model, "Once upon", 1, monkeypatch)[0]
    monkeypatch.setattr(model.network.generation_config, "eos_token_id", [299, first])
    assert generate(model, "Once upon", max_new_tokens=5) == ""


def chosen_tokens(model, prompt, count, monkeypatch):
    """Return the tokens of a greedy continuation."""
    chosen, choose = [], module._choose
    with monkeypatch.context() as patch:
        patch.setattr(
            module, "_choose", lambda *arguments: chosen.append(choose(*arguments)) or chosen[-1]
        )
        generate(model, prompt, max_new_tokens=count)
    return chosen


def test_closing_the_iterator_stops_generation(model, monkeypatch):
    calls = []
    plain = model.network.forward
    monkeypatch.setattr(
        model.network, "forward", lambda **options: calls.append(1) or plain(**options)
    )
    pieces = stream(model, "Once upon a time", max_new_tokens=50, temperature=1.0)
    next(pieces)
    done = len(calls)
    pieces.close()
    assert done < 50
    assert len(calls) == done
    assert not torch.is_inference_mode_enabled()


def test_a_suspended_iterator_does_not_change_torch_modes(model):
    pieces = stream(model, "Once", max_new_tokens=4, temperature=1.0, seed=1)
    next(pieces)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("text", ["“Où est Zoë?” 🙂 日本", " leading", "a\n\nb  c"])
def test_characters_of_several_tokens_are_emitted_complete(model, text):
    start = model.tokenizer("Once upon", add_special_tokens=False).input_ids
    ids = model.tokenizer(text, add_special_tokens=False).input_ids
    decoder = Decoder(model.tokenizer, start)
    pieces = [decoder.add(token) for token in ids] + [decoder.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_incomplete_bytes_are_emitted_at_the_end(model):
    half = model.tokenizer("é", add_special_tokens=False).input_ids[:1]
    decoder = Decoder(model.tokenizer, [])
    assert decoder.add(half[0]) == ""
    assert decoder.flush() == "\ufffd"


def test_leading_spaces_of_a_trained_tokenizer_are_preserved(reference):
    model = lrcore.load(str(reference / "models" / "stories260K"))
    text = generate(model, "Once upon a time", max_new_tokens=40)
    assert text.startswith(", there was a ")
    assert text == greedy_without_cache(model, "Once upon a time", 40)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "a" * 500}, "context holds 128"),
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"top_p": 0.0}, "top_p must lie"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_invalid_settings_are_refused_before_generation(model, settings, word):
    with pytest.raises(lrcore.InputError, match=word):
        stream(model, **{"prompt": "Once", **settings})


def test_nan_logits_are_reported(tiny_llama):
    model = lrcore.load(str(tiny_llama))
    model.network.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(lrcore.InputError, match="not finite"):
        generate(model, "Once")
