"""Compression of compressed models: exact sizes, or an error before the work starts."""

from dataclasses import replace
from itertools import product

import pytest
import torch

import lrcore
from lrcore.compression.solve.factorize import truncate_layer
from lrcore.compression.step_rules import STEP_OF_STRUCTURE, STEP_RULES, step_conflict
from lrcore.models.layers import clone, read_layer
from lrcore.models.model_size import count_flops
from lrcore.models.structure import compressed_structures
from lrcore.recipes.history import Healed

pytestmark = pytest.mark.one_in(2)

METHODS = ("a3", "modegpt", "fused", "svd", "svd_llm", "latentllm", "care")
EXTRA_MODELS = {
    "summed": ("a3", {"ov": "overall"}),
    "palu": ("care", {"group": 1}),
    "joint": ("care", {"joint": True}),
    "qkv": ("latentllm", {"attention": "joint_qkv"}),
}
TOKENS = torch.arange(3, 23).unsqueeze(0)
ERRORS = {
    ("care", "latentllm"): "cannot make smaller",
    ("palu", "latentllm"): "cannot make smaller",
    **{("joint", method): "share a latent" for method in METHODS},
    **{("qkv", method): "share a latent" for method in METHODS},
}


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=24, ratio=0.2)


@pytest.fixture(scope="module")
def first(tiny_llama, recipe):
    """Return models compressed once, by name."""
    dense = lrcore.load(str(tiny_llama))
    rows = {name: (name, {}) for name in METHODS} | EXTRA_MODELS
    return {
        name: lrcore.compress(dense, recipe.with_(method=method, options=options))
        for name, (method, options) in rows.items()
    }


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


@pytest.mark.parametrize("before", [*METHODS, *EXTRA_MODELS])
def test_compressed_models_are_compressed_again_or_raise(before, first, recipe, tmp_path) -> None:
    model = first[before]
    for method in METHODS:
        requested = recipe.with_(method=method)
        if (before, method) in ERRORS:
            for step in (lrcore.compress, lrcore.prepare):
                with pytest.raises(lrcore.InputError, match=ERRORS[before, method]):
                    step(model, requested)
            continue
        small = lrcore.compress(model, requested)
        before_size, after_size, account = model.size, small.size, small.account
        assert torch.isfinite(logits(small)).all(), method
        for counted, size in ((account.dense, before_size), (account.model, after_size)):
            assert counted.parameters == size.parameters, method
            assert counted.kv_bytes_per_token == size.kv_bytes, method
        if method == "care":
            assert after_size.kv_values <= 0.8 * before_size.kv_values
        else:
            assert after_size.decoder_linear <= 0.8 * before_size.decoder_linear, method
        flops = [
            count_flops(network_model.network, recipe.seq_len) for network_model in (model, small)
        ]
        assert flops == [account.dense.flops_per_token, account.model.flops_per_token], method
        folder = lrcore.save(small, tmp_path / method)
        assert torch.equal(logits(lrcore.load(str(folder))), logits(small)), method
        assert not small.history[-1].stock.qualifies, method


def test_rotary_pairs_keep_their_original_angles(first, recipe) -> None:
    """Pairs retained twice rotate by the angles of their original pairs."""
    for method in ("a3", "modegpt", "fused"):
        model = first[method]
        small = lrcore.compress(model, recipe.with_(method=method, refit="off", ratio=0.4))
        narrowed = 0
        for index in range(3):
            old, new = (
                read_layer(network_model.network, index).attention
                for network_model in (model, small)
            )
            if new.qk_size == old.qk_size or old.rotary_pairs is None:
                continue
            narrowed += 1
            rows = old.k.weight.view(old.n_kv, 2, -1, 32)
            for head, pairs in enumerate(new.rotary_pairs):
                positions = [int((old.rotary_pairs[head] == pair).nonzero()) for pair in pairs]
                retained_rows = new.k.weight.view(new.n_kv, 2, -1, 32)[head]
                assert torch.equal(retained_rows, rows[head][:, positions])
        assert narrowed


def test_full_ranks_leave_a_compressed_model_unchanged(first, recipe) -> None:
    for before, method in product(("modegpt", "svd", "care"), ("a3", "svd_llm", "care")):
        model = first[before]
        factors = lrcore.prepare(model, recipe.with_(method=method))
        network = clone(model.network)
        for index, layer in enumerate(factors.layers):
            full = {slot: s.cost.full for slot, s in factors.spectra.items()}
            truncate_layer(network, index, layer, full)
        assert torch.equal(network(TOKENS).logits, logits(model))


