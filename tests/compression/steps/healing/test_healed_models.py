"""Healed models: checkpoints, exports, and errors for models that cannot be healed."""

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from elsewhere import elsewhere
from healing_cases import QUICK, logits
from tiny_models import structures_of, tiny

import lrcore
from lrcore.cli import main
from lrcore.compression.steps.healing.healing import find_teacher
from lrcore.models.architectures import ARCHITECTURES
from lrcore.models.layers import read_layer
from lrcore.recipes.history import Healed

pytestmark = pytest.mark.one_in(2)

ELSEWHERE = """
import sys
import torch
from transformers import AutoModelForCausalLM
tokens = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.inference_mode():
    torch.save(model(tokens).logits, sys.argv[2])
"""


@pytest.fixture
def dense_of(tiny_llama, tmp_path):
    """Return a function that saves a tiny model of a family with the tiny Llama's tokenizer."""

    def make(family):
        tiny(family).save_pretrained(tmp_path / family)
        for file in tiny_llama.glob("*token*"):
            (tmp_path / family / file.name).write_bytes(file.read_bytes())
        return tmp_path / family

    return make


def test_healed_model_is_saved_and_exported(small_of, tiny_llama, tmp_path) -> None:
    care = small_of(tiny_llama, "care", policy="waterfill")
    healed = lrcore.heal(care, **QUICK, rotary_channel=4)
    assert not torch.allclose(logits(healed), logits(care), atol=1e-3)
    assert all(read_layer(healed.network, i).attention.channel.k.any() for i in range(3))
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))
    assert back.size == healed.size
    report = json.loads((tmp_path / "healed" / "report.json").read_text())
    assert (
        report["history"][0]["recipe"]
        == care.recipe.to_dict()
        == json.loads((tmp_path / "healed" / "recipe.json").read_text())
    )
    assert report["history"][0]["ranks"] == [asdict(row) for row in care.ranks]
    assert report["history"][1]["rotary_channel"] == 4
    assert lrcore.generate(back, "Once", 8) == lrcore.generate(healed, "Once", 8)
    summary = report["account"]
    assert summary["parameters"] == back.size.parameters > care.size.parameters
    assert summary["decoder_parameters"] == back.size.decoder_linear
    assert summary["megabytes"] == pytest.approx(back.size.megabytes)
    assert summary["kv_bytes_per_token"] == back.size.kv_bytes == care.size.kv_bytes
    assert summary["flops_per_token"] > care.account.to_dict()["flops_per_token"]
    lrcore.export(back, tmp_path / "out")
    assert "### Healing" in (tmp_path / "out" / "README.md").read_text()
    elsewhere(ELSEWHERE, str(tmp_path / "out"), str(tmp_path / "logits.pt"), cwd=tmp_path)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), logits(healed))
    healed_again = lrcore.heal(back, **QUICK)  # heal again, with the existing channel
    assert healed_again.size == back.size
    assert not torch.equal(
        read_layer(healed_again.network, 0).attention.channel.q,
        read_layer(back.network, 0).attention.channel.q,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": 1.5}, "batch"),
        ({"lr": 0}, "lr"),
        ({"beta": -1}, "beta"),
        ({"temperature": float("nan")}, "temp"),
        ({"rotary_channel": 3}, "even"),
        ({"rotary_channel": 64}, "at most 8"),
        ({"train": "latent"}, "Did you mean 'latents'"),
        ({"seq_len": 1000}, "context"),
        ({"samples": 0}, "samples"),
        ({"lr": 1e30, "steps": 30}, "diverged"),
    ],
)
def test_invalid_settings_raise(settings, message, care) -> None:
    with pytest.raises(lrcore.InputError, match=message):
        lrcore.heal(care, **QUICK | settings)


WHOLE_MODEL_STEPS = {  # step, and the default of `train`
    "shorten": (lambda model, recipe: lrcore.prune_layers(model, recipe, 1), "all"),
    "slice-block": (lambda model, recipe: lrcore.slice_hidden(model, recipe, "block"), "factors"),
    "slice-one": (lambda model, recipe: lrcore.slice_hidden(model, recipe, "one"), "factors"),
    "share": (lambda model, recipe: lrcore.share_bases(model, recipe), "factors"),
    "sparsify": (lambda model, recipe: lrcore.sparsify(model, recipe), "factors"),
    "quantise": (
        lambda model, recipe: lrcore.quantize(model, 4, 16, quantizer="gptq", recipe=recipe),
        "factors",
    ),
}


