"""Exported files in llama.cpp: equal greedy tokens, perplexity within 0.1 %."""

import math

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

pytest.importorskip("gguf", reason="the package gguf is not installed")
from llama_cpp import LlamaCpp

import lrcore
from lrcore.models.layers import read_layer

pytestmark = pytest.mark.one_in(3)

PROMPTS = ("Once upon a time", "Tom and Lily saw 12 ducks. They")
STORY = "One day a girl named Lily went to the park. She saw 3 dogs, and they barked at her!"
TOKENS = 24
TIE = 1e-2  # a smaller margin between two logits can be a rounding error


def assert_same_output(model, path, tokens=TOKENS) -> None:
    """Check that llama.cpp generates the same tokens and perplexity.

    Tokens are compared up to the first one whose logit is the largest by less than TIE.
    """
    theirs, network = LlamaCpp(path), model.network
    for prompt in PROMPTS:
        ids = model.tokenizer(prompt).input_ids
        with torch.inference_mode():
            ours = network.generate(
                torch.tensor([ids]),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            )
        best = torch.stack([scores[0].topk(2).values for scores in ours.scores])
        clear = int((best[:, 0] - best[:, 1] > TIE).cumprod(0).sum())
        generated, count = theirs.greedy(prompt, tokens)
        assert count == len(ids)
        assert generated[:clear] == ours.sequences[0, len(ids) :].tolist()[:clear]
    ids = model.tokenizer(STORY, add_special_tokens=False).input_ids
    with torch.inference_mode():
        logs = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    of_tokens = logs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    perplexity = math.exp(-float(of_tokens.mean()))
    assert theirs.perplexity(ids, logs.shape[1]) == pytest.approx(perplexity, rel=1e-3)


@pytest.fixture(scope="module")
def demo():
    return lrcore.load("demo-llama")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_a_dense_model_gives_the_same_output_in_llama_cpp(kind, demo, tmp_path) -> None:
    exported = lrcore.export_gguf(demo, tmp_path / "a.gguf", kind)
    assert_same_output(lrcore.load(exported.path), exported.path)  # both use the rounded weights


@pytest.mark.parametrize("method", ["svd_llm", "a3", "fused", "care", "latentllm"])
def test_compressed_models_give_the_same_output_in_llama_cpp(method, demo, tmp_path) -> None:
    policy = "energy" if method == "fused" else "uniform"
    recipe = lrcore.Recipe(method=method, policy=policy, ratio=0.3, samples=2, seq_len=128)
    small = lrcore.compress(demo, recipe)
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "f32")
    assert exported.architecture == ("deci" if method == "fused" else "llama")
    assert_same_output(small, exported.path)


@pytest.mark.parametrize("method", ["llm_pruner", "flap"])
def test_models_with_fewer_heads_need_no_padding(method, demo, tmp_path) -> None:
    """llama.cpp supports fewer kv heads, with flap also by layer."""
    recipe = lrcore.Recipe(
        method=method, policy="energy", ratio=0.4, samples=2, seq_len=128, target="llama.cpp"
    )
    small = lrcore.compress(demo, recipe)
    heads = {read_layer(small.network, index).attention.n_kv for index in range(6)}
    assert min(heads) < 4
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "f32")
    assert exported.architecture == "deci"
    assert not any("filled" in clause for clause in exported.notes)
    assert_same_output(small, exported.path)


def test_rotary_scaling_of_llama_3_is_exported(demo, tmp_path) -> None:
    config = demo.network.config.to_dict()
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaled |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    config["rope_parameters"] = config["rope_parameters"] | scaled
    network = LlamaForCausalLM(type(demo.network.config)(**config))
    network.load_state_dict(demo.network.state_dict())
    model = lrcore.load(network, demo.tokenizer)
    exported = lrcore.export_gguf(model, tmp_path / "a.gguf", "f32")
    assert_same_output(model, exported.path)


