"""Folders of tiny Llamas written as GGUF files with the package gguf."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(folder: Path, path: Path, kind: str = "F32", **settings: object) -> Path:
    """Write the folder of a Llama as a GGUF file, with matrices of complete blocks in `kind` and
    other tensors in float32.

    settings: metadata that replaces that of the folder; `__` in a name means a dot.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in (_of_config(config) | overrides).items():
        match value:
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_uint32(name, value)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    quantization = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[quantization]
    for name, tensor in load_file(folder / "model.safetensors").items():
        name, tensor = _as_gguf(name, tensor, config)
        fits = tensor.ndim == 2 and tensor.shape[1] % block == 0
        stored = quantization if fits else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_config(config: dict) -> dict[str, object]:
    return {
        "general.name": "a title",
        "general.license": "mit",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
    }


def _add_tokenizer(writer, described: dict) -> None:
    vocabulary = described["model"]["vocab"]
    special = {token["content"] for token in described["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in described["model"]["merges"]])


def _as_gguf(name: str, tensor: np.ndarray, config: dict) -> tuple[str, np.ndarray]:
    """Return a tensor with its name in llama.cpp and rotary columns in its order: pairs are
    adjacent, not in halves.
    """
    module, kind = name.rsplit(".", 1)
    if module in OUTSIDE:
        return f"{OUTSIDE[module]}.{kind}", tensor
    layer, part = module.removeprefix("model.layers.").split(".", 1)
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    if part in heads:
        halves = tensor.reshape(config[heads[part]], 2, -1, *tensor.shape[1:])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    return f"blk.{layer}.{NAMES[part]}.{kind}", np.ascontiguousarray(tensor)
