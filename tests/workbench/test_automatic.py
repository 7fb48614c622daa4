"""The jobs behind the two buttons under the size: choice of method, search for a size, answers."""

import math
import time

import gradio as gr
import pytest
from page_server import PATIENCE

import lrcore
from workbench.jobs import KINDS, ShrinkJob, SmallestJob, automatic
from workbench.jobs.ratio_search import MOST_TRIES, guess, interpolated, largest_ratio
from workbench.state.job import read_job
from workbench.state.job_record import ENDED, JobRecord
from workbench.state.store import Store
from workbench.tabs.compare import answers, comparison_table, metrics
from workbench.views import job_markup
from workbench.widgets import polling
from workbench.widgets.form import input_values


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4)


@pytest.fixture(scope="module")
def evaluation(recipe):
    return lrcore.EvaluationSettings(recipe.data, 4, 16).held_out_from([recipe.data])


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, KINDS, lambda: "a browser")


def ended(store, job):
    record = store.jobs.submit(job)
    end = time.monotonic() + PATIENCE
    while record.state not in ENDED:
        assert time.monotonic() < end, record.log
        time.sleep(0.02)
    return record


def test_the_method_of_the_lowest_perplexity_is_used_and_its_answers_are_opened_once(
    store, recipe, evaluation, monkeypatch
):
    measured = {"a3": 9.0, "modegpt": 7.0, "fused": 8.0}
    sample = automatic.sample_perplexity
    requested = []

    def perplexity(store, reporter, request, dense):
        requested.append((request.recipe.method, request.recipe.policy))
        assert math.isfinite(sample(store, reporter, request, dense))
        return measured[request.recipe.method]

    monkeypatch.setattr(automatic, "sample_perplexity", perplexity)
    record = ended(store, ShrinkJob(recipe, evaluation))
    assert record.state == "done", record.error
    assert requested == [("a3", "uniform"), *automatic.CANDIDATES]
    (run,) = store.runs.all()
    assert (run.recipe.method, run.recipe.ratio) == ("modegpt", recipe.ratio)
    assert run.evaluations[0]["perplexity"]
    assert store.runs.results(run.id, "speed")

    assert polling.finished_job(store, "another browser") is None
    assert polling.finished_job(store, "a browser") == record.id
    values = [record.id, "Once", [4, 0, 1, 0], *input_values(recipe)]
    (chosen, tabs, *_), *_, last = answers.answer_finished(store, *values)
    assert chosen["value"] == [run.id]
    assert tabs.selected == "Compare"
    assert len(last[3].texts) == 2
    assert polling.finished_job(store, "a browser") is None
    (repeated,) = answers.answer_finished(store, *values)
    assert repeated == (gr.skip(),) * 4


def test_the_bar_of_a_compression_to_a_size_goes_through_its_phases(
    store, recipe, evaluation, monkeypatch
):
    drawn = []

    def draw(record, *arguments):
        progress(record, *arguments)
        drawn.append(job_markup.progress(record))

    progress = JobRecord.progress
    monkeypatch.setattr(JobRecord, "progress", draw)
    record = ended(store, ShrinkJob(recipe.with_(method="svd"), evaluation))
    assert record.state == "done", record.error
    reached = [html.count("width:100.0%") for html in drawn]
    phases = [int(html.split("Phase ")[1][0]) for html in drawn]
    assert phases == sorted(phases)
    assert {1, 3, 4} <= {*phases}
    assert all(count >= phase - 1 for count, phase in zip(reached, phases, strict=True))
    assert reached[-1] == 4


def test_a_choice_of_the_form_is_used_as_it_is(store, recipe, evaluation, monkeypatch):
    monkeypatch.setattr(automatic, "sample_perplexity", None)
    record = ended(store, ShrinkJob(recipe.with_(method="svd"), evaluation))
    assert record.state == "done", record.error
    assert store.runs.all()[0].recipe.method == "svd"