@pytest.mark.parametrize(("change", "trained"), WHOLE_MODEL_STEPS.values(), ids=WHOLE_MODEL_STEPS)
def test_models_of_other_steps_are_healed(
    change, trained, tiny_llama, story_file, tmp_path
) -> None:
    dense = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    made = change(dense, recipe)
    healed = lrcore.heal(made, teacher=dense, **QUICK)
    step = healed.step(Healed)
    assert (step.train, step.data) == (trained, str(story_file))
    assert step.last_loss < step.first_loss
    assert healed.size == made.size
    assert not torch.equal(logits(healed), logits(made))
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))
    lrcore.export(back, tmp_path / "out")
    assert "### Healing" in (tmp_path / "out" / "README.md").read_text()


def test_training_factors_of_a_model_without_changed_numbers_raises(tiny_llama, story_file) -> None:
    dense = lrcore.load(str(tiny_llama))
    short = lrcore.drop_layers(dense, [0])
    with pytest.raises(lrcore.InputError, match="no number that compression changed"):
        lrcore.heal(short, str(story_file), teacher=dense, train="factors", **QUICK)


def test_models_that_cannot_be_healed_raise(small_of, tiny_llama, tiny_opt, tmp_path) -> None:
    dense = lrcore.load(str(tiny_llama))
    with pytest.raises(lrcore.InputError, match="is not a compressed model"):
        lrcore.heal(dense, **QUICK)
    with pytest.raises(lrcore.InputError, match="no latents"):
        lrcore.heal(small_of(tiny_llama, "svd"), **QUICK, train="latents")
    with pytest.raises(lrcore.InputError, match=r"compressed without text\. Name a"):
        lrcore.heal(lrcore.quantize(dense, 8, 16), teacher=dense, **QUICK)
    with pytest.raises(lrcore.InputError, match="No layer"):
        lrcore.heal(small_of(tiny_opt, "care"), **QUICK, rotary_channel=2)
    lrcore.save(small_of(tiny_llama, "care"), tmp_path / "small")
    with pytest.raises(lrcore.InputError, match="without offload"):
        lrcore.heal(lrcore.load(str(tmp_path / "small"), offload=True), **QUICK)


def test_teacher_must_be_the_base_model(small_of, tiny_llama, tiny_llama_bias, tmp_path) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "dense")
    small = small_of(folder, "care")
    assert find_teacher(small).fingerprint == small.base.fingerprint
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(lrcore.InputError, match=r"cannot be loaded as teacher.*--teacher"):
        find_teacher(small)
    assert find_teacher(small, str(moved)).name == str(moved)
    with pytest.raises(lrcore.InputError, match="fingerprint of its files differs"):
        find_teacher(small, str(tiny_llama_bias))
    shutil.copytree(tiny_llama_bias, folder)
    with pytest.raises(lrcore.InputError, match="fingerprint of its files differs"):
        lrcore.heal(small, **QUICK)


def test_heal_command_equals_the_function(care, story_file, tmp_path, capsys) -> None:
    lrcore.save(care, tmp_path / "small")
    words = [
        "heal",
        str(tmp_path / "small"),
        "--data",
        str(story_file),
        "--samples",
        "8",
        "--seq-len",
        "24",
        "--steps",
        "4",
        "--batch",
        "3",
    ]
    words += [
        "--lr",
        "1e-2",
        "--beta",
        "1",
        "--temperature",
        "2",
        "--rotary-channel",
        "2",
        "--seed",
        "3",
        "--out",
        str(tmp_path / "healed"),
    ]
    assert main([*words, "--json"]) == 0
    message = capsys.readouterr()
    output = json.loads(message.out)
    assert output["healing"]["steps"] == 4
    assert len(output["healing"]["cross_entropy"]) == 4
    assert message.err == "heal (4)\n"
    healed = lrcore.load(output["out"])
    expected = lrcore.heal(care, str(story_file), **QUICK, rotary_channel=2, seed=3)
    assert torch.equal(logits(healed), logits(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "healed",
        "small",
    ]  # the state file is removed
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "healing.last_loss" in printed
    assert "protocol" not in printed
    assert (
        main(["heal", str(tmp_path / "small"), "--out", str(tmp_path / "other"), "--train", "some"])
        == 2
    )
    assert capsys.readouterr().err.startswith("error: Unknown choice of what to train 'some'")


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_family_is_healed(family, dense_of, small_of, tmp_path) -> None:
    """Use one method per family; the loss falls only if gradients reach all parameters."""
    methods = [name for name in ("care", "fused", "svd_llm") if name in structures_of(family)]
    method = methods[list(ARCHITECTURES).index(family) % len(methods)]
    small = small_of(dense_of(family), method)
    rotary = method == "care" and read_layer(small.network, 0).attention.position == "rotary"
    healed = lrcore.heal(
        small, **QUICK | {"steps": 12, "batch": 8}, rotary_channel=2 if rotary else 0
    )
    output = healed.step(Healed)
    assert output.last_loss < output.first_loss
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))
