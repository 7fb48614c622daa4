"""Tiny models of images and text with their processors: folders with which the built-in image
questions can be read.
"""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

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
# processors of other kinds need torchvision
KINDS = ("llava", "vipllava", "llava_next")


def make(kind: str, tokenizer_of: Path, folder: Path) -> Path:
    """Write a folder with a model of a kind, random weights, and the tokenizer of another model
    with "<image>" added.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_of)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **_config(kind, len(tokenizer)), image_token_index=image)
    network = AutoModelForImageTextToText.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    network.save_pretrained(folder)
    _processor(kind, tokenizer).save_pretrained(folder)
    return folder


def _config(kind: str, vocabulary: int) -> dict:
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
    clip = {"vision_config": CLIPVisionConfig(**_SIGHT, projection_dim=24)}
    grid = {"image_grid_pinpoints": [[SIDE, SIDE]]}
    llama = {"text_config": LlamaConfig(**text), **clip}
    return {
        "llava": llama | {"vision_feature_layer": -1},
        "vipllava": llama | {"vision_feature_layers": [-1, -2]},
        "llava_next": llama | grid | {"vision_feature_layer": -1},
    }[kind]


def _processor(kind: str, tokenizer: PreTrainedTokenizerFast):
    cls = {"patch_size": PATCH, "vision_feature_select_strategy": "default"}
    if kind in ("llava", "vipllava"):
        image_processor = CLIPImageProcessor(**_CUT)
        return LlavaProcessor(image_processor, tokenizer, **cls, num_additional_image_tokens=1)
    image_processor = LlavaNextImageProcessor(**_CUT, image_grid_pinpoints=[[SIDE, SIDE]])
    return LlavaNextProcessor(image_processor, tokenizer, **cls, num_additional_image_tokens=1)
