"""The store without page and Gradio: caching, plans, jobs and the survey."""

import os
import threading
import time

import fresh
import pytest
from page_server import ROOT
from tiny_models import family_folder

import lrcore
from lrcore.system.errors import Cancelled
from workbench.jobs import KINDS, AnalyzeJob, CompressJob, SurveyJob, start_analysis
from workbench.state import live
from workbench.state.job_record import ENDED
from workbench.state.store import Store
from workbench.state.survey import measurements, survey
from workbench.views import memory


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs", KINDS)


@pytest.fixture
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)


def ended(record, seconds=60):
    end = time.monotonic() + seconds
    while record.state not in ENDED:
        assert time.monotonic() < end, record
        time.sleep(0.02)
    return record


def test_store_and_jobs_need_no_gradio():
    code = (
        "import sys, workbench.state.store, workbench.jobs, workbench.state.survey\n"
        "import workbench.views.memory\n"
        "assert 'gradio' not in sys.modules"
    )
    done = fresh.project().run(["-c", code], os.environ, ROOT)
    assert done.returncode == 0, done.stderr


def test_a_plan_is_allocated_once_and_needs_factors(store, recipe, monkeypatch):
    allocated, allocate = [], lrcore.allocate
    monkeypatch.setattr(
        lrcore,
        "allocate",
        lambda *arguments: allocated.append(arguments[1]) or allocate(*arguments),
    )
    assert store.plan(recipe) is None
    assert store.plan(None) is None
    factors = store.factors(recipe)
    for variant in (recipe, recipe.with_(policy="softmax"), recipe.with_(ratio=0.4)):
        plan = store.plan(variant)
        assert plan is store.plan(variant)
        assert plan.ranks == allocate(factors, variant).ranks
    by_hand = recipe.with_(policy="softmax", rank_overrides={"0.mlp": 3})
    assert store.plan(by_hand).ranks[0, "mlp"] == 3
    assert store.policy_plan(by_hand) is store.plan(recipe.with_(policy="softmax"))
    assert store.uniform_plan(by_hand) is store.plan(recipe)
    assert len(allocated) == 4


def test_a_plan_for_an_unsupported_target_is_an_error(store, recipe, tiny_opt):
    target_recipe = recipe.with_(model=str(tiny_opt), target="llama.cpp", method="a3")
    assert store.plan(target_recipe) is None
    store.factors(target_recipe)
    for _ in range(2):
        with pytest.raises(lrcore.InputError, match="family is opt"):
            store.plan(target_recipe)
    assert store.plan(target_recipe.with_(target="transformers")) is not None


def test_an_impossible_budget_is_an_error_each_time(store, recipe):
    wrong = recipe.with_(rank_overrides={"7.mlp": 3})
    store.factors(recipe)
    for _ in range(2):
        with pytest.raises(lrcore.InputError, match="layers 0 to 2"):
            store.plan(wrong)
        with pytest.raises(lrcore.InputError, match="layers 0 to 2"):
            store.live_request(wrong, "browser")


def test_an_analysis_is_queued_once(store, recipe):
    record = ended(start_analysis(store, recipe))
    assert (record.state, record.is_stored) == ("done", False)
    assert store.peek_analysis(recipe) is not None
    assert store.plan(recipe) is not None
    assert start_analysis(store, recipe) is None
    assert store.methods_factorized(recipe)[0] == "a3"


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_refits_that_the_architecture_does_not_support_cost_nothing(
    store, recipe, family, tiny_llama, tmp_path, monkeypatch
):
    folder = family_folder(family, tiny_llama, tmp_path / family)
    fused = recipe.with_(model=str(folder), method="fused")
    factors, model = store.factors(fused), store.dense(fused)
    monkeypatch.setattr(
        live, "MAX_PARAMETER_TOKENS", factors.shape.parameters * live.WINDOWS * live.LENGTH
    )
    assert not store.has_refit(fused)
    assert store.live_request(fused, "browser") is not None  # only the sample is evaluated
    assert memory.needed(model, fused, 1.0, None) == 10**6  # no hidden states are stored
    on = fused.with_(refit="on")
    with pytest.raises(lrcore.InputError, match="a refit does not support"):
        memory.needed(model, on, 1.0, None)
    request = store.live_request(on, "browser")
    store.live.request(request)
    while store.live.peek(request.key) is None:
        time.sleep(0.02)
    assert "a refit does not support" in store.live.peek(request.key).error


