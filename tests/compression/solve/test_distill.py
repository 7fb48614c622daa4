"""Distillation of compressed networks towards the predictions of the dense model."""

import errno
import shutil
from pathlib import Path

import pytest
import torch
from tiny_models import family_folder

import lrcore
from lrcore.compression.evidence import joint_probes
from lrcore.compression.solve import distill, refit
from lrcore.compression.steps.healing.distillation import mean_divergence
from lrcore.models.architectures import decoder_layers
from lrcore.recipes.history import Compressed
from lrcore.runs.sweep_store import cells
from lrcore.system.cache import entries
from lrcore.system.errors import Cancelled
from lrcore.system.files import cache_folder
from lrcore.system.progress import silent

TOKENS = torch.arange(3, 3 + 6 * 16).view(6, 16)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(distill, "STEPS", 60)
    monkeypatch.setattr(distill, "TRIAL", 6)
    monkeypatch.setattr(distill, "STEP_TOKENS", 256)


def requested(folder, story_file, method="fused", **changes):
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=8, seq_len=32, ratio=0.4)
    return recipe.with_(method=method, refit="distilled", **changes)


def divergence(model, small, tokens):
    with torch.inference_mode():
        return float(mean_divergence(small.network(tokens).logits, model.network(tokens).logits))


def states():
    return [entry.path for entry in entries() if entry.kind == "distillations"]


@pytest.mark.parametrize("family", ["llama", "opt", "gemma2", "qwen3_moe"])
def test_distillation_lowers_the_divergence_at_the_same_size(
    family, tiny_llama, tmp_path, story_file
):
    recipe = requested(family_folder(family, tiny_llama, tmp_path), story_file)
    model = lrcore.load(recipe.model)
    before = [p.clone() for p in model.network.parameters()]
    tokens = distill.distillation_windows(model, recipe, distill.full_schedule())[::10].flatten(
        0, 1
    )[::16]
    before_it, distilled = (
        lrcore.compress(model, recipe.with_(refit=r)) for r in ("on", "distilled")
    )
    assert divergence(model, distilled, tokens) < 0.9 * divergence(model, before_it, tokens)
    assert distilled.size == before_it.size
    assert distilled.fingerprint != before_it.fingerprint
    times, times_before_it = (m.step(Compressed).seconds for m in (distilled, before_it))
    assert times.keys() - times_before_it.keys() == {"distill"}
    assert all(torch.equal(p, q) for p, q in zip(model.network.parameters(), before, strict=True))
    inside = {id(p) for p in decoder_layers(distilled.network).parameters()}
    outside = {name: p for name, p in distilled.network.named_parameters() if id(p) not in inside}
    dense = dict(model.network.named_parameters())
    assert outside
    assert all(torch.equal(p, dense[name]) for name, p in outside.items())
    assert not any(p.requires_grad for p in distilled.network.parameters())
    assert states() == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_interrupted_distillation_resumes_to_the_same_numbers(tiny_llama, story_file, dtype):
    recipe = requested(tiny_llama, story_file, dtype=dtype)
    model = lrcore.load(recipe.model, dtype=dtype)
    complete = lrcore.compress(model, recipe)

    def stop(stage, done, total):
        if (stage, done) == ("distill", 55):
            raise Cancelled

    with pytest.raises(Cancelled):
        lrcore.compress(model, recipe, progress=stop)
    assert len(states()) == 1
    steps = []
    resumed = lrcore.compress(
        model, recipe, progress=lambda stage, done, _: steps.append((stage, done))
    )
    assert [done for stage, done in steps if stage == "distill"] == [*range(50, 61)]
    assert resumed.network.dtype == model.network.dtype
    with torch.inference_mode():
        assert torch.equal(resumed.network(TOKENS).logits, complete.network(TOKENS).logits)
    assert states() == []


def test_seeds_of_the_distillation_result_in_different_models(tiny_llama, story_file):
    """With sampling "first", the calibration windows are the same for all seeds."""
    recipe = requested(tiny_llama, story_file, sampling="first")
    model = lrcore.load(recipe.model)
    made = [lrcore.compress(model, recipe.with_(seed=seed)) for seed in (0, 1)]
    with torch.inference_mode():
        logits = [each.network(TOKENS).logits for each in made]
    assert not torch.equal(*logits)
    assert made[0].fingerprint != made[1].fingerprint