def test_a_model_that_takes_long_to_measure_gets_the_default(
    store, recipe, evaluation, monkeypatch
):
    monkeypatch.setattr("workbench.state.live.MAX_PARAMETER_TOKENS", 0)
    record = ended(store, ShrinkJob(recipe, evaluation))
    assert record.state == "done", record.error
    assert store.runs.all()[0].recipe.policy == recipe.policy


def test_a_canceled_job_leaves_no_run(store, recipe, evaluation, monkeypatch):
    measure = automatic.measure_speeds

    def cancel(store, dense, runs, reporter):
        reporter.canceled.set()
        measure(store, dense, runs, reporter)

    monkeypatch.setattr(automatic, "measure_speeds", cancel)
    assert ended(store, ShrinkJob(recipe.with_(method="svd"), evaluation)).state == "cancelled"
    assert store.runs.all() == []
    assert polling.finished_job(store, "a browser") is None


def test_the_smallest_size_within_the_increase_is_saved(store, recipe, evaluation):
    job = SmallestJob(recipe.with_(method="svd"), evaluation, increase=0.05)
    record = ended(store, job)
    assert record.state == "done", record.error
    (run,) = store.runs.all()
    result = run.evaluations[0]
    assert result["perplexity"] <= 1.05 * result["dense_perplexity"] * (1 + 1e-6)
    tried = [line for line in record.log if "removed:" in line]
    assert 1 <= len(tried) <= MOST_TRIES
    assert f"{run.recipe.ratio:.1%} removed" in " ".join(tried)


def test_a_search_without_a_size_says_so(store, recipe, evaluation):
    record = ended(store, SmallestJob(recipe.with_(method="svd"), evaluation, increase=-0.9))
    assert record.state == "failed"
    assert "No size within" in record.error
    assert store.runs.all() == []


def test_a_speed_is_compared_with_the_dense_model_in_the_same_measurement(store, recipe):
    small = lrcore.compress(store.dense(recipe), recipe)
    for name, dense, decode in (("idle", 100.0, 110.0), ("busy", 10.0, 12.0)):
        run = store.save_run(name, recipe, small)
        speeds = {"dense": dense, "small": decode}
        result = {key: {"decode": speed, "prefill": speed} for key, speed in speeds.items()}
        store.runs.add_result(run.id, "speed", {"device": "cpu"}, result)
    runs = store.runs.all()
    headline = comparison_table.headline(metrics.tables(runs, None, metrics.results(store, runs)))
    assert "+10.0% vs dense" in headline
    assert "+20.0% vs dense" in headline


@pytest.mark.parametrize("kind", [ShrinkJob, SmallestJob])
def test_a_restart_reads_the_jobs(kind, recipe, evaluation):
    job = kind(recipe, evaluation)
    assert read_job(job.to_dict(), KINDS) == job


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_a_search_comes_close_in_four_tries_although_the_prediction_is_off(factor):
    tried = []

    def measure(ratio):
        tried.append(ratio)
        return 0.3 * factor * ratio**2

    ratio = largest_ratio(measure, lambda ratio: 0.3 * ratio**2, limit=0.02)
    exact = math.sqrt(0.02 / (0.3 * factor))
    assert len(tried) <= MOST_TRIES
    assert exact - 0.05 <= ratio <= exact


def test_a_search_without_a_prediction_narrows_the_interval_and_may_find_nothing():
    assert 0.15 <= largest_ratio(lambda ratio: ratio, interpolated((), 1.0), 0.25) <= 0.25
    assert largest_ratio(lambda _: math.inf, interpolated((), 1.0), 0.25) is None


def test_a_guess_stays_between_the_ends():
    assert 0.1 < guess(lambda _: 0.0, 1.0, 0.1, 0.2) < 0.2
    assert 0.1 < guess(lambda _: 9.0, 1.0, 0.1, 0.11) < 0.11