def test_models_without_rotary_embeddings_are_compressed_again(tiny_opt, story_file) -> None:
    recipe = lrcore.Recipe(
        str(tiny_opt), data=str(story_file), samples=2, seq_len=24, ratio=0.2, method="modegpt"
    )
    model = lrcore.compress(lrcore.load(str(tiny_opt)), recipe)
    for method in ("a3", "modegpt", "fused", "latentllm"):
        small = lrcore.compress(model, recipe.with_(method=method))
        assert small.account.model.parameters == small.size.parameters
        assert small.size.decoder_linear <= 0.8 * model.size.decoder_linear
        assert torch.isfinite(logits(small)).all()


def test_options_that_read_more_of_a_compressed_layer_work_or_raise(first, recipe) -> None:
    for before, method, options, error in (
        ("svd", "svd", {"weights": "fisher"}, "gradients"),
        ("care", "a3", {"mlp": "taylor"}, "gradients"),
        ("summed", "latentllm", {"vo": "joint"}, "sums its heads"),
        ("a3", "svd", {"weights": "fisher"}, None),
        ("modegpt", "latentllm", {"vo": "attention"}, None),
        ("a3", "latentllm", {"attention": "split_head", "sparse": 0.05}, None),
        ("modegpt", "a3", {"ov": "overall"}, None),
    ):
        requested = recipe.with_(method=method, options=options)
        if error is None:
            small = lrcore.compress(first[before], requested)
            assert small.account.model.parameters == small.size.parameters
            assert torch.isfinite(logits(small)).all()
        else:
            with pytest.raises(lrcore.InputError, match=error):
                lrcore.prepare(first[before], requested)


def test_models_of_other_steps_are_compressed_or_refused(tiny_llama, first, recipe) -> None:
    dense, second_recipe = lrcore.load(str(tiny_llama)), recipe.with_(method="modegpt")
    for quantized in (lrcore.quantize(dense, bits=4), lrcore.quantize(first["a3"], bits=8)):
        with pytest.raises(lrcore.InputError, match="then quantize"):
            lrcore.compress(quantized, second_recipe)
    healing = lrcore.Healing(data=recipe.data, samples=2, seq_len=24, steps=1, batch=2)
    healed = lrcore.heal(first["a3"], healing, teacher=dense)
    sliced = lrcore.slice_hidden(dense, recipe, rotations="one")
    in_blocks = lrcore.slice_hidden(dense, recipe)  # with matrices in the residual path
    for model in (healed, sliced, in_blocks, lrcore.drop_layers(dense, [1])):
        small = lrcore.compress(model, second_recipe)
        assert small.account.model.decoder_parameters == small.size.decoder_linear
        assert small.size.decoder_linear <= 0.8 * model.size.decoder_linear
        assert torch.isfinite(logits(small)).all()


def test_steps_allowed_by_the_layers_equal_those_allowed_by_the_history(
    tiny_llama, first, recipe
) -> None:
    """Models in memory, or exports saved again by transformers, have no history."""
    dense = lrcore.load(str(tiny_llama))
    made = {
        "pairs": first["svd_llm"],
        "heads": first["modegpt"],
        "latents": first["care"],
        "quantized": lrcore.quantize(dense, bits=4),
        "masked": lrcore.sparsify(dense, recipe),
        "bases": lrcore.share_bases(dense, recipe, group=3),
        "sliced": lrcore.slice_hidden(dense, recipe),
    }
    for name, model in made.items():
        without_history = replace(model, history=())
        assert not compressed_structures(dense.network) & STEP_OF_STRUCTURE.keys()
        for step in STEP_RULES.keys() - {Healed}:
            forms = compressed_structures(model.network)
            conflicts, explained = (
                step_conflict(step, checked.history, "this", forms)
                for checked in (without_history, model)
            )
            assert (conflicts is None) == (explained is None), (name, step, conflicts, explained)
        with pytest.raises(lrcore.InputError, match=r"sliced, and a second basis|would be lost"):
            lrcore.slice_hidden(without_history, recipe)
        with pytest.raises(lrcore.InputError, match=r"dense model|would be lost"):
            lrcore.drop_layers(without_history, [0])


def test_pivots_raise_for_models_with_cached_latents(first, recipe) -> None:
    requested = recipe.with_(method="svd_llm", options={"stored": "pivots"})
    with pytest.raises(lrcore.InputError, match="stored=pairs"):
        lrcore.compress(first["care"], requested)
    assert lrcore.compress(first["a3"], requested).size.parameters < first["a3"].size.parameters
