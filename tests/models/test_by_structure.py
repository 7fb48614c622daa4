"""Families without a row, in which every linear module of the decoder layers is compressed."""

import json

import pytest
import torch
from elsewhere import TOKENS, loaded_elsewhere
from through_caches import check_left_padded, in_pieces
from tiny_models import copy_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import lrcore
from lrcore import InputError
from lrcore.cli.reports import size_rows
from lrcore.compression.solve import refit as refit_module
from lrcore.compression.solve import trained_layer
from lrcore.compression.steps.step_settings import ExpertPruning
from lrcore.evaluation.cost import measure_cost
from lrcore.layers.account import SizeAndCost
from lrcore.layers.experts import mlp_hidden_states
from lrcore.layers.modules.projections import LowRankLinear
from lrcore.methods import METHODS, truncate
from lrcore.models.architectures import ARCHITECTURES, architecture_of, decoder_layers
from lrcore.models.config import read_config
from lrcore.models.inferred_layers import stream_factors
from lrcore.models.kv_cache import forward_with_cache
from lrcore.models.layers import clone, read_layer, with_separate_experts, write_layer
from lrcore.models.layerwise import check_layerwise
from lrcore.models.model_size import measure
from lrcore.models.stream import LayerStream

_COMMON = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_ATTENTION = {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_LINEAR_ATTENTION = {  # and experts
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
CONFIGS = {  # one family of each kind
    "bitnet": _ATTENTION,
    "mamba": {"state_size": 4},
    "lara_mini": {
        **{k: v for k, v in _ATTENTION.items() if k != "intermediate_size"},
        **_LINEAR_ATTENTION,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "granitemoe": {**_ATTENTION, "num_local_experts": 4, "num_experts_per_tok": 2},
}
_MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
}
STATES = {  # one family of each kind of state; some have rows
    "mamba": CONFIGS["mamba"],
    "lfm3": {
        **_ATTENTION,
        "head_dim": 8,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
    },
    "qwen3_next": {
        **_ATTENTION,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        **_LINEAR_ATTENTION,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "falcon_h1": {**_ATTENTION, **_MAMBA2, "mamba_d_ssm": 64},
    "kimi_linear": {
        **_ATTENTION,
        "layer_types": ["linear_attention", "full_attention"],
        "num_key_value_heads": 4,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
}
_LATENTS = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
UNUSUAL = {
    # layers share a block, and each has its adapter in it
    "zamba2": {
        **_ATTENTION,
        "num_key_value_heads": 4,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "hybrid", "hybrid"],
        "hybrid_layer_ids": [1, 2],
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "num_mem_blocks": 1,
    },
    # positions of three axes, and a layer without them
    "cohere_compass_text": {
        **_ATTENTION,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 1e4, "mrope_section": [2, 1, 1]},
            "full_attention": None,
        },
    },
    # norms follow attention and MLP
    "flex_olmo": {**_ATTENTION, "num_experts": 4, "num_experts_per_tok": 2},
    # the other families have a language model among towers of images and sounds
    "phi4_multimodal": {
        **_ATTENTION,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1},
        "vision_config": {**_TOWER, "image_size": 28, "crop_size": 28, "patch_size": 14},
        "audio_config": {
            **_TOWER,
            "num_blocks": 1,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "nemo_conv_channels": 16,
        },
    },
    "dots3_note": {
        "text_config": {
            **_COMMON,
            **_ATTENTION,
            **_LATENTS,
            "layer_types": ["indexed_attention", "sliding_attention"],
            "head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_experts_intermediate_size": 16,
            "index_topk": 64,
            "index_head_dim": 8,
            "index_n_heads": 2,
            **{
                f"swa_{name}": size for name, size in _LATENTS.items() if name != "qk_rope_head_dim"
            },
            "swa_num_attention_heads": 4,
            "swa_head_dim": 12,
            "sliding_window": 16,
        },
        "vision_config": {
            **_TOWER,
            "adapter_in_dim": 16,
            "adapter_out_dim": 32,
            "mlp_layer_types": ["dense"] * 2,
            "per_layer_config": {},
        },
        "audio_config": {
            **_TOWER,
            "downsample_hidden_size": 8,
            "feature_size": 8,
            "adapter_input_size": 16,
            "adapter_out_dim": 32,
        },
    },
    "qwen4_exp": {
        "text_config": {
            **_COMMON,
            **{k: v for k, v in _ATTENTION.items() if k != "intermediate_size"},
            "layer_types": ["linear_attention", "indexed_attention"],
            "head_dim": 8,
            **_LINEAR_ATTENTION,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "hc_count": 2,
            "hc_lowrank": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 64,
            "indexer_compress_ratio": 4,
        },
        "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32},
    },
}
EXPERTS = {
    # two attentions per layer, and more rows in the router than experts
    "longcat_flash": {
        **{k: v for k, v in _ATTENTION.items() if k != "intermediate_size"},
        **_LATENTS,
        "num_layers": 2,
        "head_dim": 4,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    # four residual streams, and layers that attend to the tokens that an earlier one selected
    "hy_v4": {
        **_ATTENTION,
        **_LATENTS,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "swiglu_limit": 0.05,
        "indexer_types": ["full", "shared"],
        "index_topk": 16,
        "index_head_dim": 8,
        "index_n_heads": 8,
    },
    "deepseek_v4": {
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["hash_moe", "moe"],
        "sliding_window": 16,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "q_lora_rank": 20,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "swiglu_limit": 0.05,
    },
    "minimax": {**_ATTENTION, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
}
MATRICES = {  # layer, name of a matrix in it, and number of matrices
    "bitnet": (0, "self_attn.q_proj", 7),
    "mamba": (0, "mixer.in_proj", 3),
    "lara_mini": (0, "linear_attn.out_proj", 6),
    "granitemoe": (1, "self_attn.o_proj", 4),
}


def tiny(family: str, **changes: float) -> PreTrainedModel:
    torch.manual_seed(0)
    fields = (CONFIGS | STATES | UNUSUAL | EXPERTS)[family] | changes
    if "text_config" not in fields:
        fields = _COMMON | fields
    if "num_layers" in fields:
        del fields["num_hidden_layers"]
    config = AutoConfig.for_model(family, **fields)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return network.eval().requires_grad_(False)


def logits(network, tokens=TOKENS):
    with torch.inference_mode():
        return network(input_ids=tokens).logits


@pytest.fixture(scope="module")
def folder_of(tiny_llama, tmp_path_factory):
    def of(family):
        folder = tmp_path_factory.mktemp("families") / family
        tiny(family).save_pretrained(folder)
        copy_tokenizer(tiny_llama, folder)
        return folder

    return of


@pytest.mark.parametrize("family", CONFIGS)
def test_matrices_of_a_layer_are_read_and_written_back(family):
    assert family not in ARCHITECTURES
    network = tiny(family)
    index, name, count = MATRICES[family]
    cached = CONFIGS[family].get("layer_types", ["full_attention"] * 2).count("full_attention")
    matrices = read_layer(network, index).matrices()
    assert (name in matrices, len(matrices)) == (True, count)
    assert measure(network).kv_values == (0 if family == "mamba" else 32 * cached)
    copied = clone(network)
    for layer in range(2):
        write_layer(copied, read_layer(copied, layer))
    assert torch.equal(logits(copied), logits(network))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", [*STATES, "zamba2"])
def test_state_bytes_equal_the_allocation_of_transformers(family, dtype):
    network = tiny(family).to(dtype)
    _, cache = forward_with_cache(network, TOKENS[:1], None)
    held = 0
    for layer in cache.layers:
        for value in vars(layer).values():
            tensors = value.values() if isinstance(value, dict) else [value]
            held += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
    size = measure(network)
    assert size.state_bytes > 0
    assert held == size.state_bytes + TOKENS.shape[1] * size.kv_bytes


def test_sizes_and_costs_include_the_states(folder_of, story_file):
    folder = folder_of("lfm3")
    model, states = lrcore.load(str(folder)), 32 * 3 * 4  # channels, kernel, float32
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=4, seq_len=32, method="svd", ratio=0.3
    )
    plan = lrcore.allocate(lrcore.prepare(model, recipe), recipe)
    account, cost = plan.account, lrcore.measure_cost(model, 16)
    assert account.model.state_bytes == account.dense.state_bytes == model.size.state_bytes
    assert SizeAndCost.from_dict(account.to_dict()) == account
    assert (cost.state_bytes, cost.kv_bytes_per_token) == (states, model.size.kv_bytes)
    rows = {row[""]: row["compressed"] for row in size_rows(account)}
    assert rows["states, bytes per sequence"] == model.size.state_bytes == states
    projected = lrcore.what_if(plan, "svd", folder)  # in bfloat16
    cached = projected.memory(10) - projected.memory(0)
    assert cached == 10 * 2 * projected.kv_values + states // 2


def test_cache_with_states_cannot_be_quantized(folder_of, story_file):
    model = lrcore.load(str(folder_of("lfm3")))
    with pytest.raises(InputError, match="keep a state instead"):
        lrcore.evaluate(model, str(story_file), samples=2, seq_len=16, kv_bits=4)
    with pytest.raises(InputError, match="keep a state instead"):
        measure_cost(model, context=32, kv_bits=4)


@pytest.mark.parametrize("method", ["svd_llm", "fused"])
@pytest.mark.parametrize("family", CONFIGS)
def test_layerwise_execution_and_full_rank_give_the_network(family, method):
    network, method = tiny(family), METHODS[method]
    check_layerwise(network, TOKENS)
    copied = clone(network)
    stream = LayerStream(network, TOKENS)
    for index in range(2):
        layer = read_layer(copied, index)
        factors = method.factor(layer, stream.run(index, method.needs))
        of_experts = {"mlp", "gate", "up", "down"} & factors.keys()
        assert factors.keys() - of_experts == layer.matrices().keys()
        assert bool(of_experts) == (layer.experts is not None)
        ranks = {name: factor.cost.full for name, factor in factors.items()}
        write_layer(copied, truncate(layer, factors, ranks))
    assert torch.equal(logits(copied), logits(network))


@pytest.mark.parametrize(
    ("family", "method"),
    [
        *(("lara_mini", method) for method in ("svd", "svd_llm", "kfac_svd", "fused")),
        *(("granitemoe", method) for method in ("kfac_svd", "fused")),
    ],
)
def test_hybrid_model_is_compressed_saved_generated_and_healed(
    family, method, folder_of, story_file, tmp_path
):
    model = lrcore.load(str(folder_of(family)))
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=4, seq_len=32, method=method, ratio=0.3
    )
    small = lrcore.compress(model, recipe)
    assert small.account.achieved == pytest.approx(0.3, abs=0.03)
    assert {layer.layer for layer in small.ranks} == {0, 1}
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert torch.equal(logits(back.network), logits(small.network))
    pieces = in_pieces(small.network, TOKENS, [5, 1, 1, TOKENS.shape[1] - 7])
    assert torch.allclose(pieces, logits(small.network), atol=1e-4)
    assert lrcore.generate(back, "Once", max_new_tokens=4)
    recompressed = lrcore.compress(small, recipe.with_(method="svd", ratio=0.1))
    assert recompressed.size.parameters < small.size.parameters
    healed = lrcore.heal(small, data=str(story_file), steps=2, batch=2, seq_len=32)
    assert not torch.equal(logits(healed.network), logits(small.network))


