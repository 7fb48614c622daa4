"""Healing: trained parameters, lower losses, and resumption."""

import pytest
import torch
from healing_cases import QUICK, logits
from test_distillation import by_hand

import lrcore
from lrcore.data import load_texts, make_windows
from lrcore.models.layers import read_layer
from lrcore.recipes.history import Healed
from lrcore.system.errors import Cancelled


def changed(before, after):
    """Return names of tensors that differ; names of projections have no layer number."""
    old, new = before.network.state_dict(), after.network.state_dict()
    names = [name for name, value in old.items() if not torch.equal(value, new[name])]
    return {
        name.split(".")[-3] + "." + name.split(".")[-2] if ".layers." in name else name
        for name in names
    }


def test_first_losses_equal_the_definition(care, tiny_llama) -> None:
    output = lrcore.heal(care, **QUICK | {"steps": 1, "batch": 8}).step(Healed)
    model = lrcore.load(str(tiny_llama))
    windows = make_windows(load_texts(care.recipe.data), model.tokenizer, 8, 24, "random", 0).tokens
    student, teacher = (
        logits(network, windows[:, :-1]).double().flatten(0, 1) for network in (care, model)
    )
    entropy, divergence = by_hand(student, teacher, windows[:, 1:].flatten(), 2.0)
    assert list(output.cross_entropy) == [pytest.approx(entropy, abs=1e-5)]
    assert list(output.divergence) == [pytest.approx(divergence, abs=1e-5)]
    assert output.first_loss == pytest.approx(entropy + 4 * divergence, abs=1e-4)


def test_care_trains_only_the_latents(small_of, tiny_llama_bias) -> None:
    small = small_of(tiny_llama_bias, "care")
    before = {name: value.clone() for name, value in small.network.state_dict().items()}
    healed = lrcore.heal(small, **QUICK)
    assert changed(small, healed) == {
        f"{name}_proj.{part}" for name in "kv" for part in ("down", "up")
    }
    assert all(
        torch.equal(value, before[name]) for name, value in small.network.state_dict().items()
    )
    assert all(
        torch.equal(value, before[name])
        for name, value in healed.network.state_dict().items()
        if name.endswith("bias")
    )
    output = healed.step(Healed)
    assert output.train == "latents"
    assert output.trained_parameters == sum(
        p.down.numel() + p.up.numel()
        for i in range(3)
        for p in (
            read_layer(small.network, i).attention.k,
            read_layer(small.network, i).attention.v,
        )
    )
    assert not any(parameter.requires_grad for parameter in healed.network.parameters())


@pytest.mark.parametrize(
    ("method", "changes", "trained"),
    [
        (
            "svd",
            {
                "component_ratios": dict.fromkeys(("q", "k", "v", "o", "gate", "up"), 0.0)
                | {"down": 0.5}
            },
            {"down_proj.down", "down_proj.up"},
        ),
        (
            "a3",
            {"component_ratios": {"qk": 0.5, "ov": 0.0, "mlp": 0.0}},
            {"self_attn.q_proj", "self_attn.k_proj"},
        ),
        (
            "modegpt",
            {"component_ratios": {"qk": 0.0, "ov": 0.0, "mlp": 0.5}},
            {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
        ),
        ("latentllm", {"options": {"attention": "joint_qkv"}}, None),
    ],
)
def test_other_methods_train_the_compressed_parts(
    method, changes, trained, small_of, tiny_llama
) -> None:
    small = small_of(tiny_llama, method, **changes)
    healed = lrcore.heal(small, **QUICK)
    assert trained is None or changed(small, healed) == trained
    assert healed.size == small.size
    assert healed.step(Healed).cross_entropy[-1] < healed.step(Healed).cross_entropy[0]


def test_train_all_trains_all_parameters(care) -> None:
    healed = lrcore.heal(care, **QUICK, train="all")
    assert {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "self_attn.q_proj",
        "mlp.up_proj",
    } <= changed(care, healed)
    assert (
        healed.network.lm_head.weight is healed.network.model.embed_tokens.weight
    )  # tied weights stay tied
    assert healed.step(Healed).trained_parameters == care.size.parameters == healed.size.parameters


def test_healing_lowers_the_perplexity_of_the_test_split() -> None:
    model = lrcore.load("demo-llama")
    small = lrcore.compress(
        model, lrcore.Recipe("demo-llama", samples=8, seq_len=64, method="care", ratio=0.85)
    )
    healed = lrcore.heal(
        small,
        teacher=model,
        samples=64,
        seq_len=64,
        steps=12,
        batch=4,
        lr=3e-3,
        rotary_channel=4,
        test_samples=8,
    )
    output = healed.step(Healed)
    assert output.perplexity_after < 0.9 * output.perplexity_before
    assert output.last_loss < output.first_loss
    assert output.test_protocol["source"] == "stories/test"
    result = lrcore.evaluate(healed, "stories", samples=8, seq_len=64)
    assert result.perplexity == pytest.approx(output.perplexity_after, rel=1e-6)


def test_healing_depends_on_the_seed_and_resumes_after_cancellation(
    care, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("lrcore.compression.steps.healing.distillation.EVERY", 2)
    settings, state = QUICK | {"steps": 9, "rotary_channel": 2}, tmp_path / "state.safetensors"
    uninterrupted = lrcore.heal(care, **settings)
    stages = []

    def stop(stage, done, total):
        stages.append((stage, done, total))
        if done == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        lrcore.heal(care, **settings, state=state, progress=stop)
    assert stages == [("heal", done, 9) for done in range(6)]
    assert not any(parameter.requires_grad for parameter in care.network.parameters())
    stages.clear()
    resumed = lrcore.heal(
        care, **settings, state=state, progress=lambda *message: stages.append(message)
    )
    assert stages[0] == ("heal", 4, 9)
    assert torch.equal(logits(resumed), logits(uninterrupted))
    assert resumed.step(Healed).cross_entropy == uninterrupted.step(Healed).cross_entropy
    different = lrcore.heal(
        care, **settings | {"seed": 1}, state=state
    )  # other settings start from the beginning
    assert not torch.equal(logits(different), logits(uninterrupted))
    assert torch.equal(logits(different), logits(lrcore.heal(care, **settings | {"seed": 1})))


def test_bfloat16_model_is_healed_in_its_dtype(small_of, tiny_llama, tmp_path) -> None:
    small = small_of(tiny_llama, "care")
    lrcore.save(small, tmp_path / "small")
    half = lrcore.load(str(tmp_path / "small"), dtype="bfloat16")
    healed = lrcore.heal(half, **QUICK | {"steps": 20, "lr": 3e-3}, rotary_channel=2)
    assert {p.dtype for p in healed.network.parameters()} == {torch.bfloat16}
    assert healed.step(Healed).last_loss < healed.step(Healed).first_loss


def test_training_file_is_not_used_as_test_text(care, story_file, tmp_path) -> None:
    assert lrcore.heal(care, **QUICK | {"test_samples": 2}).step(Healed).perplexity_after is None
    different = tmp_path / "other.txt"
    different.write_text(story_file.read_text()[500:])
    output = lrcore.heal(care, **QUICK | {"test_samples": 2}, test=str(different)).step(Healed)
    assert output.perplexity_before > 1 < output.perplexity_after
