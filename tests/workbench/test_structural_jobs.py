"""Jobs that prune layers, slice the hidden size or share bases, and the runs that they save."""

import json
import time
from pathlib import Path

import pytest
import torch
from page_server import PATIENCE
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.compression.pipeline.model_bounds import plan_bounds
from lrcore.compression.steps.share import shared_size
from lrcore.compression.steps.slicing.slicing import sliced_size
from lrcore.evaluation.contributions import contributions
from lrcore.evaluation.local_errors import local_errors
from lrcore.recipes.history import Healed, LayersDropped, standard_fit_of
from lrcore.system.errors import Cancelled
from workbench import words
from workbench.base import numbers
from workbench.figures.allocation import influence as influence_figure
from workbench.jobs import (
    CompressJob,
    DetailsJob,
    ExportJob,
    HealJob,
    PruneLayersJob,
    QuantizeJob,
    ShareJob,
    SliceJob,
)
from workbench.state import sweep_runs
from workbench.state.job_record import ENDED, JobRecord
from workbench.state.store import Store
from workbench.tabs.compare import chart, chosen_runs, comparison_table, metrics
from workbench.tabs.experiments import pruning, sharing
from workbench.tabs.runs.details import ranks_of
from workbench.tabs.runs.listing import COLUMNS
from workbench.views import export, preview, run_text
from workbench.widgets.form import input_values


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        policy="waterfill",
        ratio=0.4,
    )


def run_job(store, job):
    record, end = store.jobs.submit(job), time.monotonic() + PATIENCE
    while record.state not in ENDED:
        assert time.monotonic() < end, record
        time.sleep(0.02)
    return record


def prune_job(recipe, layers: int = 1, by: str = "influence", name: str = "") -> PruneLayersJob:
    return PruneLayersJob(recipe, layers, by, name, evaluation_settings(recipe))


def evaluation_settings(recipe) -> lrcore.EvaluationSettings:
    return lrcore.EvaluationSettings(recipe.data, samples=2, seq_len=32)


@pytest.mark.parametrize("by", ["influence", "loss"])
def test_a_pruned_run_is_saved_and_evaluated_and_survives_a_restart(store, recipe, by, tmp_path):
    job = run_job(store, prune_job(recipe, 2, by))
    assert job.state == "done", job.error
    expected = lrcore.prune_layers(lrcore.load(recipe.model), recipe, 2, by)
    (run,) = Store(tmp_path / "runs").runs.all()  # as after a restart
    assert run.id == job.result[0]
    assert run.name == f"without 2 of 3 layers, {by} · {Path(recipe.model).name}"
    assert run.step(LayersDropped) == expected.step(LayersDropped)
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        assert torch.equal(store.run_model(run).network(ids).logits, expected.network(ids).logits)
    got_result = lrcore.evaluate(expected, recipe.data, samples=2, seq_len=32)
    assert run.evaluations[0]["perplexity"] == pytest.approx(got_result.perplexity, rel=1e-6)
    assert run.evaluations[0]["same_base"]
    assert [COLUMNS[name].value(run) for name in ("method", "policy")] == ["prune-layers", by]
    assert "pruned in this order" in run_text.pruned(run.history)
    assert any("pruned in this order" in line for line in job.log)