def test_exports_load_without_this_project(folder_of, story_file, tmp_path):
    expected, folders = {}, []
    (tmp_path / "away").mkdir()
    for family in (*CONFIGS, "zamba2"):
        model = lrcore.load(str(folder_of(family)))
        method = "svd_llm" if family == "bitnet" else "fused"
        recipe = lrcore.Recipe(
            model.name, data=str(story_file), samples=4, seq_len=32, method=method, ratio=0.3
        )
        small = lrcore.compress(model, recipe)
        for layer in decoder_layers(small.network):
            assert any(isinstance(module, LowRankLinear) for module in layer.modules())
        expected[family] = logits(small.network)
        lrcore.export(small, tmp_path / family)
        folders.append((tmp_path / family).rename(tmp_path / "away" / family))
    results = loaded_elsewhere(folders, tmp_path, [False] * len(folders))
    for (family, expected_logits), result in zip(expected.items(), results, strict=True):
        assert isinstance(result, torch.Tensor), result
        assert torch.allclose(result, expected_logits, atol=1e-5), family


@pytest.mark.parametrize(
    ("family", "identities"),
    [("granitemoe", 0), ("minimax", 0), ("hy_v4", 0), ("longcat_flash", 2), ("deepseek_v4", 0)],
)
def test_stacked_experts_are_separated(family, identities):
    """Those of HY 4 and DeepSeek-V4 clamp gates and ups; some of LongCat-Flash return their
    input.
    """
    network = tiny(family)
    layers = [read_layer(network, index) for index in range(2)]
    experts = [layer.experts for layer in layers if layer.experts is not None]
    assert {(len(e.mlps), e.active, e.identities) for e in experts} == {(4, 2, identities)}
    separate = with_separate_experts(network)
    assert torch.allclose(logits(separate), logits(network), atol=1e-5)
    assert architecture_of(separate) == architecture_of(network)


