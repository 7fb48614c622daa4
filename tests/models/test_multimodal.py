"""Multimodal models: the language model is compressed, and other weights stay bit-identical."""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from elsewhere import elsewhere
from pictured_models import MROPE
from safetensors.torch import save_file
from tiny_models import CONFIGS as FAMILIES
from tiny_models import DELTA_NET, copy_tokenizer
from transformers import (
    AutoConfig,
    CLIPVisionConfig,
    LlamaConfig,
    Qwen2Config,
    SiglipVisionConfig,
)

import lrcore
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.compression.steps.layer_pruning.depth import skip_layers
from lrcore.models.architectures import MULTIMODAL, SOUNDS_ONLY, attention_kernel
from lrcore.models.config import auto_class
from lrcore.recipes.history import LayersDropped

_TEXT = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_SIGHT = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_CLIP = {
    "vision_config": CLIPVisionConfig(**_SIGHT, projection_dim=24),
    "vision_feature_layer": -1,
    "image_token_index": 299,
}
IMAGE = 299
_HYBRID = DELTA_NET | {  # a layer with attention remains if one is pruned
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
}

CONFIGS = {
    "llava": {"text_config": LlamaConfig(**_TEXT), **_CLIP},
    "vipllava": {
        "text_config": LlamaConfig(**_TEXT),
        **_CLIP | {"vision_feature_layers": [-1, -2]},
    },
    "llava_next": {
        "text_config": LlamaConfig(**_TEXT),
        **_CLIP,
        "image_grid_pinpoints": [[16, 16]],
    },
    "llava_onevision": {
        "text_config": Qwen2Config(**_TEXT),
        "vision_config": SiglipVisionConfig(**_SIGHT),
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
        "image_grid_pinpoints": [[16, 16]],
        "video_token_index": 298,
    },
    "gemma3": {
        "text_config": {
            **_TEXT,
            "model_type": "gemma3_text",
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 64,
        },
        "vision_config": {**_SIGHT, "model_type": "siglip_vision_model"},
        "image_token_index": IMAGE,
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {
            **_TEXT,
            "model_type": "gemma4_text",
            "head_dim": 8,
            "global_head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": _TEXT["vocab_size"],
            "num_kv_shared_layers": 2,
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {
            **{k: v for k, v in _SIGHT.items() if k != "image_size"},
            "model_type": "gemma4_vision",
            "num_key_value_heads": 2,
            "head_dim": 12,
            "position_embedding_size": 64,
        },
        "audio_config": None,
        "image_token_id": IMAGE,
    },
    "gemma4_unified": {
        "text_config": {
            **_TEXT,
            "model_type": "gemma4_unified_text",
            "head_dim": 8,
            "global_head_dim": 16,
            "num_hidden_layers": 3,  # the last one has full attention, also if one is pruned
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
        "vision_config": {"mm_embed_dim": 32, "mm_posemb_size": 16, "patch_size": 2},
        "audio_config": {"audio_embed_dim": 8},
        "image_token_id": IMAGE,
    },
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 8, "sliding_window": None},
        "vision_config": {**_SIGHT, "model_type": "pixtral", "head_dim": 12, "num_channels": 3},
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
        "spatial_merge_size": 1,
    },
    "internvl": {
        "text_config": Qwen2Config(**_TEXT),
        "vision_config": {**_SIGHT, "image_size": [16, 16], "patch_size": [8, 8]},
        "image_token_id": IMAGE,
        "image_seq_length": 1,
    },
    "got_ocr2": {
        "text_config": Qwen2Config(**_TEXT),
        "vision_config": {
            **_SIGHT,
            "mlp_dim": 32,
            "output_channels": 24,
            "global_attn_indexes": [1],
        },
        "image_token_index": IMAGE,
    },
    "moss_transcribe_diarize": {
        "text_config": {**_TEXT, "model_type": "qwen3", "head_dim": 8},
        "audio_config": {
            "d_model": 24,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "num_mel_bins": 8,
        },
        "audio_token_id": IMAGE,
    },
    **{
        kind: {
            "text_config": {
                **_TEXT,
                "model_type": f"{kind}_text",
                "head_dim": 8,
                "rope_parameters": MROPE,
                **(_HYBRID if kind.startswith("qwen3_5") else {}),
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
            },
            "vision_config": {
                "depth": 1,
                "num_heads": 2,
                "patch_size": 8,
                "spatial_merge_size": 1,
                **sizes,
            },
            "image_token_id": IMAGE,
        }
        for kind, sizes in {
            "qwen2_vl": {"embed_dim": 24, "hidden_size": 32},
            "qwen2_5_vl": {"hidden_size": 24, "intermediate_size": 32, "out_hidden_size": 32},
            "qwen3_vl": {
                "hidden_size": 24,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "deepstack_visual_indexes": [0],
            },
            "qwen3_vl_moe": {
                "hidden_size": 24,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "deepstack_visual_indexes": [0],
            },
            **{
                kind: {"hidden_size": 24, "intermediate_size": 32, "out_hidden_size": 32}
                for kind in ("qwen3_5", "qwen3_5_moe")
            },
        }.items()
    },
    "smolvlm": {
        "text_config": LlamaConfig(**_TEXT),
        "vision_config": _SIGHT,
        "image_token_id": IMAGE,
        "scale_factor": 1,
    },
    "kimi_k25": {
        "text_config": {**_TEXT, **FAMILIES["deepseek_v3"], "model_type": "deepseek_v3"},
        "vision_config": {
            **{name: size for name, size in _SIGHT.items() if name != "image_size"},
            "num_hidden_layers": 1,
        },
        "image_token_id": IMAGE,
    },
}


