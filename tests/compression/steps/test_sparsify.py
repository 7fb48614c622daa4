"""Sparse models: 2:4 patterns, bytes of masks, saving and export."""

import copy
import json
from dataclasses import replace

import pytest
import torch

import lrcore
from lrcore.checkpoints.export import export_for
from lrcore.cli import main
from lrcore.compression.calibration.calibrate import make_calibration_windows
from lrcore.compression.steps.derived_models import rewrite_network
from lrcore.compression.steps.sparsify import shrunk
from lrcore.compression.steps.step_settings import Sparsifying
from lrcore.evaluation.cost import bytes_on_disk
from lrcore.layers.forms import dense, masked
from lrcore.layers.obs import pruner_zero
from lrcore.models.layers import read_layer
from lrcore.recipes.history import Quantized, Sparsified

TOKENS = torch.arange(3, 43).view(2, 20)


def logits(model):
    with torch.inference_mode():
        return model.network(input_ids=TOKENS).logits


@pytest.fixture
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)


@pytest.mark.parametrize("criterion", ["sparsegpt", "wanda", "pruner_zero"])
def test_two_of_every_four_weights_are_kept_and_reload_bit_for_bit(criterion, recipe, tmp_path):
    model = lrcore.load(recipe.model)
    made = lrcore.sparsify(model, recipe, criterion)
    numbers = 0
    for index in range(3):
        for p in read_layer(made.network, index).matrices().values():
            assert ((p.weight.reshape(-1, 4) != 0).sum(1) == 2).all()
            numbers += p.weight.numel()
    assert model.size.parameters - made.size.parameters == numbers // 2
    # half of the 32-bit weights are removed, and each weight takes one bit of a mask
    assert model.size.stored - made.size.stored == numbers // 2 * 4 - numbers // 8
    assert made.account.removed_params == pytest.approx(0.5)
    assert made.size.kv_values == model.size.kv_values
    lrcore.save(made, tmp_path / "made")
    back = lrcore.load(str(tmp_path / "made"))
    assert torch.equal(logits(back), logits(made))
    assert back.step(Sparsified) == made.step(Sparsified)
    assert back.size == made.size
    assert made.size.stored <= bytes_on_disk(back)
    assert lrcore.generate(back, "Once", 4) == lrcore.generate(made, "Once", 4)
    lrcore.export(made, tmp_path / "out")
    assert "does not make CPUs faster" in (tmp_path / "out" / "README.md").read_text()
    plain = export_for(made, tmp_path / "stock", "transformers-stock")
    assert plain.notes[0].endswith("low-rank or quantized matrices were multiplied out")
    assert torch.allclose(logits(lrcore.load(str(plain.path))), logits(made), atol=1e-5)


def test_each_layer_reads_the_outputs_of_the_sparse_layers_before_it(recipe):
    model = lrcore.load(recipe.model)
    seen = []

    def keep(matrix, moment):
        seen.append(moment)
        return torch.zeros_like(matrix) if len(seen) <= 7 else matrix

    rewrite_network(model.network, keep, TOKENS, "sparsify", lambda *_: None)
    first, seen = seen, []
    rewrite_network(model.network, lambda m, s: seen.append(s) or m, TOKENS, "s", lambda *_: None)
    assert torch.equal(first[0], seen[0])
    assert not torch.allclose(first[7], seen[7])


def test_pruner_zero_reads_the_gradients_of_the_dense_model(recipe):
    """Compute the root mean square of each window's gradient separately."""
    model = lrcore.load(recipe.model)
    windows = make_calibration_windows(model, recipe)
    network = copy.deepcopy(model.network).requires_grad_(True)
    weight = network.model.layers[1].mlp.up_proj.weight
    total = torch.zeros_like(weight)
    for window in windows.tokens:
        network.zero_grad()
        network(input_ids=window[None], labels=window[None]).loss.backward()
        total += weight.grad**2
    made = read_layer(lrcore.sparsify(model, recipe, "pruner_zero").network, 1).matrices()["up"]
    expected = pruner_zero(weight.detach(), (total / len(windows.tokens)).sqrt())
    assert torch.equal(made.weight, dense(expected))
    small = lrcore.compress(model, recipe.with_(method="svd", ratio=0.4, rank_multiple=4))
    with pytest.raises(lrcore.InputError, match="Gradients need a dense model"):
        lrcore.sparsify(small, recipe, "pruner_zero")


def test_sparse_factors_are_healed_within_their_masks(recipe):
    model = lrcore.load(recipe.model)
    small = lrcore.compress(model, recipe.with_(method="svd", ratio=0.4, rank_multiple=4))
    made = lrcore.sparsify(small, recipe)
    q = read_layer(made.network, 0).matrices()["q"]
    assert q.down.parameters == q.down.shape[0] * q.down.shape[1] // 2
    settings = {"samples": 4, "seq_len": 16, "steps": 2, "batch": 2, "test_samples": 0, "lr": 1e-2}
    healed = lrcore.heal(made, teacher=model, **settings)
    after = read_layer(healed.network, 0).matrices()["q"]
    assert torch.equal(after.down.mask, q.down.mask)
    assert not torch.equal(after.down.values, q.down.values)
    assert made.account.dense == small.account.dense


