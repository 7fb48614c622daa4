"""Models in 16 and 64 bits: no overflow, and no files with non-finite numbers."""

from dataclasses import replace

import pytest
import torch
from tiny_models import CONFIGS, SAME, copy_tokenizer, family_folder, noisy

import lrcore
from lrcore import InputError
from lrcore.compression.evidence.divergence import DensePredictions
from lrcore.compression.evidence.losses import NON_FINITE_LOSS, mean_loss, window_losses
from lrcore.layers.layer import Linear
from lrcore.methods import METHODS
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import count_account
from lrcore.models.stream import LayerStream

LOUD = 30.0  # scale of norm weights: squares of the MLP's activations overflow in float16


@pytest.fixture(scope="module")
def loud_folder(tmp_path_factory, tiny_llama):
    """Save a Llama with activations as large as in large models."""
    model = lrcore.load(str(tiny_llama))
    for layer in model.network.model.layers:
        layer.input_layernorm.weight.data *= LOUD
        layer.post_attention_layernorm.weight.data *= LOUD
    folder = tmp_path_factory.mktemp("loud")
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("method", sorted(METHODS.keys() - SAME))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_method_gives_finite_weights_in_16_bits(
    loud_folder, story_file, tmp_path, method, dtype
):
    recipe = lrcore.Recipe(
        str(loud_folder), dtype=dtype, data=str(story_file), samples=4, seq_len=64, method=method
    )
    model = lrcore.load(str(loud_folder), dtype=dtype)
    small = lrcore.compress(model, recipe)
    assert all(torch.isfinite(p).all() for p in small.network.parameters())
    reloaded = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert reloaded.dtype == dtype


@pytest.mark.parametrize("method", ["a3", "care"])
def test_model_with_float32_rotary_tables_keeps_its_dtype(tmp_path, tiny_llama, story_file, method):
    """OLMo 2 returns cosines in float32; queries and keys keep the model's dtype."""
    folder = family_folder("olmo2", tiny_llama, tmp_path / "olmo2")
    model = lrcore.load(str(folder), dtype="bfloat16")
    data = {"data": str(story_file), "samples": 2, "seq_len": 16}
    recipe = lrcore.Recipe(str(folder), dtype="bfloat16", method=method, ratio=0.3, **data)
    small = lrcore.compress(model, recipe)
    assert lrcore.evaluate(small, **data).perplexity > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_account_counts_routers_in_float32(tmp_path, tiny_llama, story_file, dtype):
    """Ernie keeps its routers in float32, in any dtype of the model."""
    folder = family_folder("ernie4_5_moe", tiny_llama, tmp_path / "ernie")
    model = lrcore.load(str(folder), dtype=dtype)
    data = {"data": str(story_file), "samples": 2, "seq_len": 16}
    recipe = lrcore.Recipe(str(folder), dtype=dtype, method="svd_llm", ratio=0.3, **data)
    small = lrcore.compress(model, recipe)
    assert any(parameter.dtype == torch.float32 for parameter in small.network.parameters())
    assert small.account is not None
    assert small.account.dense.bytes == count_account(model.network, 16).bytes
    assert small.account.model.bytes == count_account(small.network, 16).bytes


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_in_float64_are_compressed_and_evaluated(tmp_path, tiny_llama, story_file, family):
    """PyTorch's grouped matrix product of experts does not support float64."""
    folder = family_folder(family, tiny_llama, tmp_path / family)
    model = lrcore.load(str(folder), dtype="float64")
    data = {"data": str(story_file), "samples": 2, "seq_len": 16}
    recipe = lrcore.Recipe(str(folder), dtype="float64", ratio=0.3, **data)
    small = lrcore.compress(model, recipe)
    reloaded = lrcore.load(str(lrcore.save(small, tmp_path / "small")), dtype="float64")
    assert lrcore.evaluate(reloaded, **data).perplexity > 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_with_unaligned_rows_are_compressed_and_evaluated(
    tmp_path, tiny_llama, story_file, dtype
):
    """PyTorch's grouped matrix product needs rows aligned to 16 bytes."""
    folder = tmp_path / "odd"
    noisy("mixtral", CONFIGS["mixtral"] | {"intermediate_size": 21}).save_pretrained(folder)
    copy_tokenizer(tiny_llama, folder)
    model = lrcore.load(str(folder), dtype=dtype)
    data = {"data": str(story_file), "samples": 2, "seq_len": 16}
    small = lrcore.compress(model, lrcore.Recipe(str(folder), dtype=dtype, ratio=0.1, **data))
    reloaded = lrcore.load(str(lrcore.save(small, tmp_path / "small")), dtype=dtype)
    assert lrcore.evaluate(reloaded, **data).perplexity > 1


