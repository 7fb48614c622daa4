"""Reported costs, compared with counts from modules, cache and shapes."""

import pytest
import torch
from tiny_models import FAMILIES, family_folder

import lrcore
from lrcore.evaluation.cost import (
    bytes_on_disk,
    cache_bytes,
    measure_cost,
    measure_speed,
    predicted_flops,
    read_peak,
    reset_peak,
)


def compressed(folder, method, story_file, policy="uniform"):
    dense = lrcore.load(str(folder))
    recipe = lrcore.Recipe(
        model=str(folder),
        data=str(story_file),
        samples=4,
        seq_len=32,
        ratio=0.4,
        method=method,
        policy=policy,
    )
    return dense, lrcore.compress(dense, recipe)


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
@pytest.mark.parametrize("method", ["a3", "svd_llm"])
def test_costs_equal_counts_from_modules_cache_and_shapes(family, method, request, story_file):
    for model in compressed(request.getfixturevalue(family), method, story_file):
        result = measure_cost(model, context=24)
        assert result.parameters == sum(p.numel() for p in model.network.parameters())
        cache = model.network(
            input_ids=torch.zeros(1, 10, dtype=torch.long), use_cache=True
        ).past_key_values
        held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers) * 4
        assert (
            result.kv_bytes_per_token == held / 10 == cache_bytes(cache) / 10 == model.size.kv_bytes
        )
        assert result.flops_prefill == pytest.approx(result.flops_formula, rel=0.01)
        assert result.flops_decode == pytest.approx(predicted_flops(model, 25), rel=0.01)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_size_of_a_family_follows_from_its_shapes(family, tiny_llama, tmp_path):
    model = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / "model")))
    # Falcon repeats keys and values for all query heads before caching them
    times = 2 if family == "falcon" else 1
    assert measure_cost(model, context=4).kv_bytes_per_token == times * model.size.kv_bytes


def test_a_plan_predicts_the_measured_flops():
    dense = lrcore.load("demo-opt")
    recipe = lrcore.Recipe(model="demo-opt", samples=2, seq_len=64, ratio=0.3)
    small = lrcore.compress(dense, recipe)
    for model, name in ((dense, "dense_flops_per_token"), (small, "flops_per_token")):
        assert measure_cost(model, context=64).flops_prefill == pytest.approx(
            small.account.to_dict()[name], rel=0.01
        )


def test_bytes_on_disk_equal_the_file_sizes(tiny_llama, story_file, tmp_path):
    dense, small = compressed(tiny_llama, "a3", story_file)
    assert bytes_on_disk(dense) == (tiny_llama / "model.safetensors").stat().st_size
    assert bytes_on_disk(small) is None
    saved = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert bytes_on_disk(saved) == (tmp_path / "small" / "model.safetensors").stat().st_size


def test_speed_is_measured_in_turns(tiny_llama, story_file, monkeypatch):
    models = compressed(tiny_llama, "a3", story_file)
    order, module = [], __import__("importlib").import_module("lrcore.evaluation.cost")
    plain = module._time
    monkeypatch.setattr(
        module,
        "_time",
        lambda model, *arguments: order.append(model.name) or plain(model, *arguments),
    )
    result = measure_speed(models, prompt=8, new=2, rounds=3)
    assert order == [model.name for model in models] * 4
    assert [speed.name for speed in result] == [model.name for model in models]
    assert all(speed.prefill > 0 and speed.decode > 0 and speed.rounds == 3 for speed in result)


def test_the_memory_peak_includes_freed_memory():
    device = torch.device("cpu")
    reset_peak(device)
    before = read_peak(device)
    if before is None:
        pytest.skip("this system does not report the peak resident size")
    torch.ones(2**27).sum()  # 512 MiB, far more than earlier tests may free meanwhile
    assert read_peak(device) > before + 2**27


def test_a_context_beyond_that_of_the_model_is_refused(tiny_llama):
    with pytest.raises(lrcore.InputError, match="129 tokens"):
        measure_cost(lrcore.load(str(tiny_llama)), context=128)


def test_the_head_is_applied_to_several_prompts_in_one_product(tiny_llama):
    """torch copies the head for each sequence if its input is not contiguous."""
    model, head_inputs = lrcore.load(str(tiny_llama)), []
    head = model.network.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0]))
    measure_speed([model], prompt=8, new=2, rounds=1, batch=3)
    assert {tuple(head_input.shape[:2]) for head_input in head_inputs} == {(3, 1)}
    assert all(head_input.is_contiguous() for head_input in head_inputs)