@pytest.mark.parametrize("family", ["hy_v4", "longcat_flash", "deepseek_v4"])
def test_moments_of_unusual_experts_are_those_of_their_tokens(family):
    network, needs = tiny(family), METHODS["svd_llm"].needs
    stream = LayerStream(network, TOKENS)
    stream.run(0)
    experts = read_layer(network, 1).experts
    module = decoder_layers(network)[1].mlp.experts
    seen = []
    handle = module.register_forward_pre_hook(lambda _m, args: seen.append(args))
    moments = stream.run(1, needs)
    handle.remove()
    hidden, chosen, weights = seen[0]
    for number, mlp in enumerate(experts.mlps):
        tokens, positions = torch.where(chosen == number)
        states = mlp_hidden_states(mlp, hidden[tokens]) * weights[tokens, positions, None]
        expected = (states.double().mT @ states.double()) / len(hidden)
        actual = moments.values[f"mlp_hidden:{number}", "second"]
        assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-9)


def test_pruning_experts_needs_a_row(folder_of, story_file):
    model = lrcore.load(str(folder_of("granitemoe")))
    recipe = lrcore.Recipe(model.name, data=str(story_file), samples=4, seq_len=32)
    with pytest.raises(InputError, match="no row in the table of families"):
        lrcore.prune_experts(model, recipe, ExpertPruning(2))


