"""Families with multi-head latent attention: factored and unchanged matrices."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import family_folder, tiny
from transformers import AutoModelForCausalLM

import lrcore
from lrcore import InputError
from lrcore.compression.steps.step_settings import ExpertPruning
from lrcore.evaluation.contributions import mix_models
from lrcore.evaluation.local_errors import local_errors
from lrcore.layers.modules.projections import LowRankLinear
from lrcore.models.kv_cache import forward_with_cache
from lrcore.models.layers import read_layer
from lrcore.models.model_size import count_account
from lrcore.models.partial import starting_at
from lrcore.models.stream import LayerStream
from lrcore.recipes.history import ExpertsPruned

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
NAMES = {
    "deepseek_v2": ["q", "kv_a", "kv_b", "o"],
    "deepseek_v3": ["q_a", "q_b", "kv_a", "kv_b", "o"],
}


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tiny_llama, tmp_path_factory):
    return family_folder(request.param, tiny_llama, tmp_path_factory.mktemp("mla") / request.param)


@pytest.fixture
def recipe(folder, story_file):
    return lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=32, ratio=0.2)


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


@pytest.mark.parametrize("family", NAMES)
def test_layers_have_the_matrices_of_the_family(family):
    """The cache holds a latent and a rotated key per token."""
    network = tiny(family)
    for index in range(2):
        layer = read_layer(network, index)
        assert [n for n in layer.matrices() if n not in ("gate", "up", "down")] == NAMES[family]
        assert layer.attention.kv_values == 16 + 4
        assert layer.components == (("mlp",) if layer.mlp else ())
    cache = network(TOKENS, use_cache=True).past_key_values
    held = sum(t.numel() for element in cache.layers for t in (element.keys, element.values))
    assert held == 2 * TOKENS.numel() * (16 + 4)


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_keys_of_indexers_count_in_the_cache(family):
    network = tiny(family)
    indexers = [8, 0 if family == "glm_moe_dsa" else 8]
    sizes = [read_layer(network, index).attention.kv_values for index in (0, 1)]
    assert sizes == [16 + 4 + keys for keys in indexers]
    _, cache = forward_with_cache(network, TOKENS, None)
    held = [t.numel() for layer in cache.layers for t in vars(layer).values() if torch.is_tensor(t)]
    assert sum(held) == TOKENS.numel() * sum(sizes)


@pytest.mark.parametrize("policy", ["uniform", "probed"])
def test_layers_get_the_tokens_that_an_earlier_layer_selected(
    policy, tiny_llama, story_file, tmp_path
):
    folder = family_folder("glm_moe_dsa", tiny_llama, tmp_path / "glm_moe_dsa")
    model = lrcore.load(str(folder))
    stream = LayerStream(model.network, TOKENS)
    for index in range(2):
        stream.run(index)
    with starting_at(model.network, 2, stream.hidden[0]), torch.inference_mode():
        assert torch.allclose(model.network(TOKENS).logits, logits(model.network), atol=1e-5)
    recipe = lrcore.Recipe(
        model.name, data=str(story_file), samples=4, seq_len=32, method="fused", policy=policy
    )
    small = lrcore.compress(model, recipe.with_(ratio=0.2))
    assert small.account.achieved == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("method", ["svd", "svd_llm", "bolaco", "latentllm", "fused", "aa_svd"])
def test_account_of_a_plan_equals_the_count_of_the_model(folder, recipe, method):
    model = lrcore.load(str(folder))
    order = "sequential" if method == "aa_svd" else "independent"
    small = lrcore.compress(model, recipe.with_(method=method, calibration_mode=order))
    counted = count_account(small.network, recipe.seq_len)
    for name in ("parameters", "decoder_parameters", "kv_bytes_per_token", "flops_per_token"):
        assert getattr(small.account.model, name) == getattr(counted, name)
    orders = [element for element in small.network.buffers() if not element.dtype.is_floating_point]
    assert small.account.model.bytes == counted.bytes - sum(element.nbytes for element in orders)
    assert small.size.kv_values == model.size.kv_values
    pairs = [m for m in small.network.modules() if isinstance(m, LowRankLinear)]
    assert pairs
    assert lrcore.generate(small, "Once", max_new_tokens=4)
    recompressed = lrcore.compress(small, recipe.with_(method="svd", ratio=0.1))
    assert recompressed.size.parameters < small.size.parameters


@pytest.mark.parametrize("scores", ["param_first", "taylor", "abs"])
def test_neurons_of_dense_mlps_are_pruned_by_every_score(folder, recipe, scores):
    """Rows and columns of the latents' matrices are neither neurons nor heads."""
    recipe = recipe.with_(method="llm_pruner", ratio=0.02, options={"scores": scores})
    small = lrcore.compress(lrcore.load(str(folder)), recipe)
    assert [(row.layer, row.component) for row in small.ranks] == [(0, "mlp")]
    first = read_layer(small.network, 0).mlp
    assert len(first.up.weight) < small.network.config.intermediate_size


