"""LoRA adapters by PEFT: their start, training and merging."""

import sys
from dataclasses import replace

import pytest
import torch
from healing_cases import QUICK, logits
from tiny_models import family_folder

import lrcore
from lrcore.cli import main
from lrcore.compression.steps.healing.lora import add_adapters, merge_adapters
from lrcore.models.layers import clone
from lrcore.recipes.history import Healed, Quantized

pytest.importorskip("peft")


def with_network(model, network):
    return replace(model, network=network)


@pytest.mark.parametrize("method", ["svd", "care", "latentllm"])
def test_adapters_start_at_zero_and_merge_into_their_matrices(small_of, tiny_llama, method):
    small = small_of(tiny_llama, method)
    before = logits(small)
    network = clone(small.network)
    adapted = with_network(small, network)
    parameters = add_adapters(network, "lora", 2, 6, 0)
    assert torch.equal(logits(adapted), before)
    a, b = parameters[0::2], parameters[1::2]
    assert all(
        first.shape[0] == 2 and second.shape[1] == 2 for first, second in zip(a, b, strict=True)
    )
    with torch.no_grad():
        for second in b:
            second.normal_(std=0.05, generator=torch.Generator().manual_seed(second.shape[0]))
    moved = logits(adapted)
    expected = [3.0 * second @ first for first, second in zip(a, b, strict=True)]
    merge_adapters(network, "lora")
    assert not [name for name, _ in network.named_parameters() if "lora" in name]
    assert torch.allclose(logits(adapted), moved, atol=1e-4)
    assert not torch.allclose(moved, before, atol=1e-2)
    assert torch.equal(logits(small), before)  # the original model is unchanged
    assert adapted.size == small.size
    old, new = (dict(first.named_parameters()) for first in (small.network, network))
    added = [new[name] - old[name] for name in old if new[name] is not old[name]]
    for first in expected:
        assert any(x.shape == first.shape and torch.allclose(x, first, atol=1e-6) for x in added)
    assert len(added) == len(expected)


def test_lora_mlp_adapts_the_dense_mlp_of_a_model_with_experts(small_of, tiny_llama, tmp_path):
    small = small_of(family_folder("qwen3_moe", tiny_llama, tmp_path / "model"), "care")
    network, before = clone(small.network), logits(small)
    add_adapters(network, "lora_mlp", 2, 6, 0)
    adapted = {
        name.rpartition(".lora_")[0] for name, _ in network.named_parameters() if "lora_" in name
    }
    assert adapted == {f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")}
    merge_adapters(network, "lora_mlp")
    merged = with_network(small, network)
    assert torch.equal(logits(merged), before)
    assert merged.size == small.size


def test_healing_with_adapters_lowers_the_loss_and_is_saved(small_of, tiny_llama, tmp_path):
    small = small_of(tiny_llama, "svd")
    settings = QUICK | {"steps": 8, "lr": 3e-3, "train": "lora_mlp", "lora_rank": 2, "beta": 0.0}
    healed = lrcore.heal(small, **settings)
    step = healed.step(Healed)
    assert (step.lora_rank, step.lora_alpha, step.train) == (2, 16, "lora_mlp")
    assert sum(step.cross_entropy[-4:]) < sum(step.cross_entropy[:4])
    assert healed.size == small.size
    old, new = small.network.state_dict(), healed.network.state_dict()
    assert {name.split(".")[3] for name in old if not torch.equal(old[name], new[name])} == {"mlp"}
    assert step.trained_parameters < sum(p.numel() for p in small.network.parameters()) / 4
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))
    assert back.step(Healed) == step


def test_missing_peft_names_the_file_to_install(
    small_of, tiny_llama, monkeypatch, tmp_path, capsys
):
    folder = lrcore.save(small_of(tiny_llama, "svd"), tmp_path / "small")
    monkeypatch.setitem(sys.modules, "peft", None)
    command = ["heal", str(folder), "--out", str(tmp_path / "out"), "--train", "lora"]
    assert main([*command, "--samples", "4", "--seq-len", "16"]) == 2
    assert "requirements-lora.txt" in capsys.readouterr().err


def test_sparse_matrices_cannot_have_adapters(small_of, tiny_llama):
    made = lrcore.sparsify(lrcore.load(str(tiny_llama)), small_of(tiny_llama, "svd").recipe)
    with pytest.raises(lrcore.InputError, match="No adapters can be added"):
        add_adapters(clone(made.network), "lora", 2, 4, 0)


@pytest.mark.parametrize(
    ("method", "train"), [("a3", "lora"), ("svd", "lora_mlp"), ("latentllm", "lora")]
)
def test_adapters_train_a_quantized_model_within_its_bits(
    small_of, tiny_llama, tmp_path, method, train
):
    """After each step, the sum of a matrix and its adapter is rounded to the grid."""
    made = lrcore.quantize(small_of(tiny_llama, method), 4, group=16)
    settings = QUICK | {"steps": 8, "lr": 2e-2, "train": train, "lora_rank": 2, "beta": 0.0}
    healed = lrcore.heal(made, **settings)
    step = healed.step(Healed)
    assert sum(step.cross_entropy[-4:]) < sum(step.cross_entropy[:4])
    assert healed.size == made.size
    assert healed.step(Quantized) == made.step(Quantized)
    old, new = made.network.state_dict(), healed.network.state_dict()
    assert [(name, x.dtype, x.shape) for name, x in old.items()] == [
        (name, x.dtype, x.shape) for name, x in new.items()
    ]
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert any(name.endswith(".codes") for name in changed)
    assert not any(name.endswith((".low", ".step")) for name in changed)
    if train == "lora_mlp":
        assert {name.split(".")[3] for name in changed} == {"mlp"}
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))
