"""Plans for a budget of bytes: sizes, losses and bits."""

from dataclasses import replace

import pytest
import torch
from tiny_models import family_folder

import lrcore
from lrcore.cli import main
from lrcore.layers.forms import Quantized
from lrcore.layers.layer import factor_matrices
from lrcore.models.layers import read_layer
from lrcore.ranks.quantization import BITS, GROUP

TOKENS = torch.arange(3, 43).view(2, 20)


def recipe_for(folder, data, **changes):
    fields = {"method": "fused", "policy": "probed", "budget": "bytes", "ratio": 0.4}
    return lrcore.Recipe(
        model=str(folder), data=str(data), samples=8, seq_len=32, **{**fields, **changes}
    )


def logits(model):
    with torch.inference_mode():
        return model.network(input_ids=TOKENS).logits


@pytest.fixture(scope="module")
def prepared(tiny_llama, story_file):
    recipe = recipe_for(tiny_llama, story_file)
    model = lrcore.load(str(tiny_llama))
    return model, lrcore.prepare(model, recipe), recipe


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.35, 0.5, 0.55])
def test_size_stays_within_the_budget_and_the_plan_knows_it(ratio, prepared):
    model, factors, recipe = prepared
    recipe = recipe.with_(ratio=ratio)
    plan = lrcore.allocate(factors, recipe)
    made = lrcore.compress(model, recipe, factors, plan)
    limit = (1 - ratio) * model.size.stored
    assert made.size.stored <= plan.account.model.bytes <= limit
    assert plan.account.model.bytes > 0.96 * limit  # a matrix takes all of its bits or none
    assert made.account.model.bytes == made.size.stored
    assert made.account.achieved == pytest.approx(1 - made.size.stored / model.size.stored)
    assert plan.account.achieved >= ratio


def test_plan_has_the_least_predicted_loss_of_all_choices_of_a_slot(prepared):
    """No other bits or rank of a single slot lose less in at most the same bytes."""
    _, factors, recipe = prepared
    plan = lrcore.allocate(factors, recipe)
    quantization, curves = plan.quantization, plan.probes.curves
    for slot, rank in plan.ranks.items():
        s, bits = plan.spectra[slot], plan.bits.get(slot, 0)
        size = quantization.bytes(s, rank, bits, 4)
        loss = curves[slot].loss(rank) + quantization.rise(s, rank, bits)
        for other in (0, *BITS):
            for other_rank in curves[slot].ranks:
                if quantization.bytes(s, other_rank, other, 4) <= size:
                    rise = quantization.rise(s, other_rank, other)
                    assert curves[slot].loss(other_rank) + rise >= loss - 1e-12


def test_compressed_model_has_the_bits_of_the_plan_and_reloads_bit_for_bit(prepared, tmp_path):
    model, factors, recipe = prepared
    recipe = recipe.with_(ratio=0.5)
    plan = lrcore.allocate(factors, recipe)
    made = lrcore.compress(model, recipe, factors, plan)
    assert {row.bits for row in made.ranks} - {0} == set(plan.bits.values()) != set()
    stored = set()
    for index in range(3):
        for projection in read_layer(made.network, index).matrices().values():
            forms = [m for m in factor_matrices(projection) if isinstance(m, Quantized)]
            stored |= {(form.bits, form.chunk) for form in forms}
    assert stored == {(bits, GROUP) for bits in plan.bits.values()}
    lrcore.save(made, tmp_path / "made")
    back = lrcore.load(str(tmp_path / "made"))
    assert torch.equal(logits(back), logits(made))
    assert back.ranks == made.ranks
    assert back.account.achieved == pytest.approx(made.account.achieved)
    for step in (lambda: lrcore.compress(back, recipe), lambda: lrcore.quantize(back, 4)):
        with pytest.raises(lrcore.InputError, match=r"is .*quantized"):
            step()
    with pytest.raises(lrcore.InputError, match="is quantized"):
        lrcore.sparsify(back, recipe)


