"""Sizes by layer, stored in config.json as `per_layer_config` of transformers."""

import json

import pytest
import torch
from elsewhere import TOKENS, elsewhere
from tiny_models import copy_tokenizer, family_folder
from transformers import GPT2Config, LlamaConfig, Qwen3MoeConfig

import lrcore
from lrcore.models.layers import read_layer

# Script that generates with a cache of fixed length, in which layers have the shapes of their keys
# and values.
STATIC = """
import sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokens = torch.arange(3, 23)[None]
greedy = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2, "disable_compile": True}
kept = model.generate(tokens, cache_implementation="static", **greedy)
assert torch.equal(kept, model.generate(tokens, **greedy))
sizes = model.config.per_layer_config
assert [size.intermediate_size for size in sizes] == [
    layer.mlp.up_proj.out_features for layer in model.model.layers
]
model.save_pretrained(sys.argv[2])
again = AutoConfig.from_pretrained(sys.argv[2], trust_remote_code=True)
assert again.to_dict()["per_layer_config"] == model.config.to_dict()["per_layer_config"]
"""


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


@pytest.fixture(scope="module")
def uneven(tiny_llama, story_file):
    """Return a model with widths 48, 40 and 20 and, in the last layer, heads of 6."""
    ranks = {"0.mlp": 48, "1.mlp": 40, "2.mlp": 20}
    heads = {
        f"{layer}.{name}": 6 if layer == 2 else 8 for layer in range(3) for name in ("qk", "ov")
    }
    recipe = lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=2,
        seq_len=24,
        ratio=0.15,
        method="modegpt",
        rank_overrides=ranks | heads,
    )
    return lrcore.compress(lrcore.load(str(tiny_llama)), recipe)


def test_an_export_stores_the_sizes_of_its_layers_and_loads(uneven, tmp_path) -> None:
    folder = lrcore.export(uneven, tmp_path / "out")
    values = json.loads((folder / "config.json").read_text())
    sizes = {"1": {"intermediate_size": 40}, "2": {"intermediate_size": 20, "head_dim": 6}}
    assert values["per_layer_config"] == sizes
    config = LlamaConfig.from_dict(values | {"model_type": "llama"})
    assert [layer_config.intermediate_size for layer_config in config.per_layer_config] == [
        48,
        40,
        20,
    ]
    assert [layer_config.head_dim for layer_config in config.per_layer_config] == [8, 8, 6]
    assert config.intermediate_size == 48
    elsewhere(STATIC, str(folder), str(tmp_path / "again"), cwd=tmp_path)
    copy_tokenizer(folder, tmp_path / "again")
    for target_folder in (folder, tmp_path / "again"):
        reloaded = lrcore.load(str(target_folder))
        assert torch.equal(logits(reloaded), logits(uneven))
        assert not reloaded.network.config.is_heterogeneous


def test_layers_with_the_sizes_of_the_config_are_omitted(tiny_llama, small_of, tmp_path) -> None:
    for name, model in (
        ("dense", lrcore.load(str(tiny_llama))),
        ("pairs", small_of(tiny_llama, "svd_llm", samples=2, seq_len=24)),
        ("latents", small_of(tiny_llama, "care", samples=2, seq_len=24)),
    ):
        folder = lrcore.export(model, tmp_path / name)
        assert "per_layer_config" not in json.loads((folder / "config.json").read_text())


def test_widths_are_stored_if_the_config_of_the_family_has_none(
    tiny_llama, small_of, tmp_path
) -> None:
    dense = family_folder("gpt2", tiny_llama, tmp_path / "dense")
    small = small_of(dense, "modegpt", samples=2, seq_len=24)
    values = json.loads((lrcore.export(small, tmp_path / "out") / "config.json").read_text())
    config = GPT2Config.from_dict(values | {"model_type": "gpt2"})
    widths = [layer_config.n_inner for layer_config in config.per_layer_config]
    assert widths == [row.rank for row in small.ranks if row.component == "mlp"]
    assert "head_dim" not in values["per_layer_config"]["0"]


HEADS = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
for layer, sizes in zip(model.model.layers, config.per_layer_config):
    assert layer.self_attn.k_proj.out_features == sizes.num_key_value_heads * sizes.head_dim
    assert layer.self_attn.q_proj.out_features == sizes.num_attention_heads * sizes.head_dim
model.save_pretrained(sys.argv[2])
"""


def test_the_number_of_heads_of_a_layer_is_stored(tiny_llama, small_of, tmp_path) -> None:
    by_hand = {"0.heads": 2, "1.heads": 1, "2.heads": 2}
    small = small_of(
        tiny_llama, "llm_pruner", samples=2, seq_len=24, ratio=0.2, rank_overrides=by_hand
    )
    folder = lrcore.export(small, tmp_path / "out")
    values = json.loads((folder / "config.json").read_text())
    assert values["per_layer_config"]["1"].items() >= {
        ("num_attention_heads", 2),
        ("num_key_value_heads", 1),
    }
    config = LlamaConfig.from_dict(values | {"model_type": "llama"})
    assert [layer_config.num_key_value_heads for layer_config in config.per_layer_config] == [
        2,
        1,
        2,
    ]
    elsewhere(HEADS, str(folder), str(tmp_path / "again"), cwd=tmp_path)
    copy_tokenizer(folder, tmp_path / "again")
    for target_folder in (folder, tmp_path / "again"):
        assert torch.equal(logits(lrcore.load(str(target_folder))), logits(small))


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "gptj", "falcon", "mpt"])
def test_only_config_fields_of_the_family_are_stored(
    family, tiny_llama, small_of, tmp_path
) -> None:
    """Some families lack the number of key heads or compute the head size; transformers refuses
    configs with such fields for layers.
    """
    dense = family_folder(family, tiny_llama, tmp_path / "dense")
    heads = read_layer(lrcore.load(str(dense)).network, 0).attention.n_kv
    fewer = {"0.heads": heads, "1.heads": heads - 1}
    narrower = {f"{layer}.{name}": 4 for layer in range(2) for name in ("qk", "ov")}
    for method, ranks in (("llm_pruner", fewer), ("a3", narrower)):
        settings = {"samples": 2, "seq_len": 24, "ratio": 0.2, "rank_overrides": ranks}
        small = small_of(dense, method, **settings)
        folder = lrcore.export(small, tmp_path / method)
        values = json.loads((folder / "config.json").read_text())
        config = type(small.network.config).from_dict(values | {"model_type": family})
        assert len(list(config.per_layer_config)) == 2
        assert torch.equal(logits(lrcore.load(str(folder))), logits(small))


def test_the_width_of_the_experts_of_a_layer_is_stored(tiny_llama, small_of, tmp_path) -> None:
    dense = family_folder("qwen3_moe", tiny_llama, tmp_path / "dense")
    small = small_of(dense, "a3", samples=2, seq_len=24, ratio=0.3, policy="energy")
    first = read_layer(small.network, 1).experts.mlps[0]  # layer 0 has no experts
    folder = lrcore.export(small, tmp_path / "out")
    values = json.loads((folder / "config.json").read_text())
    config = Qwen3MoeConfig.from_dict(values | {"model_type": "qwen3_moe"})
    assert config.per_layer_config[1].moe_intermediate_size == len(first.up.weight)
    assert len(first.up.weight) < config.moe_intermediate_size
    assert torch.equal(logits(lrcore.load(str(folder))), logits(small))
