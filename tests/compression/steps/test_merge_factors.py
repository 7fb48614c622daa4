"""Merging of factors into matrices: equal outputs and a correct account."""

import copy
from dataclasses import replace

import pytest
import torch
from tiny_models import family_folder

import lrcore
from lrcore.compression.steps import merge_factors as merging
from lrcore.layers.forms import IdentityColumns, dense
from lrcore.layers.layer import Linear, LowRank
from lrcore.models.layers import read_layer
from lrcore.system.errors import ResourceError

TOKENS = torch.arange(3, 43).view(2, 20)
METHODS = ("svd", "svd_llm", "compot", "latentllm", "fused", "a3", "care")


def logits(model):
    with torch.inference_mode():
        return model.network(input_ids=TOKENS).logits


def compressed(folder, data, method, **changes):
    recipe = lrcore.Recipe(
        model=str(folder), data=str(data), samples=4, seq_len=32, ratio=0.3, method=method
    )
    return lrcore.compress(lrcore.load(str(folder)), recipe.with_(**changes))


def projections(model):
    layers = range(model.network.config.num_hidden_layers)
    return [
        (name, p)
        for index in layers
        for name, p in read_layer(model.network, index).matrices().items()
    ]


@pytest.fixture
def dense_is_faster(monkeypatch):
    """Replace measured times: matrices are faster than factors."""

    def seconds(modules, inputs):
        assert len(modules) == len(inputs)
        return [0.0 if isinstance(module, torch.nn.Linear) else 1.0 for module in modules]

    monkeypatch.setattr(merging, "_seconds", seconds)


@pytest.mark.parametrize("method", METHODS)
def test_merged_model_computes_the_same_and_reloads(
    method, dense_is_faster, tiny_llama, story_file, tmp_path
):
    small = compressed(tiny_llama, story_file, method)
    before = logits(small)
    made = lrcore.merge_factors(small)
    torch.testing.assert_close(logits(made), before, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(small), before)
    latents = {"care": {"k", "v"}}.get(method, set())
    assert {name for name, p in projections(made) if not isinstance(p, Linear)} == latents
    assert made.size.kv_values == small.size.kv_values
    assert made.account.model.parameters == made.size.parameters >= small.size.parameters
    lrcore.save(made, tmp_path / "made")
    back = lrcore.load(str(tmp_path / "made"))
    assert torch.equal(logits(back), logits(made))
    assert back.account == made.account


@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_identity_blocks_are_filled_in_if_the_factors_stay_smaller_than_the_matrix(
    ratio, monkeypatch, tiny_llama, story_file, tmp_path
):
    def seconds(modules, inputs):
        kinds = [{type(getattr(p, part, None)) for part in ("down", "up")} for p in modules]
        return [float(seconds != {torch.nn.Linear}) for seconds in kinds]

    monkeypatch.setattr(merging, "_seconds", seconds)
    small = compressed(tiny_llama, story_file, "latentllm", ratio=ratio)
    made = lrcore.merge_factors(small)
    torch.testing.assert_close(logits(made), logits(small), rtol=1e-4, atol=1e-4)
    fewer = 0
    for (_, before), (_, after) in zip(projections(small), projections(made), strict=True):
        size_out, size_in = before.up.shape[0], before.down.shape[1]
        if before.rank * (size_in + size_out) < size_in * size_out:
            assert isinstance(after.down, torch.Tensor)
            assert isinstance(after.up, torch.Tensor)
            fewer += 1
        else:  # not measured
            assert (type(after.down), type(after.up)) == (type(before.down), type(before.up))
    assert fewer
    lrcore.save(made, tmp_path / "made")
    back = lrcore.load(str(tmp_path / "made"))
    assert torch.equal(logits(back), logits(made))
    assert back.account == made.account


def test_shared_factor_stays_shared_if_filled_in():
    free_columns, order = torch.randn(1, 3, 9), torch.randperm(12, dtype=torch.int32)[None]
    down = IdentityColumns(free_columns, order)
    fill_in = merging._FillIn()
    q, k = (
        fill_in.alternatives(LowRank(replace(down), torch.randn(size, 3)))[1] for size in (12, 8)
    )
    assert isinstance(q, LowRank)
    assert isinstance(k, LowRank)
    assert q.down is k.down
    torch.testing.assert_close(q.down, dense(down))


def test_faster_factors_are_not_merged(monkeypatch, tiny_llama, story_file):
    monkeypatch.setattr(
        merging,
        "_seconds",
        lambda modules, inputs: [float(isinstance(p, torch.nn.Linear)) for p in modules],
    )
    small = compressed(tiny_llama, story_file, "svd_llm")
    assert lrcore.merge_factors(small) is small