def test_equal_bits_without_refit_are_those_of_quantize(prepared):
    """Policy uniform is GPTQ: with four bits, all matrices at full rank."""
    model, factors, recipe = prepared
    quantized = lrcore.quantize(model, 4, GROUP, quantizer="gptq", recipe=recipe)
    ratio = 1 - quantized.size.stored / model.size.stored
    recipe = recipe.with_(policy="uniform", refit="off", ratio=ratio)
    made = lrcore.compress(model, recipe, factors)
    assert made.size.stored == quantized.size.stored
    assert torch.equal(logits(made), logits(quantized))


def test_refit_makes_up_for_the_quantization_of_earlier_projections(prepared):
    """On the calibration windows, whose outputs the refit fits."""
    model, factors, recipe = prepared
    recipe = recipe.with_(policy="uniform", ratio=0.55)
    plan, tokens = lrcore.allocate(factors, recipe), factors.calibration.tokens
    assert set(plan.bits.values()) == {4}

    @torch.inference_mode()
    def states(made):
        return made.network(input_ids=tokens, output_hidden_states=True).hidden_states[-1]

    errors = []
    for refit in ("on", "off"):
        made = lrcore.compress(model, recipe.with_(refit=refit), factors, plan)
        errors.append(float((states(made) - states(model)).square().mean()))
    assert errors[0] < 0.9 * errors[1]


def test_results_of_plans_with_other_bits_are_not_confused(prepared):
    model, factors, recipe = prepared
    plan = lrcore.allocate(factors, recipe)
    fewer = replace(plan, bits=dict.fromkeys(plan.bits, 2))
    made = [lrcore.compress(model, recipe, factors, each) for each in (plan, fewer)]
    assert made[0].fingerprint != made[1].fingerprint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "waterfill"}, "policy probed"),
        ({"rank_overrides": {"0.mlp": 8}}, "rank overrides"),
        ({"component_ratios": {"mlp": 0.3}}, "component ratios"),
        ({"target": "vllm"}, "target vllm"),
        ({"refit": "trained"}, "refit on"),
        ({"method": "latentllm", "options": {"bits": 4}}, "quantize factors"),
    ],
)
def test_settings_that_do_not_go_with_bytes_are_refused(changes, words, tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    with pytest.raises(lrcore.InputError, match=words):
        lrcore.compress(model, recipe_for(tiny_llama, story_file, **changes))


@pytest.mark.parametrize("method", ["svd_llm", "llm_pruner", "latentllm"])
def test_bytes_of_other_methods(method, tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    recipe = recipe_for(tiny_llama, story_file, method=method, ratio=0.2)
    made = lrcore.compress(model, recipe)
    assert made.size.stored <= 0.8 * model.size.stored
    assert torch.isfinite(logits(made)).all()


def test_permutations_of_experts_count(tiny_llama, tmp_path, story_file):
    """Their low-rank pairs are not rounded, but have identity blocks with permutations."""
    folder = family_folder("qwen3_moe", tiny_llama, tmp_path / "experts")
    model = lrcore.load(str(folder))
    recipe = recipe_for(folder, story_file, method="latentllm", ratio=0.3, refit="off")
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    made = lrcore.compress(model, recipe, factors, plan)
    assert any(
        plan.ranks[slot] < s.cost.full and s.cost.copies > 1 for slot, s in plan.spectra.items()
    )
    assert made.size.stored <= plan.account.model.bytes <= 0.7 * model.size.stored


def test_command_line_compresses_to_a_share_of_the_bytes(tiny_llama, story_file, tmp_path, capsys):
    settings = ["--data", str(story_file), "--samples", "4", "--seq-len", "32", "--ratio", "0.5"]
    settings += ["--method", "svd_llm", "--policy", "probed", "--budget", "bytes"]
    assert main(["compress", str(tiny_llama), *settings, "--out", str(tmp_path / "out")]) == 0
    assert "bytes" in capsys.readouterr().out
    dense = lrcore.load(str(tiny_llama)).size.stored
    assert lrcore.load(str(tmp_path / "out")).size.stored <= 0.5 * dense