def test_a_distillation_after_another_refit_starts_again(tiny_llama, story_file, monkeypatch):
    recipe = requested(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    steps = []

    def stop(stage, done, total):
        if stage == "distill":
            steps.append(done)
            if done == 55:
                raise Cancelled

    for revision in (refit.REVISION, -1):
        monkeypatch.setattr(refit, "REVISION", revision)
        with pytest.raises(Cancelled):
            lrcore.compress(model, recipe, progress=stop)
    assert steps == [*range(56), *range(56)]


def test_a_cache_that_cannot_store_states_is_reported(tiny_llama, story_file, monkeypatch):
    recipe = requested(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    folder, make = cache_folder() / "distillations", Path.mkdir
    shutil.rmtree(folder, ignore_errors=True)

    def refuse(path, *arguments, **settings):
        if path == folder:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make(path, *arguments, **settings)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(lrcore.InputError, match="LRCORE_CACHE"):
        lrcore.compress(model, recipe)


def test_a_distilled_model_is_the_same_after_loading(tiny_llama, tmp_path, story_file):
    recipe = requested(tiny_llama, story_file, method="latentllm")
    model = lrcore.compress(lrcore.load(recipe.model), recipe)
    lrcore.save(model, tmp_path / "small")
    loaded = lrcore.load(str(tmp_path / "small"))
    with torch.inference_mode():
        assert torch.equal(loaded.network(TOKENS).logits, model.network(TOKENS).logits)


def test_a_distillation_in_inference_mode_is_the_same(tiny_llama, story_file):
    recipe = requested(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    expected = lrcore.compress(model, recipe)
    with torch.inference_mode():
        made = lrcore.compress(model, recipe)
        assert torch.equal(made.network(TOKENS).logits, expected.network(TOKENS).logits)


def test_an_offloaded_model_is_refused_before_any_work(tiny_llama, story_file):
    recipe = requested(tiny_llama, story_file, offload=True)
    model = lrcore.load(recipe.model, offload=True)
    stages = []
    with pytest.raises(lrcore.InputError, match=r"complete model in memory.*refit 'trained'"):
        lrcore.compress(model, recipe, progress=lambda stage, *_: stages.append(stage))
    assert stages == []


def test_plans_of_recipes_that_train_are_not_predicted(tiny_llama, story_file, monkeypatch):
    """The joint plans would be trained as well, which takes three times as long as the model."""
    recipe = requested(tiny_llama, story_file, policy="probed")
    model = lrcore.load(recipe.model)
    monkeypatch.setattr(joint_probes, "measure_interaction", lambda *_: pytest.fail("measured"))
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.choose_plan(model, factors, recipe)
    assert plan.summed_increase > 0
    assert plan.predicted is None
    assert lrcore.choose_plan(model, factors, recipe.with_(refit="on")).predicted is not None


def test_cells_of_a_sweep_depend_on_the_settings_of_the_distillation(
    tiny_llama, story_file, monkeypatch
):
    model = lrcore.load(str(tiny_llama))

    def keys(refit):
        recipe = requested(tiny_llama, story_file).with_(refit=refit)
        return [cell.key for cell in cells(model, lrcore.Sweep(recipe))]

    trained, distilled = keys("trained"), keys("distilled")
    monkeypatch.setattr(distill, "RATES_TIMES_WIDTH", (1.0,))
    assert keys("trained") == trained
    assert keys("distilled") != distilled


def test_products_are_in_bfloat16_only_if_its_rounding_is_small_beside_the_divergence(
    tiny_llama, story_file, monkeypatch
):
    monkeypatch.setattr(distill, "has_bfloat16_products", lambda device: True)
    recipe = requested(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    small = lrcore.compress(model, recipe.with_(refit="on")).network

    def dtype(network):
        return distill._dtype_of_products(network, model, TOKENS)

    assert dtype(small) == torch.bfloat16
    assert dtype(model.network) is None
    assert dtype(lrcore.load(recipe.model, dtype="bfloat16").network) is None
    monkeypatch.setattr(distill, "has_bfloat16_products", lambda device: False)
    assert dtype(small) is None


@pytest.fixture
def few_tokens_suffice(monkeypatch):
    """The default distillation of `default` has 40 steps of 64 tokens."""
    monkeypatch.setattr(distill, "DEFAULT_STEP_TOKENS", 64)
    monkeypatch.setattr(distill, "DEFAULT_PASSES", 10)
    monkeypatch.setattr(distill, "DEFAULT_TRIAL", 20)
    monkeypatch.setattr(distill, "SHARE_OF_TEXT", 1.0)


def default(folder, story_file, **changes):
    return requested(folder, story_file).with_(policy="probed", refit="auto", **changes)


def test_measured_ranks_are_distilled_briefly_by_default(
    tiny_llama, story_file, few_tokens_suffice
):
    recipe = default(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    made, before_it = (lrcore.compress(model, r) for r in (recipe, recipe.with_(refit="on")))
    tokens = distill.distillation_windows(model, recipe, distill.full_schedule())[::10].flatten(
        0, 1
    )
    assert divergence(model, made, tokens) < 0.9 * divergence(model, before_it, tokens)
    assert made.size == before_it.size
    assert made.fingerprint != before_it.fingerprint
    assert made.step(Compressed).calibration["distillation_steps"] == 40
    assert before_it.account.planned.predicted_perplexity is not None
    assert made.account.planned.predicted_perplexity is None
    assert distill.before_distillation(recipe, model) == recipe.with_(refit="on")


@pytest.mark.parametrize(("refit_setting", "measurements"), [("auto", 1), ("on", 2)])
def test_plans_that_only_a_prediction_needs_are_not_compressed(
    tiny_llama, story_file, few_tokens_suffice, refit_setting, measurements
):
    # a seed without measurements in the cache of the tests
    recipe = default(tiny_llama, story_file, seed=5).with_(refit=refit_setting)
    ended = []

    def record(stage, done, total):
        if done == total:
            ended.append(stage)

    lrcore.compress(lrcore.load(recipe.model), recipe, progress=record)
    assert ended.count("probe") == measurements  # of slots, and of complete plans


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "uniform"},
        {"method": "svd_llm"},
        {"refit": "on"},
        {"refit": "off"},
        {"budget": "bytes"},
        {"samples": 4},  # 20 steps
        {"offload": True},
    ],
    ids=str,
)
def test_other_recipes_are_not_distilled_by_default(
    tiny_llama, story_file, few_tokens_suffice, changes
):
    recipe = default(tiny_llama, story_file).with_(**changes)
    model = lrcore.load(recipe.model, offload=recipe.offload)
    assert distill.schedule_of(recipe, model) is None
    assert distill.before_distillation(recipe, model) == recipe


def test_short_texts_are_read_once_at_most(tiny_llama, story_file, few_tokens_suffice):
    recipe = default(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    steps = {tokens: distill.schedule_of(recipe, model, tokens) for tokens in (1000, 1600, 10000)}
    assert steps[1000] is None
    assert steps[1600].steps == 25
    assert steps[10000] == distill.schedule_of(recipe, model)


def test_a_model_that_is_close_to_the_dense_model_is_left_as_it_is(
    tiny_llama, story_file, few_tokens_suffice, monkeypatch
):
    recipe = default(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    monkeypatch.setattr(distill, "LEAST_DIVERGENCE", 1e3)
    made, before_it = (lrcore.compress(model, r) for r in (recipe, recipe.with_(refit="on")))
    with torch.inference_mode():
        assert torch.equal(made.network(TOKENS).logits, before_it.network(TOKENS).logits)


def test_large_models_are_not_distilled_by_default(
    tiny_llama, story_file, few_tokens_suffice, monkeypatch
):
    recipe = default(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    assert distill.schedule_of(recipe, model) is not None
    monkeypatch.setattr(distill, "LARGEST", model.size.parameters - 1)
    assert distill.schedule_of(recipe, model) is None


def test_a_distillation_that_diverges_leaves_the_model_of_the_refit(
    tiny_llama, story_file, few_tokens_suffice, monkeypatch
):
    monkeypatch.setattr(distill, "DEFAULT_RATES_TIMES_WIDTH", (1e30,))
    recipe = default(tiny_llama, story_file)
    model = lrcore.load(recipe.model)
    made, before_it = (lrcore.compress(model, r) for r in (recipe, recipe.with_(refit="on")))
    with torch.inference_mode():
        assert torch.equal(made.network(TOKENS).logits, before_it.network(TOKENS).logits)
    assert made.step(Compressed).calibration["distillation_steps"] == 0
    assert made.account.planned.predicted_perplexity is not None


def test_by_default_a_rate_that_raises_the_divergence_is_replaced_by_a_lower_one(
    tiny_llama, story_file, few_tokens_suffice, monkeypatch
):
    monkeypatch.setattr(distill, "DEFAULT_RATES_TIMES_WIDTH", (1e3, 0.64))
    recipe = default(tiny_llama, story_file)
    made = lrcore.compress(lrcore.load(recipe.model), recipe)
    assert made.step(Compressed).calibration["distillation_steps"] > 0


def small_and_dense(folder, story_file):
    recipe = requested(folder, story_file)
    model = lrcore.load(recipe.model)
    return lrcore.compress(model, recipe.with_(refit="on")), model, recipe


def distilled(small, model, recipe):
    """Return the divergence on other windows before and after a distillation."""
    schedule = distill.schedule_of(recipe, model)
    windows = distill.distillation_windows(model, recipe, schedule)
    before = divergence(model, small, windows[0])
    distill.distill(small.network, model, windows, schedule, "key", silent)
    return before, divergence(model, small, windows[0])


def test_rates_at_which_a_trial_fails_are_not_used(tiny_llama, story_file, monkeypatch):
    monkeypatch.setattr(distill, "RATES_TIMES_WIDTH", (1e30, 1e3, 0.64))
    before, after = distilled(*small_and_dense(tiny_llama, story_file))
    assert after < 0.9 * before


def test_a_model_whose_divergence_does_not_fall_is_unchanged(tiny_llama, story_file, monkeypatch):
    monkeypatch.setattr(distill, "RATES_TIMES_WIDTH", (1e30, 1e3))
    before, after = distilled(*small_and_dense(tiny_llama, story_file))
    assert after == before
    monkeypatch.setattr(distill._Distillation, "_succeeds", lambda self, rate: rate == 1e3)
    before, after = distilled(*small_and_dense(tiny_llama, story_file))
    assert after == before
