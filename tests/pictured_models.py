"""Tiny models of images and text with their processors: folders with which the built-in image
questions can be read.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import CONFIGS as FAMILIES
from tiny_models import DELTA_NET
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

from lrcore.models.architectures import attention_kernel

SIDE, PATCH = 16, 8
_SIGHT = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
_SIZE = {"height": SIDE, "width": SIDE}
_CUT = {"size": {"shortest_edge": SIDE}, "crop_size": _SIZE}
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
GEMMA4 = ("gemma4", "gemma4_unified")
# The text that stands for an image. Processors of other kinds were not tested.
MARKUP = {
    **dict.fromkeys(("llava", "vipllava", "llava_next", "smolvlm"), "<image>"),
    "internvl": "<IMG_CONTEXT>",
    **dict.fromkeys(QWEN, "<|vision_start|><|image_pad|><|vision_end|>"),
    "gemma3": "<start_of_image>",
    **dict.fromkeys(GEMMA4, "<|image|>"),
    "got_ocr2": "<img><imgpad></img>",
    "kimi_k25": "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
}
# Libraries that processors need and that are not among the requirements
_LIBRARIES = {
    "smolvlm": "num2words",
    **dict.fromkeys(("gemma4_unified", "kimi_k25"), "torchvision"),
}


def _marks(kind: str) -> Any:
    library = _LIBRARIES.get(kind)
    is_missing = library is not None and importlib.util.find_spec(library) is None
    return pytest.mark.skipif(is_missing, reason=f"the processor of {kind} needs {library}")


KINDS = [pytest.param(kind, marks=_marks(kind)) for kind in MARKUP]
_TOKENS = {
    "smolvlm": ("<image>", "<fake_token_around_image>", "<global-img>"),
    "internvl": ("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
    **dict.fromkeys(QWEN, ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")),
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    **dict.fromkeys(
        GEMMA4, ("<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>")
    ),
    "got_ocr2": ("<imgpad>", "<img>", "</img>"),
    "kimi_k25": ("<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"),
}
# names of the tokens in the tokenizer, which the processor reads
_GEMMA = ("image_token", "boi_token", "eoi_token", "audio_token", "boa_token", "eoa_token")
_NAMES = {
    "internvl": ("context_image_token", "start_image_token", "end_image_token", "video_token"),
    "gemma3": _GEMMA[:3],
    **dict.fromkeys(GEMMA4, _GEMMA),
}


_WINDOWS = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
_FURTHER: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {"model_type": "gemma3_text", "query_pre_attn_scalar": 8, **_WINDOWS},
        "vision_config": {**_SIGHT, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": (SIDE // PATCH) ** 2,
    },
    "gemma4": {
        "text_config": {
            "model_type": "gemma4_text",
            **_WINDOWS,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 1024,
            "num_kv_shared_layers": 2,
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {
            **{name: size for name, size in _SIGHT.items() if name != "image_size"},
            "patch_size": 2,
            "model_type": "gemma4_vision",
            "num_key_value_heads": 2,
            "head_dim": 12,
            "position_embedding_size": 64,
        },
        "audio_config": None,
    },
    "gemma4_unified": {
        "text_config": {"model_type": "gemma4_unified_text", "global_head_dim": 16, **_WINDOWS},
        "vision_config": {
            "mm_embed_dim": 32,
            "mm_posemb_size": 64,
            "output_proj_dims": 32,
            "patch_size": 2,
        },
        "audio_config": None,
    },
    "got_ocr2": {
        "text_config": {"model_type": "qwen2", "max_position_embeddings": 1024},
        "vision_config": {
            **_SIGHT,
            "image_size": 64,  # 256 tokens, the default of the processor
            "patch_size": 1,
            "mlp_dim": 32,
            "output_channels": 24,
            "global_attn_indexes": [],
            "window_size": 8,
            "num_hidden_layers": 1,
        },
    },
    "kimi_k25": {
        "text_config": FAMILIES["deepseek_v3"] | {"model_type": "deepseek_v3"},
        "vision_config": {
            **{name: size for name, size in _SIGHT.items() if name != "image_size"},
            "num_hidden_layers": 1,
            "pos_emb_height": 8,
            "pos_emb_width": 8,
            "merge_kernel_size": [1, 1],
        },
        "projection_hidden_size": 24,
    },
}


def make(kind: str, tokenizer_of: Path, folder: Path) -> Path:
    """Write a folder with a model of a kind, random weights, and the tokenizer of another model
    with the tokens of images added.
    """
    tokens = _TOKENS.get(kind, ("<image>",))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_of)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]})
    if kind in _NAMES:
        tokenizer._set_model_specific_special_tokens(dict(zip(_NAMES[kind], tokens, strict=True)))
    ids = dict(zip(tokens, tokenizer.convert_tokens_to_ids([*tokens]), strict=True))
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **_config(kind, len(tokenizer), ids))
    network = AutoModelForImageTextToText.from_config(
        config, attn_implementation=attention_kernel(config), dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor, options = _processors(kind)
    name, arguments = image_processor
    getattr(transformers, name)(**arguments).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(options))
    return folder


def _config(kind: str, vocabulary: int, ids: dict[str, int]) -> dict[str, Any]:
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    if kind in QWEN:
        names = ("image", "video", "vision_start", "vision_end")
        hybrid = DELTA_NET if kind.startswith("qwen3_5") else {}
        return {
            "text_config": text
            | {"model_type": f"{kind}_text", "head_dim": 8, "moe_intermediate_size": 16}
            | {"num_experts": 4, "num_experts_per_tok": 2}
            | hybrid
            | {"rope_parameters": MROPE},
            "vision_config": _qwen_vision(kind),
            **{f"{name}_token_id": i for name, i in zip(names, ids.values(), strict=True)},
        }
    if kind in _FURTHER:
        further = _FURTHER[kind]
        image = dict.fromkeys(("image_token_id", "image_token_index"), next(iter(ids.values())))
        return further | image | {"text_config": text | further["text_config"]}
    llama = {"text_config": text | {"model_type": "llama"}}
    clip = {**_SIGHT, "model_type": "clip_vision_model", "projection_dim": 24}
    return (
        llama
        | {
            "llava": {"vision_config": clip, "vision_feature_layer": -1},
            "vipllava": {"vision_config": clip, "vision_feature_layers": [-1, -2]},
            "llava_next": {
                "vision_config": clip,
                "vision_feature_layer": -1,
                "image_grid_pinpoints": [[SIDE, SIDE]],
            },
            "internvl": {
                "vision_config": {**_SIGHT, "image_size": [SIDE] * 2, "patch_size": [PATCH] * 2},
                "image_seq_length": 1,
            },
            "smolvlm": {"vision_config": _SIGHT, "scale_factor": 1},
        }[kind]
        | dict.fromkeys(("image_token_id", "image_token_index"), ids[MARKUP[kind]])
    )


def _qwen_vision(kind: str) -> dict[str, Any]:
    sizes = {
        "qwen2_vl": {"embed_dim": 24, "hidden_size": 32},
        "qwen2_5_vl": {"hidden_size": 24, "intermediate_size": 32, "out_hidden_size": 32},
    }
    further = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0],
    }
    return {"depth": 1, "num_heads": 2, "patch_size": PATCH} | sizes.get(kind, further)


_POOLED = {"patch_size": 2, "max_soft_tokens": 70}
_FURTHER_PROCESSORS = {
    "gemma3": (
        ("Gemma3ImageProcessorPil", {"size": _SIZE}),
        {"processor_class": "Gemma3Processor", "image_seq_length": (SIDE // PATCH) ** 2},
    ),
    "gemma4": (
        ("Gemma4ImageProcessorPil", _POOLED),
        {
            "processor_class": "Gemma4Processor",
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
        },
    ),
    "gemma4_unified": (
        ("Gemma4UnifiedImageProcessor", _POOLED),
        {
            "processor_class": "Gemma4UnifiedProcessor",
            "feature_extractor": {"feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor"},
        },
    ),
    "got_ocr2": (
        ("GotOcr2ImageProcessorPil", {"size": {"height": 64, "width": 64}}),
        {"processor_class": "GotOcr2Processor"},
    ),
    "kimi_k25": (
        ("Kimi_K25ImageProcessor", {"patch_size": PATCH, "merge_size": 1}),
        {"processor_class": "Kimi_K25Processor"},
    ),
}


def _processors(kind: str) -> tuple[tuple[str, dict[str, Any]], dict[str, Any]]:
    """Return class and options of the image processor, and the options of the processor."""
    if kind in QWEN:
        pixels = {"shortest_edge": PATCH**2, "longest_edge": 48**2}
        names = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}
        return ("Qwen2VLImageProcessorPil", {"size": pixels, "patch_size": PATCH}), {
            "processor_class": names.get(kind, "Qwen3VLProcessor")
        }
    if kind in _FURTHER:
        return _FURTHER_PROCESSORS[kind]
    if kind == "internvl":
        return ("GotOcr2ImageProcessorPil", {"size": _SIZE, "crop_to_patches": False}), {
            "processor_class": "InternVLProcessor",
            "image_seq_length": 1,
        }
    if kind == "smolvlm":
        options = {"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}}
        return ("SmolVLMImageProcessorPil", {**options, "do_image_splitting": False}), {
            "processor_class": "SmolVLMProcessor",
            "image_seq_len": (SIDE // PATCH) ** 2,
        }
    is_next = kind == "llava_next"
    grid = {"image_grid_pinpoints": [[SIDE, SIDE]]} if is_next else {}
    return ("LlavaNextImageProcessorPil" if is_next else "CLIPImageProcessor", _CUT | grid), {
        "processor_class": "LlavaNextProcessor" if is_next else "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