def test_details_of_a_run_are_rows_of_the_comparison(store, recipe):
    recipe = recipe.with_(method="a3", policy="uniform")
    (small,) = run_job(store, CompressJob(recipe, evaluation=evaluation_settings(recipe))).result
    (gone,) = run_job(store, prune_job(recipe, name="without details")).result
    job = run_job(store, DetailsJob((small, gone), evaluation_settings(recipe), items=4))
    assert any(line.endswith(f"details of {store.runs.get(gone).name}") for line in job.log)
    runs = [store.runs.get(small), store.runs.get(gone)]
    (table,) = metrics.tables(runs, None, metrics.results(store, runs))
    first, second = table.runs
    result = contributions(
        store.dense(recipe), store.run_model(runs[0]), evaluation_settings(recipe)
    )
    alone = {row["parts"]: row["delta_nll"] for row in result.rows}
    assert first.values["loss_mlp"] == pytest.approx(alone["mlp"], abs=1e-6)
    errors = local_errors(
        store.dense(recipe), store.run_model(runs[0]), evaluation_settings(recipe)
    )
    layers = [layer_errors["residual"] for layer_errors in errors.errors]
    assert first.values["error_residual"] == pytest.approx(sum(layers) / len(layers), rel=1e-4)
    score = lrcore.score_choices(store.dense(recipe), "stories", 4)
    assert (table.dense.values["accuracy"], table.dense.errors["accuracy"]) == (
        score.accuracy,
        score.error,
    )
    assert "loss_mlp" not in second.values  # fewer layers than the dense model
    assert "accuracy" in second.values
    assert "Loss from mlp alone" in comparison_table.as_markdown([table])


def test_errors_of_modegpt_are_compared_with_their_bounds(store, recipe):
    recipe = recipe.with_(method="modegpt", policy="softmax", budget="params", ratio=0.3)
    (small,) = run_job(store, CompressJob(recipe, evaluation=evaluation_settings(recipe))).result
    run_job(store, DetailsJob((small,), evaluation_settings(recipe), items=2))
    run = store.runs.get(small)
    (table,) = metrics.tables([run], None, metrics.results(store, [run]))
    factors = lrcore.prepare(store.dense(recipe), recipe)
    plan = lrcore.allocate(factors, recipe)
    assert plan.slot_ranks == store.run_model(run).ranks
    rows = [row for row in plan_bounds(store.dense(recipe), factors, plan) if row["bound"]]
    shares = [row["error"] / row["bound"] for row in rows if row["component"] == "mlp"]
    (figures,) = table.runs
    assert figures.values["bound_mlp"] == pytest.approx(sum(shares) / len(shares))
    assert 0 < figures.values["bound_mlp"] <= 1
    assert "Error of mlp, fraction of its bound" in comparison_table.as_markdown([table])


def test_a_pruned_run_is_compared_with_a_compressed_run(store, recipe):
    (small,) = run_job(store, CompressJob(recipe, evaluation=evaluation_settings(recipe))).result
    (gone,) = run_job(store, prune_job(recipe, name="short one")).result
    runs = [store.runs.get(small), store.runs.get(gone)]
    table_html = comparison_table.html(metrics.tables(runs, None, metrics.Results()))
    assert all(f"{run.evaluations[0]['perplexity']:.4f}" in table_html for run in runs)
    points = chart.points(
        runs, chosen_runs.protocol_of(runs[0], runs[0].evaluations[0]), "megabytes", {}
    )
    assert [point.method for point in points] == ["dense", "care", "prune-layers"]
    table = {row[0]: row[1:] for row in chosen_runs.all_differences(runs)}
    assert table["method"] == ["care", "prune-layers"]
    assert table["policy"] == ["waterfill", "influence"]
    assert table["ratio"] == ["0.4", "–"]
    assert "data" not in table
    assert len([name for name in table if "gone" in name]) == 1
    assert sweep_runs.find_run(runs[1:], recipe) is None  # a sweep compresses the model itself
    assert "pruned" in run_text.pruned(runs[1].history)
    assert run_text.pruned(runs[0].history) == ""


def test_runs_of_equal_names_are_numbered(store, recipe):
    names = [
        store.runs.get(*run_job(store, job).result).name
        for job in (prune_job(recipe, name="short one"), prune_job(recipe, name="short one"))
    ]
    assert names == ["short one", "short one (2)"]