def test_pruning_experts_without_expert_layers_raises(folder, recipe):
    dense = lrcore.drop_layers(lrcore.load(str(folder)), [1])
    with pytest.raises(InputError, match="has no routed experts"):
        lrcore.prune_experts(dense, recipe, ExpertPruning(2))


def test_every_matrix_is_analyzed_and_parts_are_mixed(folder, recipe):
    model = lrcore.load(str(folder))
    analysis = lrcore.analyze(model, lrcore.calibrate(model, recipe))
    assert {*NAMES[model.network.config.model_type]} <= {*analysis.matrices}
    small = lrcore.compress(model, recipe.with_(method="svd_llm"))
    expanded_scales = mix_models(model, small, ("qk", "ov", "mlp"))
    assert torch.allclose(logits(expanded_scales.network), logits(small.network), atol=1e-5)
    element = mix_models(model, small, ("ov",))
    assert not torch.allclose(logits(element.network), logits(model.network), atol=1e-5)
    errors = local_errors(model, small, recipe.data, samples=2, seq_len=32)
    assert all(row["attention"] > 0 for row in errors.errors)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "care"},
        {"method": "fused", "budget": "kv"},
        {"method": "latentllm", "options": {"vo": "joint"}},
        {"method": "latentllm", "options": {"attention": "joint_qkv"}},
    ],
)
def test_methods_that_would_replace_the_attention_raise(folder, recipe, fields):
    with pytest.raises(
        InputError, match=r"keeps the form of its family.*Suitable methods.*svd_llm"
    ):
        lrcore.prepare(lrcore.load(str(folder)), recipe.with_(**fields))


def test_pruned_model_loads_without_remote_code(folder, recipe, tmp_path):
    model = lrcore.load(str(folder))
    small = lrcore.prune_experts(model, recipe, ExpertPruning(2))
    lrcore.export(small, tmp_path / "standard", standard=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "standard", dtype=torch.float32)
    assert loaded.num_parameters() == small.size.parameters
    assert torch.allclose(logits(loaded), logits(small.network), atol=1e-5)
    step = small.step(ExpertsPruned)
    assert sorted(number // 4 for _, number, _ in step.pruned) == [0, 1]  # one expert per group
    for pruning in (
        ExpertPruning(1),
        ExpertPruning(6),
        ExpertPruning(2, criterion="loss"),
    ):
        with pytest.raises(InputError, match="2 groups of 4"):
            lrcore.prune_experts(model, recipe, pruning)


def test_fp8_weights_are_dequantized_on_loading(tiny_llama, tmp_path):
    """DeepSeek-V3 and R1 are published in float8, with a scale per square block."""
    folder, side, expected = family_folder("deepseek_v3", tiny_llama, tmp_path / "fp8"), 4, {}
    stored = load_file(folder / "model.safetensors")
    for name in [
        element for element in stored if "_proj" in element and element.endswith(".weight")
    ]:
        rows, columns = stored[name].shape
        blocks = stored[name].view(rows // side, side, columns // side, side)
        scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        expanded_scales = scales.repeat_interleave(side, 0).repeat_interleave(side, 1)
        stored[name] = (stored[name] / expanded_scales).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
        expected[name] = stored[name].float() * expanded_scales
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    quantized = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [side, side]}
    config |= {"quantization_config": quantized | {"activation_scheme": "dynamic"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    layer = read_layer(lrcore.load(str(folder)).network, 1)
    for name in NAMES["deepseek_v3"]:
        leaf = "kv_a_proj_with_mqa" if name == "kv_a" else f"{name}_proj"
        weight = layer.matrices()[name].weight
        assert torch.equal(weight, expected[f"model.layers.1.self_attn.{leaf}.weight"])
    for number, mlp in enumerate(layer.experts.mlps):
        for name, projection in mlp.matrices().items():
            leaf = f"model.layers.1.mlp.experts.{number}.{name}_proj.weight"
            assert torch.equal(projection.weight, expected[leaf])