@pytest.mark.parametrize("step", ["compress", "quantize", "sparsify", "prune_layers"])
def test_steps_that_would_lose_the_masks_raise(step, recipe):
    made = lrcore.sparsify(lrcore.load(recipe.model), recipe, "wanda")
    steps = {
        "compress": lambda: lrcore.compress(made, recipe),
        "quantize": lambda: lrcore.quantize(made),
        "sparsify": lambda: lrcore.sparsify(made, recipe),
        "prune_layers": lambda: lrcore.prune_layers(made, recipe, 1),
    }
    with pytest.raises(lrcore.InputError, match="sparse matrices"):
        steps[step]()


def test_gptq_reads_calibration_text_and_is_as_small_as_hqq(recipe, tmp_path):
    model = lrcore.load(recipe.model)
    made = lrcore.quantize(model, 3, 16, quantizer="gptq", recipe=recipe)
    assert made.step(Quantized).method == "gptq"
    assert made.step(Quantized).calibration["source"]
    assert made.size == lrcore.quantize(model, 3, 16).size
    back = lrcore.load(str(lrcore.save(made, tmp_path / "made")))
    assert torch.equal(logits(back), logits(made))
    small = lrcore.compress(model, recipe.with_(method="svd"))
    low = lrcore.quantize(small, 4, 16, quantizer="gptq", recipe=recipe)
    assert low.fingerprint != made.fingerprint
    assert read_layer(low.network, 0).matrices()["q"].down.bits == 4


def test_commands_write_folders_that_evaluate_reads(recipe, tmp_path, capsys):
    text = ["--data", recipe.data, "--samples", "4", "--seq-len", "32", "--json"]
    assert main(["sparsify", recipe.model, str(tmp_path / "a"), "--criterion", "wanda", *text]) == 0
    assert json.loads(capsys.readouterr().out)["sparsified"]["criterion"] == "wanda"
    command = ["quantize", recipe.model, str(tmp_path / "b"), "--quantizer", "gptq", "--bits", "4"]
    assert main([*command, *text]) == 0
    assert json.loads(capsys.readouterr().out)["quantized"]["method"] == "gptq"
    assert main(["evaluate", str(tmp_path / "a"), "--data", recipe.data, "--samples", "2"]) == 0


def test_sparsify_and_quantize_can_be_rows_of_a_sweep(recipe):
    rows = ["sparsify", {"sparsify": {"criterion": "wanda"}}, {"quantize": {"bits": 2}}]
    rows += [{"quantize": {"quantizer": ["hqq", "gptq"], "bits": 4}}]
    sweep = replace(lrcore.Sweep(recipe, rows=rows), seeds=(0, 1))
    made = [(str(chain[0].label), chain[0].recipe.seed) for chain in sweep.cells()]
    assert len(made) == 2 + 2 + 1 + 1 + 2
    assert {label for label, _ in made} == {
        "2:4 sparsegpt",
        "2:4 wanda",
        "nearest 2 bit",
        "hqq 4 bit",
        "gptq 4 bit",
    }


@pytest.mark.parametrize("criterion", ["sparsegpt", "wanda", "pruner_zero", "shrinkage"])
def test_unstructured_density_is_met_and_reloads_bit_for_bit(criterion, recipe, tmp_path):
    model = lrcore.load(recipe.model)
    made = lrcore.sparsify(model, recipe, criterion, pattern="unstructured", density=0.3)
    numbers = nonzero = bits = 0
    for index in range(3):
        for p in read_layer(made.network, index).matrices().values():
            numbers, nonzero = numbers + p.weight.numel(), nonzero + int((p.weight != 0).sum())
            bits += p.weight.shape[0] * -(-p.weight.shape[1] // 8)
    assert nonzero == pytest.approx(0.3 * numbers, rel=0.03)
    assert model.size.parameters - made.size.parameters == numbers - nonzero
    assert model.size.stored - made.size.stored == 4 * (numbers - nonzero) - bits
    step = made.step(Sparsified)
    assert (step.pattern, step.kept) == ("unstructured", 0.3)
    back = lrcore.load(str(lrcore.save(made, tmp_path / "made")))
    assert torch.equal(logits(back), logits(made))
    assert back.history == made.history
    out = lrcore.export(made, tmp_path / "out")
    assert "30% of the weights in its decoder layers" in (out / "README.md").read_text()
    assert torch.equal(logits(lrcore.load(str(out))), logits(made))


def test_shrinkage_improves_on_its_start_and_recovers_sparse_weights():
    torch.manual_seed(2)
    mixed = torch.randn(24, 40, dtype=torch.float64)
    moment = mixed @ mixed.T / 40
    weight = torch.randn(16, 24, dtype=torch.float64)

    def error(form):
        lost = dense(form) - weight
        return float((lost @ moment * lost).sum())

    start = weight * moment.diagonal().sqrt()
    entries = start.abs() >= start.abs().flatten().topk(192).values[-1]
    made = shrunk(weight, moment, 0.5)
    assert made.parameters == 192
    assert error(made) < 0.8 * error(masked(weight, entries))
    weight = weight * (torch.rand(16, 24) < 0.4)
    assert error(shrunk(weight, moment, 0.5)) < 1e-20


def test_invalid_combinations_raise():
    for settings in (
        {"criterion": "shrinkage"},
        {"density": 0.3},
        {"pattern": "unstructured", "density": 1.0},
        {"pattern": "1:4"},
    ):
        with pytest.raises(lrcore.InputError, match=r"unstructured"):
            Sparsifying(**settings)