@pytest.mark.parametrize("method", ["svd_llm", "fused"])
@pytest.mark.parametrize("family", UNUSUAL)
def test_unusual_layers_are_compressed_and_saved(family, method, folder_of, story_file, tmp_path):
    model = lrcore.load(str(folder_of(family)))
    copied = clone(model.network)
    for layer in range(len(decoder_layers(copied))):
        write_layer(copied, read_layer(copied, layer))
    assert torch.equal(logits(copied), logits(model.network))
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=4, seq_len=32, method=method, ratio=0.2
    )
    small = lrcore.compress(model, recipe)
    assert small.account.achieved == pytest.approx(0.2, abs=0.03)
    pieces = in_pieces(small.network, TOKENS, [5, 1, 1, TOKENS.shape[1] - 7])
    assert torch.allclose(pieces, logits(small.network), atol=1e-4)
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert torch.equal(logits(back.network), logits(small.network))


@pytest.mark.parametrize("method", ["svd", "svd_llm", "kfac_svd", "fused"])
def test_layers_that_share_a_block_give_the_same_logits_with_left_padding(
    method, folder_of, story_file
):
    model = lrcore.load(str(folder_of("zamba2")))
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=4, seq_len=32, method=method, ratio=0.2
    )
    small = lrcore.compress(model, recipe)
    assert small.account.achieved == pytest.approx(0.2, abs=0.03)
    check_left_padded(small.network, torch.arange(3, 55).view(2, 26))


def test_offloading_a_family_whose_weights_are_joined_raises(folder_of):
    with pytest.raises(InputError, match=r"cannot be offloaded, since loading joins or renames"):
        lrcore.load(str(folder_of("qwen3_next")), offload=True)
    offloaded = lrcore.load(str(folder_of("bitnet")), offload=True)
    assert offloaded.size.parameters > 0


@pytest.mark.parametrize("policy", ["uniform", "probed"])
def test_fused_compresses_an_offloaded_model_as_one_in_memory(policy, folder_of, story_file):
    folder = folder_of("bitnet")
    recipe = lrcore.Recipe(
        str(folder), data=str(story_file), samples=4, seq_len=32, method="fused", policy=policy
    ).with_(ratio=0.3)
    small, offloaded = (
        lrcore.compress(lrcore.load(str(folder), offload=offload), recipe)
        for offload in (False, True)
    )
    assert small.ranks == offloaded.ranks
    assert torch.equal(logits(small.network), logits(offloaded.network))