def test_a_pruned_run_is_exported_without_code_and_its_report_has_no_ranks(store, recipe):
    (made,) = run_job(store, prune_job(recipe, name="short one")).result
    run = store.runs.get(made)
    assert (
        run_text.standard_fit(standard_fit_of(run.history), not run.ranks_csv)
        == words.compare_and_runs.STANDARD_SHORT
    )
    job = run_job(store, ExportJob(made, "transformers-stock"))
    assert job.state == "done", job.error
    folder = run.folder / "export-stock"
    assert not list(folder.glob("*.py"))
    card = (folder / "README.md").read_text()
    assert f"Of 3 decoder layers, the layers {run.step(LayersDropped).gone[0]} (" in card
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        native = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        assert torch.equal(native, store.run_model(run).network(ids).logits)
    assert words.compare_and_runs.NO_RANKS in export.report_html(run)
    with pytest.raises(lrcore.InputError, match="no ranks"):
        ranks_of(run)
    quantized = run_job(store, QuantizeJob(made, 8))
    assert store.runs.get(quantized.result[0]).method == "prune-layers"
    healed = run_job(store, HealJob(made, lrcore.Healing(steps=1, samples=2, seq_len=16)))
    assert healed.state == "done", healed.error
    assert store.runs.get(healed.result[0]).step(Healed).train == "all"


@pytest.mark.parametrize("rotations", ["block", "one"])
def test_a_sliced_run_has_the_previewed_size_and_is_compared_and_exported(store, recipe, rotations):
    model, requested = lrcore.load(recipe.model), recipe.with_(ratio=0.3, rank_multiple=4)
    message = sliced_size(model, 0.3, rotations, 4)
    job = run_job(store, SliceJob(requested, rotations, evaluation=evaluation_settings(recipe)))
    assert job.state == "done", job.error
    (run,) = store.runs.all()
    assert run.name == (
        f"sliced to {message['width']} of 32, {rotations} · {Path(recipe.model).name}"
    )
    assert (run.method, run.policy) == ("slice", rotations)
    assert run.account.to_dict()["parameters"] == message["parameters"]
    expected = lrcore.slice_hidden(model, requested, rotations, 4)
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        assert torch.equal(store.run_model(run).network(ids).logits, expected.network(ids).logits)
    assert f"{run.evaluations[0]['perplexity']:.4f}" in comparison_table.html(
        metrics.tables([run], None, metrics.Results())
    )
    sentence = preview.slicing(message, model.size)
    assert f"Hidden size: 32 to {message['width']}" in sentence
    assert (words.compress.SLICE_GROWS in sentence) == (
        message["parameters"] > model.size.parameters
    )
    assert run_text.sliced(run.history).startswith(f"Hidden size: 32 to {message['width']}")
    assert ("matrices between" in run_text.sliced(run.history)) == (rotations == "block")
    assert any("Hidden size:" in line for line in job.log)
    assert sweep_runs.find_run([run], requested) is None
    (gone,) = run_job(store, prune_job(recipe)).result
    table = {row[0]: row[1:] for row in chosen_runs.all_differences([run, store.runs.get(gone)])}
    assert table["method"] == ["slice", "prune-layers"]
    assert table["sliced: width"] == [str(message["width"]), "–"]
    assert run_job(store, ExportJob(run.id, "transformers")).state == "done"
    fit, stock = run.history[-1].stock, run_job(store, ExportJob(run.id, "transformers-stock"))
    assert fit.qualifies == (rotations == "one") == (stock.state == "done")
    assert fit.qualifies or fit.reasons[0] in stock.error


