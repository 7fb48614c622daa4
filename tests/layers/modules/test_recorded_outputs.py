"""Attentions and hidden states of compressed modules, recorded as by native modules."""

import pytest
import torch
from tiny_models import family_folder

import lrcore

TOKENS = torch.arange(3, 43).view(2, 20)


def recorded(network):
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        return network(TOKENS, output_attentions=True, output_hidden_states=True)


@pytest.fixture
def made(tiny_llama, story_file, tmp_path):
    """Return a function that returns the dense and the compressed model of a family."""

    def make(family, method, ratio=0.3, **changes):
        folder = tiny_llama
        if family != "llama":
            folder = family_folder(family, tiny_llama, tmp_path / family)
        dense = lrcore.load(folder)
        recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=2, seq_len=24)
        if method == "sliced":
            return dense, lrcore.slice_hidden(dense, recipe.with_(ratio=ratio))
        recipe = recipe.with_(method=method, ratio=ratio, **changes)
        return dense, lrcore.compress(dense, recipe)

    return make


CASES = [
    ("llama", "modegpt"),
    ("llama", "care"),
    ("llama", "latentllm"),
    ("llama", "sliced"),
    ("gemma2", "a3"),  # softcap
    ("gpt_neo", "modegpt"),  # a window, layers that return tuples
    ("bloom", "a3"),  # a bias for positions
    ("gpt2", "modegpt"),  # the model does not pass output_attentions on
]


@pytest.mark.parametrize(("family", "method"), CASES)
def test_attentions_and_hidden_states_are_recorded(family, method, made) -> None:
    dense, small = made(family, method)
    with torch.inference_mode():
        plain = small.network(TOKENS)
    out, dense_outputs = recorded(small.network), recorded(dense.network)
    assert plain.get("attentions") is None
    assert torch.allclose(out.logits, plain.logits, atol=1e-4)
    assert [tensor.shape for tensor in out.attentions] == [
        tensor.shape for tensor in dense_outputs.attentions
    ]
    for weights in out.attentions:
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert not weights.triu(1).any()
    assert len(out.hidden_states) == len(dense_outputs.hidden_states)
    for mine, theirs in zip(out.hidden_states, dense_outputs.hidden_states, strict=True):
        assert mine.shape == theirs.shape or method == "sliced"


def test_recorded_attentions_are_the_softmax_of_the_scores(made) -> None:
    """With full ranks of queries and keys, the first layer attends like the dense layer."""
    full_ranks = {f"0.{name}": 8 for name in ("qk",)} | {"0.ov": 4}
    dense, small = made("llama", "a3", rank_overrides=full_ranks)
    mine, theirs = (recorded(model.network).attentions[0] for model in (small, dense))
    assert torch.allclose(mine, theirs, atol=1e-6)


def test_model_compressed_twice_records_attentions(made, story_file) -> None:
    _, small = made("llama", "modegpt")
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=24, method="care", ratio=0.2)
    out = recorded(lrcore.compress(small, recipe).network)
    assert [tensor.shape for tensor in out.attentions] == [(2, 4, 20, 20)] * 3
