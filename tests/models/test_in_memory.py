"""Loading from a path object, or from a transformers model with its tokenizer."""

import pytest
import torch
from tiny_models import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

import lrcore

TOKENS = torch.arange(3, 43).view(2, 20)


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


@pytest.fixture
def network(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama)


@pytest.fixture
def tokenizer(tiny_llama):
    return AutoTokenizer.from_pretrained(tiny_llama)


def test_path_object_equals_its_string(tiny_llama, story_file, tmp_path) -> None:
    by_name, by_path = lrcore.load(str(tiny_llama)), lrcore.load(tiny_llama)
    assert (by_path.name, by_path.fingerprint) == (by_name.name, by_name.fingerprint)
    saved = lrcore.save(lrcore.quantize(by_path, bits=8), tmp_path / "kept")
    assert lrcore.load(saved).name == str(saved)


def test_network_in_memory_is_compressed_saved_and_evaluated(
    network, tokenizer, tiny_llama, story_file, tmp_path
) -> None:
    model = lrcore.load(network, tokenizer)
    assert (model.name, model.folder) == (str(tiny_llama), tiny_llama)
    assert torch.equal(logits(model.network), logits(lrcore.load(tiny_llama).network))
    assert all(parameter.requires_grad for parameter in network.parameters())  # unchanged
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method="svd_llm")
    small = lrcore.compress(model, recipe)
    back = lrcore.load(lrcore.save(small, tmp_path / "small"))
    assert torch.equal(logits(back.network), logits(small.network))
    assert back.base.fingerprint == model.fingerprint
    assert lrcore.evaluate(model, str(story_file), samples=2, seq_len=32).perplexity > 1


def test_fingerprint_depends_on_the_weights(network, tokenizer) -> None:
    first = lrcore.load(network, tokenizer).fingerprint
    assert lrcore.load(network, tokenizer=tokenizer).fingerprint == first
    with torch.no_grad():
        network.lm_head.weight[0, 0] += 1
    changed = lrcore.load(network, tokenizer)
    assert changed.fingerprint != first
    assert changed.network.lm_head.weight[0, 0] == network.lm_head.weight[0, 0]


def test_network_without_files_is_loaded_in_its_dtype_or_another(tokenizer, story_file) -> None:
    made = tiny("llama").to(torch.bfloat16)
    model = lrcore.load(made, tokenizer)
    assert (model.name, model.dtype, model.folder.exists()) == (
        "LlamaForCausalLM",
        "bfloat16",
        False,
    )
    wide = lrcore.load(made, tokenizer, dtype="float32")
    assert wide.dtype == "float32"
    assert next(made.parameters()).dtype == torch.bfloat16


def test_network_loaded_from_an_export_is_accepted(
    tiny_llama, tokenizer, story_file, tmp_path
) -> None:
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method="a3")
    small = lrcore.compress(lrcore.load(tiny_llama), recipe)
    folder = lrcore.export(small, tmp_path / "out")
    remote = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model = lrcore.load(remote, tokenizer)
    assert torch.equal(logits(model.network), logits(small.network))
    assert model.size == small.size


def test_invalid_arguments_raise(network, tokenizer, tiny_llama) -> None:
    with pytest.raises(lrcore.InputError, match=r"load\(network, tokenizer\)"):
        lrcore.load(network)
    with pytest.raises(lrcore.InputError, match="has a tokenizer"):
        lrcore.load(tiny_llama, tokenizer)
    with pytest.raises(lrcore.InputError, match="Cannot load a dict"):
        lrcore.load({}, tokenizer)
    with pytest.raises(lrcore.InputError, match="do not match its config"):
        lrcore.load(network.model, tokenizer)
    small = {"d_model": 8, "d_ff": 8, "d_kv": 8, "num_heads": 1, "num_layers": 1, "vocab_size": 20}
    with pytest.raises(lrcore.InputError, match="Model family 't5'"):
        lrcore.load(T5ForConditionalGeneration(T5Config(**small)), tokenizer)


def test_tokenizer_of_a_different_model_raises(network, tokenizer, story_file) -> None:
    network.resize_token_embeddings(20)
    model = lrcore.load(network, tokenizer)
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32)
    with pytest.raises(lrcore.InputError, match="belongs to another model"):
        lrcore.calibrate(model, recipe)
    for protocol in ("windows", "strided"):
        with pytest.raises(lrcore.InputError, match="belongs to another model"):
            lrcore.evaluate(model, str(story_file), samples=2, seq_len=32, protocol=protocol)