@pytest.mark.parametrize(
    ("family", "layer", "expected"),
    [
        ("bitnet", 0, {"self_attn.o_proj": 1, "mlp.down_proj": 1}),
        ("granitemoe", 0, {"self_attn.o_proj": 0.5}),
        ("flex_olmo", 0, {}),  # norms follow attention and MLP
        ("phi4_multimodal", 0, {"self_attn.o_proj": 1, "mlp.down_proj": 1}),  # dropout follows
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_matrices_that_write_to_the_residual_stream(family, layer, expected, dtype):
    changes = {"residual_multiplier": 0.5} if family == "granitemoe" else {}
    network = tiny(family, **changes).to(dtype)
    factors = stream_factors(LayerStream(network, TOKENS), layer)
    assert factors == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("family", ["bitnet", "mamba"])
def test_refit_lowers_the_errors_of_the_residual_stream(family, folder_of, story_file, monkeypatch):
    model = lrcore.load(str(folder_of(family)), dtype="float64")
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=32, seq_len=32, method="svd", ratio=0.3
    )
    tokens = lrcore.calibrate(model, recipe).tokens
    refit = lrcore.compress(model, recipe.with_(refit="on"))
    monkeypatch.setattr(refit_module, "stream_factors", lambda *_: {})
    separate = lrcore.compress(model, recipe.with_(refit="on"))
    closed = lrcore.compress(model, recipe.with_(refit="off"))
    with torch.inference_mode():
        states = [
            m.network(tokens, output_hidden_states=True).hidden_states
            for m in (model, refit, separate, closed)
        ]
    # of the last layer's input: a later norm would change the output of the last layer
    dense, *others = (s[-2] for s in states)
    errors = [float((other - dense).square().mean()) for other in others]
    assert errors[0] < errors[1] < errors[2]


def test_layers_without_a_row_can_be_trained_after_the_refit(folder_of, story_file, monkeypatch):
    monkeypatch.setattr(trained_layer, "MIN_STEPS", 8)
    monkeypatch.setattr(trained_layer, "PASSES", 1)
    model = lrcore.load(str(folder_of("lara_mini")))
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=16, seq_len=32, method="fused", ratio=0.3
    )
    tokens = lrcore.calibrate(model, recipe).tokens
    small, trained = (lrcore.compress(model, recipe.with_(refit=r)) for r in ("on", "trained"))
    with torch.inference_mode():
        dense, *others = (
            m.network(tokens, output_hidden_states=True).hidden_states[1]
            for m in (model, small, trained)
        )
    errors = [float((other - dense).square().mean()) for other in others]
    assert errors[1] < errors[0]


def test_analysis_contains_the_matrices_of_each_layer(folder_of, story_file, tmp_path):
    model = lrcore.load(str(folder_of("lara_mini")))
    recipe = lrcore.Recipe(model.name, data=str(story_file), samples=4, seq_len=32)
    analysis = lrcore.analyze(model, lrcore.calibrate(model, recipe))
    assert {*analysis.matrices} == {*architecture_of(model.network).factors}
    analysis.write(tmp_path / "analysis.safetensors")
    back = type(analysis).read(tmp_path / "analysis.safetensors")
    assert back.spectra.keys() == analysis.spectra.keys()


def test_steps_that_need_a_row_raise(folder_of, story_file, tmp_path):
    model = lrcore.load(str(folder_of("lara_mini")))
    recipe = lrcore.Recipe(model.name, data=str(story_file), samples=4, seq_len=32, ratio=0.2)
    for method in ("modegpt", "care", "latentllm"):
        with pytest.raises(InputError, match="Compress them with svd, svd_llm, kfac_svd or fused"):
            lrcore.prepare(model, recipe.with_(method=method))
    with pytest.raises(InputError, match="no row in the table of families"):
        lrcore.drop_layers(model, [1])
    with pytest.raises(InputError, match="no row in the table of families"):
        lrcore.export(model, tmp_path / "standard", standard=True)


@pytest.mark.parametrize(
    ("family", "reason"), [("bert", "later tokens"), ("bart", "an encoder with a decoder")]
)
def test_models_that_do_not_predict_the_next_token_raise(family, reason, tmp_path):
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=reason):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("blt", "patches of bytes"),
        ("gemma4_assistant", "drafts tokens for another model"),
        ("gemma4_unified_assistant", "drafts tokens for another model"),
    ],
)
def test_models_without_layers_on_tokens_alone_raise(family, reason, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(InputError, match=reason):
        lrcore.load(str(tmp_path))


def test_layers_with_different_states_per_call_raise():
    network, calls = tiny("lara_mini"), []

    def differ(_module, _args, out):
        calls.append(0)
        return out * len(calls)

    decoder_layers(network)[1].register_forward_hook(differ)
    with pytest.raises(InputError, match=r"cannot be run layer by layer .*the states differ"):
        check_layerwise(network, TOKENS)


@pytest.mark.parametrize("family", ["mamba", "lara_mini"])
def test_padding_on_the_left_does_not_reach_the_state(family, folder_of, story_file):
    model = lrcore.load(str(folder_of(family)))
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=8, seq_len=32, method="fused", ratio=0.3
    )
    small = lrcore.compress(model, recipe).network
    padded = torch.nn.functional.pad(TOKENS, (5, 0), value=2)
    mask = torch.nn.functional.pad(torch.ones_like(TOKENS), (5, 0))
    with torch.inference_mode():
        after = small(input_ids=padded, attention_mask=mask).logits[:, 5:]
    assert torch.allclose(after, logits(small), atol=1e-5)