def test_a_run_with_shared_bases_has_the_previewed_size_and_is_evaluated(store, recipe):
    model, requested = lrcore.load(recipe.model), recipe.with_(ratio=0.3)
    expected_size = shared_size(model, 0.3, 2)
    (description,) = sharing.describe(store, [0.3, 2, ""], *input_values(recipe))
    assert words.spectra.NOT_ANALYZED in description  # the model is not loaded
    job = run_job(store, ShareJob(requested, 2, evaluation=evaluation_settings(recipe)))
    assert job.state == "done", job.error
    (run,) = store.runs.all()
    assert run.name == f"shared by 2 30% · {Path(recipe.model).name}"
    assert (run.method, run.policy) == ("share", "2")
    assert store.run_model(run).size.decoder_linear == expected_size
    (description,) = sharing.describe(store, [0.3, 2, ""], *input_values(recipe))
    assert f"to {numbers.count(expected_size)} (" in description
    assert any("2 neighboring layers share a basis" in line for line in job.log)
    assert run.evaluations[0]["perplexity"] > 0
    with pytest.raises(lrcore.InputError, match="no ranks"):
        ranks_of(run)
    assert "at least 1" in sharing.describe(store, [0.3, 0, ""], *input_values(recipe))[0]
    assert "less than one rank" in sharing.describe(store, [0.985, 2, ""], *input_values(recipe))[0]


def test_an_impossible_pruning_fails_with_a_message_of_one_line(store, recipe):
    for layers, reason in ((3, "keep at least 1"), (0, "at least 1")):
        job = run_job(store, prune_job(recipe, layers))
        assert job.state == "failed"
        assert reason in job.error
        assert "\n" not in job.error
    job = run_job(store, prune_job(recipe.with_(offload=True)))
    assert "without offload" in job.error
    assert store.runs.all() == []


@pytest.mark.parametrize("by", ["influence", "loss"])
def test_pruning_stops_at_the_next_step_after_a_cancellation(store, recipe, by):
    store.dense(recipe)
    job = JobRecord(prune_job(recipe, 2, by))

    def progress(stage: str, done: int, total: int) -> None:
        seen.append((stage, done))
        if len(seen) == 4:
            raise Cancelled

    seen, job.progress = [], progress
    with pytest.raises(Cancelled):
        job.job.run(store, job)
    assert seen[2:] == [(by, 0), (by, 1)]
    assert store.runs.all() == []


def test_the_preview_of_pruning_matches_the_pruned_model(store, recipe):
    model = store.dense(recipe)
    influence = store.calibration(recipe).block_influence
    for layers in (1, 2):
        gone = pruning.lowest(influence, layers)
        summary = lrcore.drop_layers(model, gone, "influence", recipe.seq_len).account.to_dict()
        assert summary == lrcore.prune_layers(model, recipe, layers).account.to_dict()
        words = preview.pruning(influence, gone, "influence", summary)
        assert numbers.count(summary["parameters"]) in words
        assert words.startswith("Layer")
        traces = json.loads(influence_figure(influence, gone))["data"]
        assert {trace["name"]: trace["x"] for trace in traces} == {
            "stay": [i for i in range(3) if i not in gone],
            "would be dropped": sorted(gone),
        }
        assert {
            x: y for trace in traces for x, y in zip(trace["x"], trace["y"], strict=True)
        } == dict(enumerate(influence))
    assert pruning.lowest(influence, 9) == pruning.lowest(
        influence, 2
    )  # the slider still has the range of a larger model
    assert "The job selects" in preview.pruning(influence, gone, "loss", summary)
    (all_stay,) = json.loads(influence_figure(influence, []))["data"]
    assert not all_stay["showlegend"]


def test_a_pruned_model_and_a_plan_have_the_same_dense_account(recipe):
    model = lrcore.load(recipe.model)
    summary = lrcore.prune_layers(model, recipe, 1).account.to_dict()
    plan = lrcore.allocate(lrcore.prepare(model, recipe), recipe).summary()
    for name in (
        "parameters",
        "decoder_parameters",
        "megabytes",
        "kv_bytes_per_token",
        "flops_per_token",
    ):
        assert summary[f"dense_{name}"] == plan[f"dense_{name}"]
        assert summary[name] < summary[f"dense_{name}"]
    assert summary["achieved"] == pytest.approx(1 / 3)
    assert summary["removed_kv"] == pytest.approx(1 / 3)
