"""MLA exports: equality with the model without custom code, cached latents, errors and notes."""

import pytest
import torch
from tiny_models import family_folder
from transformers import AutoModelForCausalLM, YoutuForCausalLM

import lrcore
from lrcore.cli import main

TOKENS = torch.arange(3, 43).view(2, 20)
GREEDY = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 2}
# full keys, and values as latents of 6, 9 and 4 numbers
LATENTS = {f"{layer}.k": 16 for layer in range(3)} | {"0.v": 6, "1.v": 9, "2.v": 4}


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


def standard(folder, dtype=torch.float32):
    exported_network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert type(exported_network) is YoutuForCausalLM
    return exported_network


def cached(network):
    """Return the cached numbers per token."""
    with torch.inference_mode():
        cache = network(TOKENS[:1], use_cache=True).past_key_values
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers) // 20


@pytest.fixture(scope="module")
def latents(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=2,
        seq_len=24,
        method="care",
        ratio=0.25,
        rank_overrides=LATENTS,
    )
    return lrcore.compress(lrcore.load(tiny_llama), recipe)


def test_latents_of_values_are_cached_at_their_ranks(latents, tmp_path) -> None:
    exported = lrcore.export_mla(latents, tmp_path / "out")
    exported_network = standard(exported.path)
    torch.testing.assert_close(logits(exported_network), logits(latents.network), atol=1e-4, rtol=0)
    expected = latents.network.generate(TOKENS[:1], **GREEDY)
    assert torch.equal(exported_network.generate(TOKENS[:1], **GREEDY), expected)
    assert (exported.latent, exported.rotary) == (10, 16)
    assert cached(exported_network) == exported.kv_values == 3 * (10 + 16)
    assert exported_network.num_parameters() == exported.parameters
    assert "latents were padded with zeros to the largest, 9" in exported.notes
    assert "78 numbers per token instead of 67" in exported.notes[-1]
    assert not list(exported.path.glob("*.py"))


@pytest.mark.parametrize("method", ["care", "modegpt", "svd_llm"])
def test_other_structures_give_the_same_logits(method, tiny_llama, small_of, tmp_path) -> None:
    small = small_of(tiny_llama, method, samples=2, seq_len=24, ratio=0.3)
    exported = lrcore.export_mla(small, tmp_path / "out")
    exported_network = standard(exported.path)
    torch.testing.assert_close(logits(exported_network), logits(small.network), atol=1e-4, rtol=0)
    assert cached(exported_network) == exported.kv_values
    notes = "; ".join(exported.notes)
    assert ("the keys of 3 layers are cached completely" in notes) == (method == "care")
    assert ("multiplied out" in notes) == (method != "modegpt")


def test_biases_of_values_are_exported(tiny_llama_bias, tmp_path) -> None:
    model = lrcore.load(tiny_llama_bias)
    with pytest.raises(
        lrcore.InputError, match=r"cannot be a youtu.*in layer 0 the MLP has biases"
    ):
        lrcore.export_mla(model, tmp_path / "out")
    for layer in model.network.model.layers:
        layer.self_attn.q_proj.bias = None
        for name in ("gate", "up", "down"):
            getattr(layer.mlp, f"{name}_proj").bias = None
    exported_network = standard(lrcore.export_mla(model, tmp_path / "out").path)
    torch.testing.assert_close(logits(exported_network), logits(model.network), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["", "svd_llm"])
def test_biases_of_queries_are_exported(method, tiny_llama, small_of, tmp_path) -> None:
    folder = family_folder("qwen2", tiny_llama, tmp_path / "dense")
    how = {"samples": 2, "seq_len": 24, "ratio": 0.3}
    model = small_of(folder, method, **how) if method else lrcore.load(str(folder))
    exported = lrcore.export_mla(model, tmp_path / "out")
    exported_network, width = standard(exported.path), 32
    assert (exported_network.config.q_lora_rank < width) == bool(method)
    assert (
        f"queries are computed from latents of {exported_network.config.q_lora_rank} numbers"
        in "; ".join(exported.notes)
    )
    with torch.inference_mode():  # within the sliding window
        expected, actual = (
            value(TOKENS[:, :6]).logits for value in (model.network, exported_network)
        )
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_scaled_rotary_angles_are_exported_and_a_window_limits_the_context(
    tiny_llama, tmp_path
) -> None:
    for family in ("llama", "mistral"):
        model = lrcore.load(family_folder(family, tiny_llama, tmp_path / family))
        exported = lrcore.export_mla(model, tmp_path / f"{family}-out")
        exported_network, window = standard(exported.path), 6 if family == "mistral" else 20
        with torch.inference_mode():
            expected = model.network(TOKENS[:, :window]).logits
            actual = exported_network(TOKENS[:, :window]).logits
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
        assert exported_network.config.max_position_embeddings == (128 if family == "llama" else 6)
        assert ("the context is limited to the sliding window, 6" in exported.notes) == (
            window == 6
        )


def test_layers_that_lost_heads_are_padded_with_zeros(tiny_llama, small_of, tmp_path) -> None:
    by_hand = {"0.heads": 2, "1.heads": 1, "2.heads": 2}
    small = small_of(
        tiny_llama, "llm_pruner", samples=2, seq_len=24, ratio=0.2, rank_overrides=by_hand
    )
    exported = lrcore.export_mla(small, tmp_path / "out")
    exported_network = standard(exported.path)
    torch.testing.assert_close(logits(exported_network), logits(small.network), atol=1e-4, rtol=0)
    assert "1 layers have heads of zeros, up to 2 of keys and values" in exported.notes
    assert cached(exported_network) == exported.kv_values > small.size.kv_values


def test_the_error_in_bfloat16_is_similar_to_that_of_the_model(latents, tmp_path) -> None:
    exported_network = standard(lrcore.export_mla(latents, tmp_path / "out").path, torch.bfloat16)
    exact = logits(latents.network)
    lrcore.save(latents, tmp_path / "kept")
    half = logits(lrcore.load(tmp_path / "kept", dtype="bfloat16").network).float()
    expected, actual = (
        (value - exact).norm() for value in (half, logits(exported_network).float())
    )
    assert actual < 2 * expected


def test_the_command_reports_the_cache_size(latents, tmp_path, capsys) -> None:
    lrcore.save(latents, tmp_path / "kept")
    assert main(["export", str(tmp_path / "kept"), str(tmp_path / "out"), "--format", "mla"]) == 0
    assert "the cache holds 78 numbers per token instead of 67" in " ".join(
        capsys.readouterr().out.split()
    )
    assert (tmp_path / "out" / "README.md").read_text().count("trust_remote_code") == 0
    with pytest.raises(lrcore.InputError, match="load the original checkpoint"):
        lrcore.load(tmp_path / "out")


def test_an_unsupported_family_is_refused(tiny_opt, tmp_path) -> None:
    with pytest.raises(lrcore.InputError, match="its family is opt, not llama, mistral"):
        lrcore.export_mla(lrcore.load(tiny_opt), tmp_path / "out")
    assert not (tmp_path / "out").exists()
