"""Models of a given shape with random weights, and a text to calibrate them on.

Each matrix is a product of two random matrices with singular values that follow a power law, in
bfloat16, so that solvers work as on a trained model. The output of such a model is meaningless.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from lrcore.data import load_texts
from lrcore.models.hub import locate

from .report import log

WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
MODEL_SHAPES: dict[str, dict[str, int]] = {
    "llama-2-7b": WIDE | {"num_key_value_heads": 32, "intermediate_size": 11008},
    "llama-3-8b": WIDE | {"num_key_value_heads": 8, "intermediate_size": 14336},
    "tinyllama-1.1b": {
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 22,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
    },
}
VOCABULARY, CONTEXT = 32_000, 4096  # with the tokenizer of a demo model
DECAY = 0.5  # singular values are index ** -DECAY
SIZE = 0.02  # standard deviation of the weights


def write_model(folder: Path, shape: dict[str, int], **fields: Any) -> None:
    """Write a folder in the format of transformers, a file per layer; config.json is written last.

    shape, fields: of `LlamaConfig`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT} | shape | fields
    config = LlamaConfig(**sizes, tie_word_embeddings=False, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    generator, files = torch.Generator().manual_seed(0), {}
    for number, tensors in enumerate(parts(config, generator)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
        log(f"written: {name}")
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, allow_nan=False))
    for file in locate("demo-llama").glob("token*"):
        shutil.copy(file, folder)
    config.save_pretrained(folder)


def parts(config: LlamaConfig, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of each file: embeddings and head, then layer by layer."""
    wide, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
    neurons, norm_weight = (
        config.intermediate_size,
        torch.ones(config.hidden_size, dtype=torch.bfloat16),
    )
    embeddings = {"model.embed_tokens.weight", "lm_head.weight"}
    yield {
        name: gaussian(config.vocab_size, wide, generator).bfloat16() for name in sorted(embeddings)
    } | {"model.norm.weight": norm_weight}
    matrices = {
        "self_attn.q_proj": (wide, wide),
        "self_attn.k_proj": (kv, wide),
        "self_attn.v_proj": (kv, wide),
        "self_attn.o_proj": (wide, wide),
        "mlp.gate_proj": (neurons, wide),
        "mlp.up_proj": (neurons, wide),
        "mlp.down_proj": (wide, neurons),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        yield {
            f"{prefix}{name}.weight": power_law(*size, generator) for name, size in matrices.items()
        } | {f"{prefix}{name}.weight": norm_weight.clone() for name in norms}


def power_law(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Return [rows, columns] bfloat16: two Gaussian matrices with a power law between them."""
    count = min(rows, columns)
    values = torch.arange(1, count + 1, dtype=torch.float32) ** -DECAY
    left_factor = gaussian(rows, count, generator)
    right_factor = gaussian(count, columns, generator)
    product = (left_factor * values) @ right_factor
    return (product * (SIZE / product.std())).bfloat16()


def gaussian(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Return Gaussian [rows, columns] float32 with standard deviation SIZE."""
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32).mul_(SIZE)


def write_text(file: Path, texts: int) -> None:
    """Write a few texts for calibration, because the complete data set needs much memory."""
    chosen = load_texts("stories", "calibration").documents[:texts]
    file.write_text(
        "".join(json.dumps({"text": text}, allow_nan=False) + "\n" for text in chosen),
        encoding="utf-8",
    )