def test_the_cost_of_a_refit_prevents_a_live_measurement(store, recipe, monkeypatch):
    fused = recipe.with_(method="fused")
    factors = store.factors(fused)
    monkeypatch.setattr(
        live, "MAX_PARAMETER_TOKENS", factors.shape.parameters * live.WINDOWS * live.LENGTH
    )
    assert store.has_refit(fused)
    assert store.live_request(fused, "browser") is None
    assert store.live_request(fused.with_(refit="off"), "browser") is not None


def test_a_run_of_a_job_survives_a_restart(store, recipe, tmp_path):
    settings = lrcore.EvaluationSettings(recipe.data, samples=2, seq_len=32)
    record = ended(store.jobs.submit(CompressJob(recipe, "mine", settings)))
    assert record.state == "done", record.error
    reopened = Store(tmp_path / "runs", KINDS)
    (run,) = reopened.runs_by_id([*record.result, "gone"])
    assert (run.name, run.recipe) == ("mine", recipe)
    assert run.evaluations[0]["same_base"]
    assert reopened.jobs.get(record.id).job == CompressJob(recipe, "mine", settings)
    reopened.delete(run.id)
    assert reopened.runs_by_id(record.result) == []


def test_a_job_canceled_during_its_evaluation_saves_no_run(store, recipe, monkeypatch):
    class Stopped:
        id, part, result, outcome, curve = "job", "", [], "", []

        def add_log(self, line):
            pass

        def progress(self, stage, done, total):
            if stage.startswith("evaluate") and store.runs.all():
                raise Cancelled(stage)

    settings = lrcore.EvaluationSettings(recipe.data, samples=2, seq_len=32)
    with pytest.raises(Cancelled):
        CompressJob(recipe, "mine", settings).run(store, Stopped())
    assert store.runs.all() == []


def test_the_survey_has_each_method_and_policy_at_one_budget(store, recipe, monkeypatch):
    two = [row for row in lrcore.list_methods() if row["name"] in ("a3", "svd")]
    monkeypatch.setattr(lrcore, "list_methods", lambda: two)
    nothing = survey(store, recipe)
    assert (nothing.shares, nothing.missing) == ({}, ("svd", "a3"))
    assert ended(store.jobs.submit(SurveyJob(recipe))).state == "done"
    everything = survey(store, recipe)
    assert everything.missing == ()
    assert {"uniform", "softmax"} <= everything.shares["svd"].keys()
    assert len(everything.shares["svd"]["uniform"]) == 3
    figures = measurements(store, recipe)
    assert figures == sorted(figures)
    assert [figure.is_displayed for figure in figures].count(True) == 1
    # policies with the same ranks share a row
    policy = recipe.policy
    assert sorted((figure.method, figure.policy) for figure in figures) == [
        ("a3", policy),
        ("svd", policy),
    ]
    assert measurements(store, recipe.with_(rank_overrides={"0.mlp": 3})) == []


def test_an_outdated_analysis_is_canceled_unless_a_second_browser_needs_it(tmp_path, recipe):
    store = Store(tmp_path / "runs", KINDS)
    gate, jobs = threading.Event(), store.jobs
    jobs._work = lambda record: [str(gate.wait(60))]
    first = start_analysis(store, recipe, "one")
    probed = start_analysis(store, recipe.with_(policy="probed"), "one")
    assert first.canceled.is_set()
    assert start_analysis(store, recipe.with_(policy="probed"), "two") is probed
    fisher = start_analysis(store, recipe.with_(policy="fisher"), "one")
    assert not probed.canceled.is_set()  # the second browser waits for it
    start_analysis(store, recipe.with_(policy="probed", ratio=0.3), "one")
    assert fisher.canceled.is_set()
    assert not probed.canceled.is_set()
    gate.set()


def test_an_analysis_is_a_prerequisite_of_runs_with_its_factors(recipe):
    analysis = AnalyzeJob(recipe)
    assert analysis.is_prerequisite_of(CompressJob(recipe.with_(ratio=0.35)))
    assert not analysis.is_prerequisite_of(CompressJob(recipe.with_(method="svd")))
    assert not analysis.is_prerequisite_of(SurveyJob(recipe.with_(seed=9)))


def test_oversized_calibrations_are_refused_by_the_recipe():
    with pytest.raises(lrcore.InputError, match="the maximum is 134,217,728"):
        lrcore.Recipe(samples=10**9)