def test_faster_form_is_chosen_per_projection(monkeypatch, tiny_llama, story_file):
    """The median over rounds decides: a single slow round has no effect."""
    turns = []

    def seconds(modules, inputs):
        turns.append(len(modules))
        dense = isinstance(modules[0], torch.nn.Linear)
        seconds = [float(dense == (p.out_features <= p.in_features)) for p in modules]
        return [p + 5 * (len(turns) == 3 and not dense) for p in seconds]

    monkeypatch.setattr(merging, "_seconds", seconds)
    small = compressed(tiny_llama, story_file, "svd_llm")
    made = lrcore.merge_factors(small)
    shapes = [(p.up.shape[0], p.down.shape[1]) for _, p in projections(small)]
    kinds = [isinstance(p, Linear) for _, p in projections(made)]
    assert kinds == [size_out > size_in for size_out, size_in in shapes]
    assert len(set(kinds)) == 2


def test_projections_of_equal_shape_have_the_same_form(monkeypatch, tiny_llama, story_file):
    """A wrong time of a single layer has no effect."""

    def seconds(modules, inputs):
        if not isinstance(modules[0], torch.nn.Linear):
            return [1.0] * len(modules)
        return [2.0] * 7 + [0.8] * (len(modules) - 7)  # 7 projections in the first layer

    monkeypatch.setattr(merging, "_seconds", seconds)
    small = compressed(tiny_llama, story_file, "svd_llm")
    made = lrcore.merge_factors(small)
    kinds_by_shape = {}
    for (_, before), (_, after) in zip(projections(small), projections(made), strict=True):
        kinds_by_shape.setdefault((before.up.shape, before.down.shape), []).append(type(after))
    assert max(map(len, kinds_by_shape.values())) >= 2
    assert all(len(set(kinds)) == 1 for kinds in kinds_by_shape.values())


def test_quantized_and_sparse_factors_are_not_merged(dense_is_faster, tiny_llama, story_file):
    small = compressed(tiny_llama, story_file, "svd_llm")
    for model in (lrcore.quantize(small, 8, group=16), lrcore.sparsify(small, small.recipe)):
        assert lrcore.merge_factors(model) is model


def test_shared_bases_are_merged_and_saved(dense_is_faster, tiny_llama, story_file, tmp_path):
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, ratio=0.3)
    shared = lrcore.share_bases(lrcore.load(str(tiny_llama)), recipe=recipe)
    made = lrcore.merge_factors(shared)
    torch.testing.assert_close(logits(made), logits(shared), rtol=1e-4, atol=1e-4)
    lrcore.save(made, tmp_path / "made")
    assert torch.equal(logits(lrcore.load(str(tmp_path / "made"))), logits(made))


@pytest.mark.parametrize(
    "family", ["gpt2", "opt", "qwen3_moe", "deepseek_v3", "gemma3_text", "mistral"]
)
def test_other_families_are_merged(family, dense_is_faster, tiny_llama, story_file, tmp_path):
    folder = family_folder(family, tiny_llama, tmp_path / "model")
    small = compressed(folder, story_file, "svd_llm")
    made = lrcore.merge_factors(small)
    torch.testing.assert_close(logits(made), logits(small), rtol=1e-4, atol=1e-4)
    assert all(isinstance(p, Linear) for _, p in projections(made))


@pytest.mark.parametrize("method", ["svd_llm", "latentllm"])
def test_merged_bfloat16_matrices_are_as_accurate_as_their_factors(
    method, dense_is_faster, tiny_llama, story_file
):
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.3, method=method
    )
    model = lrcore.load(str(tiny_llama), dtype="bfloat16")
    small = lrcore.compress(model, recipe.with_(dtype="bfloat16"))
    made = lrcore.merge_factors(small)
    exact = copy.deepcopy(small.network).double()
    with torch.inference_mode():
        expected = exact(input_ids=TOKENS).logits
    error, merged_error = (float((logits(p) - expected).abs().mean()) for p in (small, made))
    assert 0 < merged_error < 1.5 * error


def test_merging_with_measured_times_keeps_the_generated_text(tiny_llama, story_file):
    small = compressed(tiny_llama, story_file, "latentllm")
    made = lrcore.merge_factors(small, tokens=3)
    torch.testing.assert_close(logits(made), logits(small), rtol=1e-4, atol=1e-4)
    text = lrcore.generate(made, "Once", max_new_tokens=4)
    assert text == lrcore.generate(small, "Once", max_new_tokens=4)


def test_dense_model_is_returned_unchanged(tiny_llama):
    model = lrcore.load(str(tiny_llama))
    assert lrcore.merge_factors(model) is model


def test_too_little_memory_raises_before_the_allocation(monkeypatch, tiny_llama, story_file):
    small = compressed(tiny_llama, story_file, "svd_llm")
    need = sum(p.weight.numel() for _, p in projections(small)) * 4
    monkeypatch.setattr(merging, "free_memory", lambda: need - 1)
    with pytest.raises(ResourceError, match="Run the model with its factors"):
        lrcore.merge_factors(small)
    monkeypatch.setattr(merging, "free_memory", lambda: need)
    lrcore.merge_factors(small)


def test_invalid_tokens_and_offloaded_models_raise(tiny_llama):
    with pytest.raises(lrcore.InputError, match="tokens must be a whole number"):
        lrcore.merge_factors(lrcore.load(str(tiny_llama)), tokens=0)
    with pytest.raises(lrcore.InputError, match="without offload"):
        lrcore.merge_factors(lrcore.load(str(tiny_llama), offload=True))