@pytest.mark.parametrize("widths", [{}, {"0.mlp": 300, "1.mlp": 200}])
def test_biases_of_qwen2_are_exported(widths, demo, tmp_path) -> None:
    """Add biases to the demo model, with uniform and uneven sizes, which need another
    architecture.
    """
    config = demo.network.config.to_dict()
    fields = {
        name: value for name, value in config.items() if name not in ("model_type", "head_dim")
    }
    network = Qwen2ForCausalLM(Qwen2Config(**fields))
    torch.nn.init.normal_(network.model.layers[0].self_attn.k_proj.bias, std=0.5)
    network.load_state_dict(demo.network.state_dict(), strict=False)
    model = lrcore.load(network, demo.tokenizer)
    if widths:
        recipe = lrcore.Recipe(method="modegpt", ratio=0.05, samples=2, seq_len=64)
        model = lrcore.compress(model, recipe.with_(rank_overrides=widths))
    exported = lrcore.export_gguf(model, tmp_path / "a.gguf", "f32")
    assert exported.architecture == ("deci" if widths else "qwen2")
    assert_same_output(model, exported.path)


@pytest.fixture(params=["qwen3", "olmo2", "gemma", "granite"])
def relative(request, demo):
    """Copy the weights of the demo model to a family with additional norms, which are random."""
    config = demo.network.config.to_dict()
    fields = {
        name: value for name, value in config.items() if name not in ("model_type", "head_dim")
    }
    extra = {
        "gemma": {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
        "granite": {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.9,
            "logits_scaling": 2.0,
        },
    }.get(request.param, {})
    sizes = {} if request.param == "granite" else {"head_dim": 32}
    chosen = AutoConfig.for_model(request.param, **fields | sizes | extra)
    network = AutoModelForCausalLM.from_config(chosen)
    network.load_state_dict(demo.network.state_dict(), strict=False)
    offset = float(request.param == "gemma")  # gemma adds one to the weights of norms
    for name, weight in network.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.8 - offset, 1.2 - offset)
    return lrcore.load(network, demo.tokenizer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["", "svd_llm", "modegpt"])
def test_families_with_additional_norms_give_the_same_output(method, relative, tmp_path) -> None:
    model, widths = relative, {"0.mlp": 300, "1.mlp": 200}
    if method:
        recipe = lrcore.Recipe(method=method, ratio=0.1, samples=2, seq_len=64)
        model = lrcore.compress(
            relative, recipe.with_(rank_overrides=widths if method == "modegpt" else {})
        )
    exported = lrcore.export_gguf(model, tmp_path / "a.gguf", "f32")
    assert exported.architecture == relative.network.config.model_type
    assert any("padded with zeros to the widest" in clause for clause in exported.notes) == (
        method == "modegpt"
    )
    assert_same_output(model, exported.path)


@pytest.mark.parametrize("relative", ["qwen3", "gemma", "granite"], indirect=True)
def test_layers_that_lost_heads_are_padded_with_zeros_in_other_families(relative, tmp_path) -> None:
    """olmo2 cannot lose heads, because its norm spans all heads."""
    by_hand = {f"{layer}.heads": 2 if layer == 1 else 3 for layer in range(6)}
    recipe = lrcore.Recipe(
        method="llm_pruner", ratio=0.2, samples=2, seq_len=64, rank_overrides=by_hand
    )
    small = lrcore.compress(relative, recipe)
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "f32")
    assert exported.architecture == relative.network.config.model_type
    assert "1 layers have heads of zeros, up to 3 of keys and values" in exported.notes
    assert_same_output(small, exported.path, tokens=8)


def test_a_sentencepiece_vocabulary_is_exported(reference, tmp_path) -> None:
    model = lrcore.load(reference / "models/stories260K")
    assert_same_output(model, lrcore.export_gguf(model, tmp_path / "a.gguf", "f32").path)