@pytest.fixture(scope="module")
def folder(tiny_llama, tmp_path_factory):
    """Return a function that writes a tiny multimodal model with tokenizer and image config."""

    def make(kind):
        path = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **CONFIGS[kind])
        network = auto_class(config).from_config(
            config, attn_implementation=attention_kernel(config), dtype=torch.float32
        )
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        network.save_pretrained(path)
        (path / "preprocessor_config.json").write_text(
            json.dumps({"image_processor_type": "CLIPImageProcessor"})
        )
        copy_tokenizer(tiny_llama, path)
        return path

    return make


def compressed(path, data, method):
    recipe = lrcore.Recipe(
        model=str(path), data=str(data), samples=4, seq_len=32, ratio=0.3, method=method
    )
    dense = lrcore.load(str(path))
    return dense, lrcore.compress(dense, recipe)


def outside(network):
    """Return all tensors outside the decoder layers of the language model."""
    return {
        name: tensor
        for name, tensor in network.state_dict().items()
        if "language_model.layers" not in name and "text_model.layers" not in name
    }


def test_every_kind_has_a_tiny_model():
    assert CONFIGS.keys() == MULTIMODAL.keys()


@pytest.mark.parametrize("kind", CONFIGS)
def test_only_the_language_model_is_compressed(kind, folder, story_file, tmp_path):
    dense, small = compressed(folder(kind), story_file, "svd_llm")
    assert len(outside(dense.network)) > 10
    assert all(
        torch.equal(outside(small.network)[name], tensor)
        for name, tensor in outside(dense.network).items()
    )
    assert small.size.decoder_linear <= 0.7 * dense.size.decoder_linear
    assert (
        dense.size.parameters - small.size.parameters
        == dense.size.decoder_linear - small.size.decoder_linear
    )
    lrcore.save(small, tmp_path / "small")
    back = lrcore.load(str(tmp_path / "small"))
    tokens = torch.arange(3, 43).view(2, 20)
    with torch.inference_mode():
        assert torch.equal(
            back.network(input_ids=tokens).logits, small.network(input_ids=tokens).logits
        )
    assert (tmp_path / "small" / "preprocessor_config.json").is_file()
    result = lrcore.compare(dense, back, str(story_file), samples=2, seq_len=32)
    assert result.dense.perplexity > 0
    assert lrcore.generate(back, "Once", max_new_tokens=4) == lrcore.generate(
        small, "Once", max_new_tokens=4
    )


def image_logits(network):
    """Return the logits of a text with an image of four patches."""
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    tokens = torch.tensor([[5, 6, *[IMAGE] * 4, 7, 8, 9]])
    with torch.inference_mode():
        return network(input_ids=tokens, pixel_values=pixels).logits


@pytest.mark.parametrize("method", ["a3", "modegpt", "fused", "care"])
def test_compressed_llava_reads_images(method, folder, story_file, tmp_path):
    path = folder("llava")
    dense, small = compressed(path, story_file, method)
    recipe = lrcore.Recipe(
        model=str(path), data=str(story_file), samples=4, seq_len=32, method=method, refit="off"
    )
    factors = lrcore.prepare(dense, recipe)
    plan = lrcore.allocate(factors, recipe)
    full = replace(
        plan, ranks={slot: spectrum.cost.full for slot, spectrum in plan.spectra.items()}
    )
    small_model = lrcore.compress(dense, recipe, factors, full)
    assert torch.equal(image_logits(small_model.network), image_logits(dense.network))
    assert not torch.equal(image_logits(small.network), image_logits(dense.network))
    lrcore.save(small, tmp_path / "small")
    assert torch.equal(
        image_logits(lrcore.load(str(tmp_path / "small")).network), image_logits(small.network)
    )