@pytest.fixture(scope="module")
def cancelling(tmp_path_factory, tiny_llama):
    """Save an OPT with pairs of canceling neurons in its first MLP; one overflows in float16."""
    network = noisy("opt", CONFIGS["opt"] | {"ffn_dim": 60})
    first = network.model.decoder.layers[0]
    first.fc1.bias.data.fill_(1500.0)
    first.fc1.weight.data[1::2] = first.fc1.weight.data[::2]
    first.fc2.weight.data[:, ::2], first.fc2.weight.data[:, 1::2] = 600.0, -600.0
    folder = tmp_path_factory.mktemp("cancelling")
    network.save_pretrained(folder)
    copy_tokenizer(tiny_llama, folder)
    return folder


def recipe_of(folder, story_file, **changes):
    data = {"data": str(story_file), "samples": 4, "seq_len": 32}
    return lrcore.Recipe(str(folder), dtype="float16", method="a3", **data, **changes)


def test_refit_of_an_overflowing_model_raises(cancelling, story_file):
    recipe = recipe_of(cancelling, story_file, refit="on", ratio=0.1, rank_overrides={"0.mlp": 31})
    model = lrcore.load(recipe.model, dtype=recipe.dtype)
    with pytest.raises(InputError, match=r"compressed model are not finite in layer 1.*float32"):
        lrcore.compress(model, recipe)


@pytest.mark.parametrize("policy", ["probed", "mix"])
def test_policies_avoid_ranks_at_which_the_model_overflows(cancelling, story_file, policy):
    recipe = recipe_of(cancelling, story_file, policy=policy, ratio=0.3)
    model = lrcore.load(recipe.model, dtype=recipe.dtype)
    small = lrcore.compress(model, recipe)
    data = {"data": recipe.data, "samples": 4, "seq_len": 32}
    assert lrcore.evaluate(small, **data).nonfinite == 0


def test_non_finite_losses_become_the_largest_loss(cancelling, story_file):
    recipe = recipe_of(cancelling, story_file, ratio=0.1, rank_overrides={"0.mlp": 31})
    model = lrcore.load(recipe.model, dtype=recipe.dtype)
    small = lrcore.compress(model, recipe)
    tokens = lrcore.calibrate(model, recipe).tokens
    dense, hidden = DensePredictions(model.network, tokens), LayerStream(model.network, tokens)
    non_finite = torch.full((4,), NON_FINITE_LOSS, dtype=torch.float64)
    with torch.inference_mode():
        assert torch.equal(dense.divergences(small.network, 0, hidden.hidden), non_finite)
        assert torch.equal(window_losses(small.network, tokens), non_finite)
        assert mean_loss(small.network, 0, hidden.hidden, [tokens]) == NON_FINITE_LOSS


def test_non_finite_activations_raise_with_their_layer(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    model.network.model.layers[1].input_layernorm.weight.data[3] = torch.inf
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=32)
    with pytest.raises(InputError, match=r"layer 1 are not finite.*bfloat16 or float32"):
        lrcore.calibrate(replace(model, fingerprint="another"), recipe)


@pytest.mark.parametrize("offload", [False, True])
def test_non_finite_weights_are_not_saved(tiny_llama, tmp_path, offload):
    model = lrcore.load(str(tiny_llama), offload=offload)
    folder = lrcore.save(model, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    network = clone(model.network)
    layer = read_layer(network, 0)
    broken = Linear(layer.attention.q.weight.clone(), None)
    broken.weight[2, 1] = torch.nan
    write_layer(network, layer.with_matrices(q=broken))
    with pytest.raises(InputError, match=r"q_proj.*has NaN or infinity \(1 of .*is not saved"):
        lrcore.save(replace(model, network=network), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]
