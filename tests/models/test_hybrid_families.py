"""Families in which a mixer takes the place of attention in some layers, or runs beside it."""

import pytest
import torch
from tiny_models import CONFIGS, family_folder, noisy, tiny

import lrcore
from lrcore import InputError
from lrcore.layers.modules.projections import LowRankLinear
from lrcore.methods import METHODS, truncate
from lrcore.models.architectures import decoder_layers, norm_after
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import count_account, measure
from lrcore.models.stream import LayerStream, residual_update, stream_after_attention

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
ATTENTION, MLP = ["q", "k", "v", "o"], ["gate", "up", "down"]
LAYERS = {
    "qwen3_5_text": [["in", "in_z", "in_b", "in_a", "o", *MLP], [*ATTENTION, *MLP]],
    "lfm2": [["in", "o", *MLP], [*ATTENTION, *MLP]],
    "lfm3": [["in", "o", *MLP], [*ATTENTION, *MLP], [*ATTENTION, *MLP]],
    "falcon_h1": [["mixer_in", "mixer_o", *ATTENTION, *MLP]] * 2,
    "nemotron_h": [["in", "o"], ["up", "down"], ATTENTION, []],
}


@pytest.fixture(scope="module", params=LAYERS)
def folder(request, tiny_llama, tmp_path_factory):
    return family_folder(request.param, tiny_llama, tmp_path_factory.mktemp("mix") / request.param)


@pytest.fixture
def recipe(folder, story_file):
    return lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=32, ratio=0.2)


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


@pytest.mark.parametrize("family", LAYERS)
def test_layers_of_one_network_have_different_parts(family):
    network = tiny(family)
    layers = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    assert [list(layer.matrices()) for layer in layers] == LAYERS[family]
    for layer in layers:
        names = layer.matrices().keys()
        is_replaced = family in ("lfm2", "nemotron_h") and "q" in names
        assert ("ov" in layer.components) == is_replaced
        assert ("qk" in layer.components) == (is_replaced and family == "nemotron_h")
        assert ("mlp" in layer.components) == ("up" in names)
        assert layer.attention.kv_values == (2 * 2 * 8 if "q" in names else 0)
    assert measure(network).state_bytes > 0


def test_input_projections_of_a_mixer_share_their_moments():
    network, needs = tiny("qwen3_5_text"), METHODS["svd_llm"].needs
    moments = LayerStream(network, TOKENS).run(0, needs)
    assert {tap for tap, _ in moments.values} == {"attn_in", "attn_out", "mlp_in", "mlp_hidden"}


@pytest.mark.parametrize("method", ["fused", "bolaco", "latentllm"])
def test_input_projections_of_a_mixer_get_no_bias(method):
    """They would not map the zeros to zero that a mixer reads at padding."""
    network = tiny("qwen3_5_text")
    layer = read_layer(network, 0)
    options = METHODS[method].choose({"bias": "add"} if method == "latentllm" else {})
    moments = LayerStream(network, TOKENS).run(0, METHODS[method].needs)
    factors = METHODS[method].factor(layer, moments, options)
    inputs = [name for name in factors if name.startswith("in")]
    small = truncate(layer, factors, dict.fromkeys((*inputs, "o"), 2)).matrices()
    assert len(inputs) == 4
    assert [small[name].bias for name in inputs] == [None] * 4
    assert small["o"].bias is not None


def test_parallel_experts_are_read_beside_the_shared_mlp():
    fields = CONFIGS["granitemoehybrid"] | {"num_local_experts": 4, "num_experts_per_tok": 2}
    network = noisy("granitemoehybrid", fields)
    stream, copied = LayerStream(network, TOKENS), clone(network)
    for index in range(2):
        layer = read_layer(copied, index)
        assert layer.mlp is None
        assert len(layer.experts.mlps) == 4
        factors = METHODS["fused"].factor(layer, stream.run(index, METHODS["fused"].needs))
        ranks = {name: factor.cost.full for name, factor in factors.items()}
        write_layer(copied, truncate(layer, factors, ranks))
    assert torch.equal(logits(copied), logits(network))


@pytest.mark.parametrize("method", ["svd_llm", "latentllm", "fused", "modegpt", "aa_svd"])
def test_account_of_a_plan_equals_the_count_of_the_model(folder, recipe, method):
    model = lrcore.load(str(folder))
    order = "sequential" if method == "aa_svd" else "independent"
    small = lrcore.compress(model, recipe.with_(method=method, calibration_mode=order))
    assert small.account.achieved == pytest.approx(0.2, abs=0.05)
    counted = count_account(small.network, recipe.seq_len)
    for name in ("parameters", "decoder_parameters", "kv_bytes_per_token", "state_bytes"):
        assert getattr(small.account.model, name) == getattr(counted, name)
    assert lrcore.generate(small, "Once", max_new_tokens=4)
    recompressed = lrcore.compress(small, recipe.with_(method="svd", ratio=0.1))
    assert recompressed.size.parameters < small.size.parameters


def test_measured_ranks_include_the_matrices_of_mixers(folder, recipe, tmp_path):
    model = lrcore.load(str(folder))
    recipe = recipe.with_(method="fused", policy="probed", ratio=0.4)
    small = lrcore.compress(model, recipe)
    assert small.account.achieved == pytest.approx(0.4, abs=0.05)
    factors = lrcore.prepare(model, recipe)
    assert {"in", "o"} <= factors.layers[0].keys() or "mixer_in" in factors.layers[0]
    assert any(isinstance(m, LowRankLinear) for m in small.network.modules())
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert torch.equal(logits(back.network), logits(small.network))
    healed = lrcore.heal(small, data=recipe.data, steps=2, batch=2, seq_len=32)
    assert not torch.equal(logits(healed.network), logits(small.network))


def test_offloading_gives_the_same_model(folder, recipe):
    if folder.name in ("lfm3", "nemotron_h"):  # loading renames their weights
        pytest.skip("cannot be offloaded")
    models = [lrcore.load(str(folder), offload=offload) for offload in (False, True)]
    small = [lrcore.compress(model, recipe.with_(method="fused")) for model in models]
    assert torch.equal(logits(small[0].network), logits(small[1].network))


@pytest.mark.parametrize("fields", [{"method": "care"}, {"method": "fused", "budget": "kv"}])
def test_methods_that_change_the_cache_raise(folder, recipe, fields):
    with pytest.raises(InputError, match=r"Suitable methods.*svd_llm"):
        lrcore.prepare(lrcore.load(str(folder)), recipe.with_(**fields))


def test_norms_after_a_mixer_are_those_of_its_layer():
    """LFM 3 has both in all layers, OLMo Hybrid only in layers with attention."""
    norms = {}
    for family in ("lfm3", "olmo_hybrid"):
        network = tiny(family)
        layers = decoder_layers(network)[:2]
        norms[family] = [norm_after(network, layer, "attention") is not None for layer in layers]
        stream = LayerStream(network, TOKENS)
        for index, layer in enumerate(layers):
            before, seen = stream.hidden[0], stream.activations(index, 0)
            middle = stream_after_attention(network, layer, before, seen.o_out)
            down = read_layer(network, index).mlp.down
            gains = residual_update(network, layer, "mlp", seen.down_in @ down.weight.T)
            assert torch.allclose(middle + gains, seen.out, atol=1e-5)
            stream.run(index)
    assert norms == {"lfm3": [True, True], "olmo_hybrid": [False, True]}