ELSEWHERE = """
import sys, torch
from transformers import AutoModelForImageTextToText
for folder, trust in ((sys.argv[1], True), (sys.argv[2], False)):
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=trust)
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    tokens = torch.tensor([[5, 6, 299, 299, 299, 299, 7, 8, 9]])
    with torch.inference_mode():
        logits = model(input_ids=tokens, pixel_values=pixels).logits
    torch.save(logits, folder + ".pt")
"""


def test_exports_of_a_llava_read_images_without_this_project(folder, story_file, tmp_path):
    dense, small = compressed(folder("llava"), story_file, "a3")
    lrcore.export(small, tmp_path / "code")
    recipe = lrcore.Recipe(
        model=dense.name, data=str(story_file), samples=4, seq_len=32, ratio=0.1, method="modegpt"
    )
    factors = lrcore.prepare(dense, recipe)
    fit = standard_fit(dense, lrcore.allocate(factors, recipe)).to_dict()
    even = lrcore.compress(dense, recipe.with_(rank_overrides=fit["ranks"]), factors)
    lrcore.export(even, tmp_path / "standard", standard=True)
    elsewhere(ELSEWHERE, str(tmp_path / "code"), str(tmp_path / "standard"), cwd=tmp_path)
    assert torch.equal(torch.load(tmp_path / "code.pt"), image_logits(small.network))
    assert torch.allclose(
        torch.load(tmp_path / "standard.pt"), image_logits(even.network), atol=1e-5
    )
    assert "pipeline_tag: image-text-to-text" in (tmp_path / "code" / "README.md").read_text()


def test_unsupported_language_model_raises(tmp_path):
    config = AutoConfig.for_model(
        "llava", text_config={"model_type": "codegen"}, vision_config=_CLIP["vision_config"]
    )
    config.save_pretrained(tmp_path)
    with pytest.raises(
        lrcore.InputError,
        match="the language model of this llava is a codegen, which is not supported",
    ):
        lrcore.load(str(tmp_path))


@pytest.mark.parametrize("kind", SOUNDS_ONLY)
def test_families_that_read_sounds_only_raise_for_images(kind, folder):
    model = lrcore.load(str(folder(kind)))
    with pytest.raises(lrcore.InputError, match="which reads no images"):
        lrcore.score_choices(model, "shapes", items=4)


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed"
)
@pytest.mark.parametrize("kind", ["gemma4_unified", "kimi_k25"])
def test_missing_library_of_an_image_processor_raises(kind, folder):
    path = folder(kind)
    names = {"gemma4_unified": "Gemma4Unified", "kimi_k25": "Kimi_K25"}
    options = {"image_processor_type": f"{names[kind]}ImageProcessor"}
    (path / "preprocessor_config.json").write_text(json.dumps(options))
    with pytest.raises(lrcore.InputError, match="needs torchvision"):
        lrcore.score_choices(lrcore.load(str(path)), "shapes", items=4)


# Gemma 4 has embeddings per layer, so no layer can be removed.
@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "gemma4"])
def test_model_with_a_pruned_language_layer_reloads(kind, folder, story_file, tmp_path):
    model = lrcore.load(str(folder(kind)))
    tokens = torch.arange(3, 43).view(2, 20)
    short = lrcore.prune_layers(
        model, lrcore.Recipe(model=model.name, data=str(story_file), samples=4, seq_len=32), 1
    )
    with torch.inference_mode(), skip_layers(model.network, short.step(LayersDropped).gone):
        expected = model.network(input_ids=tokens).logits
    back = lrcore.load(str(lrcore.save(short, tmp_path / "short")))
    for made in (short, back):
        with torch.inference_mode():
            assert torch.equal(made.network(input_ids=tokens).logits, expected)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model."])
@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe", "gemma3", "gemma4_unified"])
def test_a_language_model_with_the_config_of_the_multimodal_model_loads(
    kind, prefix, folder, story_file, tmp_path
):
    path, tokens = folder(kind), torch.arange(3, 43).view(2, 20)
    complete = lrcore.load(str(path)).network
    with torch.inference_mode():
        expected = complete(input_ids=tokens).logits
    named = {
        name.replace("model.language_model.", prefix): tensor.clone()
        for name, tensor in complete.state_dict().items()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    save_file(named, path / "model.safetensors", {"format": "pt"})
    model = lrcore.load(str(path))
    assert f"language model of a {kind} alone" in model.note
    recipe = lrcore.Recipe(
        model=str(path), data=str(story_file), samples=4, seq_len=32, ratio=0.3, method="svd_llm"
    )
    small = lrcore.compress(model, recipe)
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    with torch.inference_mode():
        assert torch.equal(model.network(input_ids=tokens).logits, expected)
        assert torch.equal(
            back.network(input_ids=tokens).logits, small.network(input_ids=tokens).logits
        )
