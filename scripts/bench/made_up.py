"""Models of a given shape with made-up weights, and a text to calibrate them on.

Every matrix is the product of two random ones and singular values that fall by a power law, in
bfloat16, so that solvers work as on a trained model. What such a model says means nothing.
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

from .page import note

WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
SHAPES: dict[str, dict[str, int]] = {
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
VOCABULARY, CONTEXT = 32_000, 4096  # the tokenizer is a demo model's
DECAY = 0.5  # singular values fall as the index to the power of minus this
SIZE = 0.02  # spread of the weights


def write_model(folder: Path, shape: dict[str, int], **fields: Any) -> None:
    """A folder as transformers writes it, a file per layer; config.json comes last.

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
        note(f"written: {name}")
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, allow_nan=False))
    for file in locate("demo-llama").glob("token*"):
        shutil.copy(file, folder)
    config.save_pretrained(folder)


def parts(config: LlamaConfig, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of each file: embeddings and head, then layer by layer."""
    wide, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
    neurons, one = config.intermediate_size, torch.ones(config.hidden_size, dtype=torch.bfloat16)
    words = {"model.embed_tokens.weight", "lm_head.weight"}
    yield {name: drawn(config.vocab_size, wide, generator).bfloat16() for name in sorted(words)} | {
        "model.norm.weight": one
    }
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
        place = f"model.layers.{layer}."
        yield {
            f"{place}{name}.weight": power_law(*size, generator) for name, size in matrices.items()
        } | {f"{place}{name}.weight": one.clone() for name in norms}


def power_law(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, columns] bfloat16: two Gaussian matrices with a power law between them."""
    count = min(rows, columns)
    values = torch.arange(1, count + 1, dtype=torch.float32) ** -DECAY
    left, right = drawn(rows, count, generator), drawn(count, columns, generator)
    product = (left * values) @ right
    return (product * (SIZE / product.std())).bfloat16()


def drawn(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Gaussian [rows, columns] float32 of spread SIZE."""
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32).mul_(SIZE)


def write_text(file: Path, texts: int) -> None:
    """A few texts to calibrate on: the whole data set takes memory of its own."""
    chosen = load_texts("stories", "calibration").documents[:texts]
    file.write_text(
        "".join(json.dumps({"text": text}, allow_nan=False) + "\n" for text in chosen),
        encoding="utf-8",
    )
