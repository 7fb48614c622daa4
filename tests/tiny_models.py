"""Tiny random networks of all families in the table, with the features of the family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from lrcore.models.architectures import ARCHITECTURES
from lrcore.models.config import auto_class

_COMMON = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 8,
}
_WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2}
_MHA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LATENTS = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_DEEPSEEK = {
    **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
    **_EXPERTS,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": None,
    **_LATENTS,
}
_LATENT_MIXTURE = {
    **{k: v for k, v in _DEEPSEEK.items() if k != "first_k_dense_replace"},
    "n_routed_experts": 8,
    "q_lora_rank": 20,
}
# An indexer that selects 6 tokens. With fewer heads, several tokens have a score of 0.
_INDEXER = {
    "first_k_dense_replace": 1,
    "index_topk": 6,
    "index_head_dim": 8,
    "index_n_heads": 8,
}

_MIXTURE = {**_LLAMA, **_EXPERTS, "moe_intermediate_size": 24}
_HYBRID_LATENTS = {
    **{k: v for k, v in _MIXTURE.items() if k != "head_dim"},
    **_LATENTS,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "n_group": 2,
    "topk_group": 1,
}
_MAMBA = {
    **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
}
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

CONFIGS: dict[str, dict] = {
    "llama": {**_LLAMA, "rope_parameters": _LLAMA3_ROPE},
    "mistral": {**_LLAMA, "sliding_window": 6},
    "ministral": {**_LLAMA, **_WINDOWS},
    "qwen2": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **_WINDOWS,
        "use_sliding_window": True,
    },
    "qwen3": {**_LLAMA, "head_dim": 16},
    "gemma": {**_LLAMA, "head_dim": 16},
    "gemma2": {
        **_LLAMA,
        **_WINDOWS,
        "head_dim": 16,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {**_LLAMA, **_WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 12},
    "gemma4_text": {
        **_LLAMA,
        **_WINDOWS,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    },
    "gemma4_unified_text": {
        **_LLAMA,
        **_WINDOWS,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    },
    "gemma3n_text": {
        **_LLAMA,
        **_WINDOWS,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [48, 40, 48, 40],
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 300,
        "altup_num_inputs": 3,
        "laurel_rank": 8,
    },
    "phi": {
        **_MHA,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
    },
    "phi3": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 128,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48},
    "opt": {**_MHA, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "gpt_neox": {**_MHA, "intermediate_size": 64, "rotary_pct": 0.5},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 128,
        "window_size": 6,
        "attention_types": [[["global", "local"], 1]],
    },
    "gptj": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "n_inner": 48,
        "rotary_dim": 4,
    },
    "bloom": {"hidden_size": 48, "n_layer": 2, "n_head": 6},
    "falcon": {
        **_MHA,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 48,
        "bias": True,
    },
    "mpt": {"d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 128},
    "olmo2": {k: v for k, v in _LLAMA.items() if k != "head_dim"},
    "smollm3": {**{k: v for k, v in _LLAMA.items() if k != "head_dim"}, "no_rope_layers": [1, 0]},
    "granite": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "arcee": _LLAMA,
    "olmo": {k: v for k, v in _LLAMA.items() if k != "head_dim"},
    "olmo3": {**{k: v for k, v in _LLAMA.items() if k != "head_dim"}, **_WINDOWS},
    "cohere": {k: v for k, v in _LLAMA.items() if k != "head_dim"},
    "cohere2": {**{k: v for k, v in _LLAMA.items() if k != "head_dim"}, **_WINDOWS},
    "glm": {**_LLAMA, "attention_bias": True, "partial_rotary_factor": 0.5},
    "glm4": {**_LLAMA, "attention_bias": True, "partial_rotary_factor": 0.5},
    "ernie4_5": {**_LLAMA, "use_bias": True},
    "exaone4": {**_LLAMA, **_WINDOWS},
    "stablelm": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        "use_qkv_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    },
    "nemotron": {
        **_LLAMA,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    },
    "starcoder2": {**{k: v for k, v in _LLAMA.items() if k != "head_dim"}},
    "mixtral": {**_LLAMA, **_EXPERTS, "num_local_experts": 4},
    "qwen2_moe": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **_EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [0],
    },
    "olmoe": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **_EXPERTS,
        "num_experts": 4,
    },
    "ernie4_5_moe": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        "moe_k": 2,
        "moe_num_experts": 4,
        "moe_intermediate_size": 24,
        "moe_layer_start_index": 1,
    },
    "gpt_oss": {
        **_LLAMA,
        **_EXPERTS,
        **_WINDOWS,
        "num_local_experts": 4,
        "swiglu_limit": 0.3,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
    "llama4_text": {
        **_LLAMA,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size": 24,
        "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0],
        "attention_chunk_size": 8,
    },
    "deepseek_v2": {
        **_DEEPSEEK,
        "n_routed_experts": 8,
        "topk_method": "group_limited_greedy",
    },
    "deepseek_v3": {**_DEEPSEEK, "n_routed_experts": 8, "q_lora_rank": 20, "attention_bias": True},
    "qwen3_moe": {
        **_LLAMA,
        **_EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [0],
    },
    "exaone": _LLAMA,
    "internlm3": {**_LLAMA, "bias": True, "qkv_bias": True},
    "seed_oss": {**_LLAMA, "attention_out_bias": True},
    "cwm": {**_LLAMA, **_WINDOWS, "rope_parameters": _LLAMA3_ROPE},
    "helium": _LLAMA,
    "jais2": _LLAMA,
    "apertus": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        "rope_parameters": _LLAMA3_ROPE,
    },
    "phimoe": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **_EXPERTS,
        "num_local_experts": 4,
        "attention_bias": True,
        "lm_head_bias": True,
    },
    "dots1": {
        **_MIXTURE,
        **_WINDOWS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "hy_v3": {**_MIXTURE, "num_experts": 4, "mlp_layer_types": ["dense", "sparse"]},
    "solar_open": {**_MIXTURE, "n_routed_experts": 4, "attention_bias": True},
    "hunyuan_v1_dense": _LLAMA,
    "ministral3": {
        **_LLAMA,
        "sliding_window": 6,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "granite_swa": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **_WINDOWS,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "layer_rope_theta": [1e4, 0],
    },
    "minicpm3": {
        **{k: v for k, v in _LLAMA.items() if k not in ("head_dim", "num_key_value_heads")},
        **_LATENTS,
        "num_key_value_heads": 4,
        "q_lora_rank": 20,
        "scale_emb": 3.0,
        "scale_depth": 0.6,
        "dim_model_base": 16,
    },
    "glm4_moe": {
        **_MIXTURE,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "num_mtp_layers": 0,
    },
    "minimax_m2": {**_LLAMA, **_EXPERTS, "num_local_experts": 4, "rotary_dim": 4},
    "exaone_moe": {**_MIXTURE, **_WINDOWS, "num_experts": 4},
    "hunyuan_v1_moe": {**_LLAMA, "num_experts": 4, "moe_topk": 2},
    "mimo_v2_flash": {
        **_MIXTURE,
        **_WINDOWS,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "v_head_dim": 6,
        "n_routed_experts": 4,
    },
    "afmoe": {
        **_MIXTURE,
        **_WINDOWS,
        "num_experts": 4,
        "num_dense_layers": 1,
        "num_shared_experts": 1,
        "mup_enabled": True,
    },
    "glm4_moe_lite": {**_LATENT_MIXTURE, "mlp_layer_types": ["dense", "sparse"]},
    "axk1": {**_LATENT_MIXTURE, "mlp_layer_types": ["dense", "sparse"]},
    "deepseek_v32": {**_LATENT_MIXTURE, **_INDEXER},
    "glm_moe_dsa": {**_LATENT_MIXTURE, **_INDEXER, "indexer_types": ["full", "shared"]},
    "mistral4": {**_DEEPSEEK, "n_routed_experts": 8, "q_lora_rank": 20},
    "longcat_flash": {
        **{
            k: v
            for k, v in _DEEPSEEK.items()
            if k not in ("num_hidden_layers", "intermediate_size")
        },
        "q_lora_rank": 20,
        "num_layers": 2,
        "head_dim": 4,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "hy_v4": {
        **{k: v for k, v in _DEEPSEEK.items() if k != "first_k_dense_replace"},
        **_INDEXER,
        "q_lora_rank": 20,
        "n_group": 1,
        "n_routed_experts": 4,
        "mlp_layer_types": ["dense", "sparse"],
        "indexer_types": ["full", "shared"],
        "swiglu_limit": 0.05,
    },
    "sarvam_mla": {**_DEEPSEEK, "n_routed_experts": 8, "q_lora_rank": 20},
    "qwen3_next": {
        **_MIXTURE,
        **DELTA_NET,
        "num_experts": 4,
        "mlp_only_layers": [0],
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_5_text": {**_LLAMA, **DELTA_NET},
    "qwen3_5_moe_text": {
        **_MIXTURE,
        **DELTA_NET,
        "num_experts": 4,
        "shared_expert_intermediate_size": 40,
    },
    "lfm2": {k: v for k, v in _LLAMA.items() if k != "head_dim"}
    | {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {k: v for k, v in _MIXTURE.items() if k != "head_dim"}
    | {"layer_types": ["conv", "full_attention"], "num_experts": 4, "num_dense_layers": 1},
    "lfm3": {
        **_LLAMA,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "sliding_window": 6,
    },
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
    },
    "falcon_h1": {
        **_MAMBA,
        "mamba_d_ssm": 64,
        "key_multiplier": 0.5,
        "attention_in_multiplier": 1.5,
        "attention_out_multiplier": 0.8,
        "mlp_multipliers": [0.9, 0.7],
        "ssm_out_multiplier": 0.6,
    },
    "olmo_hybrid": {
        **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
        **DELTA_NET,
        "linear_num_value_heads": 2,
    },
    "jamba": {
        **{k: v for k, v in _LLAMA.items() if k not in ("head_dim", "max_position_embeddings")},
        **_EXPERTS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 4,
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "nemotron_h": {
        **{k: v for k, v in _LLAMA.items() if k != "num_hidden_layers"},
        **_EXPERTS,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
    },
    "kimi_linear": {
        **_HYBRID_LATENTS,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "bailing_hybrid": {
        **_HYBRID_LATENTS,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "head_dim": 8,
        "q_lora_rank": 20,
        "num_mtp_layers": 0,
    },
}


def tiny(family: str) -> PreTrainedModel:
    """Return a tiny network in eval mode with random weights of seed 0."""
    return noisy(family, CONFIGS[family])


def noisy(family: str, fields: dict) -> PreTrainedModel:
    """Return a network with this config in eval mode. All parameters have noise of seed 0, because
    zero biases and unit norms would hide mistakes.
    """
    config = AutoConfig.for_model(family, **(_COMMON | fields))
    network = auto_class(config).from_config(
        config, attn_implementation=ARCHITECTURES[family].kernel, dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else parameter + noise * 0.1)
    return network.eval().requires_grad_(False)


def family_folder(family: str, tokenizer_of: Path, folder: Path) -> Path:
    """Write the tiny model of a family, with the tokenizer of another one, and return the
    folder.
    """
    tiny(family).save_pretrained(folder)
    copy_tokenizer(tokenizer_of, folder)
    return folder


def copy_tokenizer(source: Path, folder: Path) -> None:
    for file in source.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())


# A method for each structure that the layers of a model can have: `svd` stores the same structure
# as `svd_llm`, and `llm_pruner` the same as `flap`.
SAME = frozenset({"aa_svd", "clover"})  # their layers have the structures of `svd_llm` and `a3`
STRUCTURES = ("svd_llm", "a3", "modegpt", "latentllm", "care", "fused", "flap")


def structures_of(family: str) -> tuple[str, ...]:
    """Return the structures that a family can have: native attention caches no latents."""
    row = ARCHITECTURES[family]
    has_native_modules = row.native_attention or row.mixer
    return tuple(name for name in STRUCTURES if not (has_native_modules and name == "care"))


COMPRESSED = [
    pytest.param(family, method, id=f"{family}-{method}")
    for family in ARCHITECTURES
    for method in structures_of(family)
]
# One structure per family, in turn, so that each structure is tested with several families.
ONE_EACH = {
    family: structures_of(family)[number % len(structures_of(family))]
    for number, family in enumerate(ARCHITECTURES)
}


def sampled(always: Callable[[str, str], bool]) -> list[Any]:
    """Return COMPRESSED for a slow test: pairs of ONE_EACH and those for which `always` is true run
    in CI, the others with -m soak.
    """
    cases = []
    for case in COMPRESSED:
        family, method = case.values
        if always(family, method):
            marks: tuple[Any, ...] = ()
        elif ONE_EACH[family] == method:
            marks = (pytest.mark.slow,)
        else:
            marks = (pytest.mark.soak,)
        cases.append(pytest.param(family, method, id=case.id, marks=marks))
    return cases


# all families of the table, for tests with each family
FAMILIES = [pytest.param(family, id=family) for family in ARCHITECTURES]
