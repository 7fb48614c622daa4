"""Policies that need measurements of the model, which start on request."""

import json
import threading
import time
from dataclasses import replace
from itertools import product

import gradio as gr
import pytest
from page_server import PATIENCE
from page_values import BROWSER

import lrcore
from lrcore.compression.pipeline import choose_plan
from lrcore.methods import METHODS
from lrcore.ranks.evidence import AgainstUniform
from lrcore.recipes.history import Compressed
from workbench import words
from workbench.base import numbers
from workbench.jobs import KINDS, AnalyzeJob, start_analysis
from workbench.state import store as store_module
from workbench.state.keys import analysis_recipe, factor_key, model_key, probed_recipe
from workbench.state.sensitivity import ProbedSlot, agreement, probed_slots
from workbench.state.store import Store
from workbench.tabs import spectra
from workbench.tabs.allocation import handlers, plan_figures
from workbench.views import markup
from workbench.views.term_markup import marked
from workbench.widgets import polling
from workbench.widgets.form import input_values


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, recipe):
    """Return a store with analysis and factors of a recipe; its jobs wait until canceled."""
    store, gate = Store(tmp_path_factory.mktemp("runs"), KINDS), threading.Event()

    def until_cancelled(record):
        while not (gate.is_set() or record.canceled.is_set()):
            gate.wait(0.01)
        return []

    store.jobs._work = until_cancelled
    with pytest.MonkeyPatch.context() as patch:  # measurements of other tests are hidden
        patch.setenv("LRCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        store.objects.put("pace", model_key(recipe), 1e-9)  # the shortest estimate
        AnalyzeJob(recipe).run(store, Quiet())
        yield store
    gate.set()


@pytest.fixture
def store(prepared):
    """Return the store after canceling jobs of earlier tests."""
    for record in prepared.jobs.waiting():
        prepared.jobs.cancel(record.id)
    wait_until(lambda: not prepared.jobs.waiting())
    return prepared


class Quiet:
    part = ""

    def progress(self, *_):
        pass


def draw_bars(store, recipe):
    widgets = handlers.draw_plan(store, BROWSER, *input_values(recipe))
    return json.loads(widgets.bars)["data"][1], widgets.summary, widgets.plan_key


@pytest.mark.parametrize("policy", ["probed", "fisher", "mix"])
def test_selecting_a_policy_queues_no_job_and_shows_the_estimated_time(store, recipe, policy):
    draw_bars(store, recipe.with_(policy="softmax"))
    chosen = recipe.with_(policy=policy)
    handlers.queue_factors(store, BROWSER, *input_values(chosen))
    assert store.jobs.waiting() == []
    bars, summary, key = draw_bars(store, chosen)
    assert bars["opacity"] < 1
    assert bars["name"] == "ranks of softmax"
    assert "Run (about 5 s)" in summary
    assert f"{policy} assigns ranks from measurements of this model" in summary
    assert key == ""


def test_a_requested_measurement_is_canceled_when_the_policy_changes(store, recipe):
    draw_bars(store, recipe)
    chosen = recipe.with_(policy="probed")
    before = polling.factors_state(store, chosen)
    handlers.measure(store, BROWSER, *input_values(chosen))
    (record,) = store.jobs.waiting()
    assert record.job == AnalyzeJob(analysis_recipe(chosen))
    bars, summary, _ = draw_bars(store, chosen)
    assert markup.escape(words.allocation.MEASURES_NOW.format("probed", "uniform")) in summary
    assert polling.factors_state(store, chosen) != before
    handlers.queue_factors(store, BROWSER, *input_values(chosen.with_(ratio=0.3)))
    assert not record.canceled.is_set()
    handlers.queue_factors(store, BROWSER, *input_values(recipe.with_(policy="softmax")))
    assert record.canceled.is_set()
    store.factors(chosen)
    bars, summary, key = draw_bars(store, chosen)
    assert (bars["opacity"], bars["name"]) == (1, "this allocation")
    assert key == store.live_key(chosen)
    assert polling.factors_state(store, chosen) != before


@pytest.mark.parametrize("hurt", [True, False])
def test_the_displayed_ranks_are_those_of_the_compressed_model(store, recipe, monkeypatch, hurt):
    comparison = AgainstUniform(2.0 if hurt else 0.5, 1.0, 0.1)
    monkeypatch.setattr(choose_plan, "against_uniform", lambda *_: comparison)
    chosen = recipe.with_(policy="probed", ratio=0.35 if hurt else 0.4)
    factors, values = store.factors(chosen), input_values(chosen)
    draft, state = store.plan(chosen), polling.factors_state(store, chosen)
    caption = handlers.draw_plan(store, BROWSER, *values).caption
    assert marked(words.allocation.DRAFT.format("probed")) in caption
    wait_until(lambda: not store.is_draft(chosen))
    assert polling.factors_state(store, chosen) != state
    compressed = lrcore.compress(store.dense(chosen), chosen, factors).step(Compressed)
    assert compressed.ranks == store.plan(chosen).slot_ranks
    assert (store.plan(chosen).ranks == draft.ranks) != hurt
    assert (store.uniform_plan(chosen).ranks == store.plan(chosen).ranks) == hurt
    caption = handlers.draw_plan(store, BROWSER, *values).caption
    assert words.allocation.DRAFT.format("probed") not in caption
    assert ("further from the dense model" in caption) == hurt
    wait_until(lambda: store.live.peek(store.live_key(chosen)))


def wait_until(done):
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_heatmap_of_the_loss_is_drawn_after_probing(prepared, tmp_path, recipe):
    store, values = Store(tmp_path / "runs", KINDS), input_values(recipe)
    store.jobs._work = lambda record: []
    store.objects.put("factors", factor_key(recipe), prepared.factors(recipe))
    store.objects.put("pace", model_key(recipe), 1.0)
    controls = [spectra.LOSS, 0.9, "aware"]
    heat, scatter, message = spectra.draw_heatmap(store, controls, None, *values)
    assert heat == scatter == ""
    assert "Run (" in message or "being measured" in message  # a previous test may have queued it
    spectral = ["effective_rank", 0.9, "aware"]
    unchanged = spectra.redraw_loss(store, False, spectral, None, *values)
    assert all(value == gr.skip() for value in unchanged)
    factors = prepared.factors(probed_recipe(recipe))
    store.objects.put("factors", factor_key(probed_recipe(recipe)), factors)
    heat, scatter, message = spectra.draw_heatmap(store, controls, None, *values)
    assert spectra.redraw_loss(store, False, spectral, None, *values) == unchanged
    by_probes = input_values(recipe.with_(policy="probed"))
    first = spectra.redraw_loss(store, False, spectral, None, *by_probes)
    assert (first[0], *first[3:]) == (spectra.LOSS, heat, scatter, message)
    assert spectra.redraw_loss(store, False, controls, None, *values) == first
    by_hand = spectra.redraw_loss(store, True, spectral, None, *by_probes)
    assert by_hand == unchanged
    other_method = input_values(recipe.with_(method="svd"))
    assert spectra.redraw_loss(store, False, controls, None, *other_method)[0] == spectral[0]
    slots = probed_slots(factors, recipe.ratio)
    assert len(slots) == len(factors.spectra)
    probes = factors.evidence.get("probes").points
    for slot in slots:
        probe = next(p for p in probes[slot.layer, slot.name] if p.rank == slot.rank)
        assert (slot.increase, slot.error) == (probe.increase, probe.standard_error)
        assert 0 <= slot.energy_lost <= 1
        assert abs(slot.kept_share - 0.8) < 0.25
    cells = json.loads(heat)["data"][0]["customdata"]
    assert {(layer, name): value for row in cells for layer, name, value, *_ in row} == {
        (slot.layer, slot.name): slot.increase for slot in slots
    }
    points = [point for trace in json.loads(scatter)["data"] for point in trace["customdata"]]
    assert {(layer, name) for layer, name, *_ in points} == {*factors.spectra}
    assert f"{agreement(slots):.2f}" in message


def test_agreement_is_the_rank_correlation_of_spearman():
    def slot(lost, increase):
        return ProbedSlot(0, "qk", 1, 2, 0.5, lost, increase, 0.0)

    assert agreement([slot(0.1, 1), slot(0.2, 5), slot(0.3, 90)]) == pytest.approx(1)
    assert agreement([slot(0.1, 3), slot(0.2, 2), slot(0.3, 1)]) == pytest.approx(-1)
    assert agreement([slot(0.1, 3), slot(0.1, 2), slot(0.1, 1)]) is None


def test_measurements_on_disk_are_read_without_a_request(store, recipe, tmp_path):
    chosen = recipe.with_(policy="mix")
    lrcore.measure_evidence(store.dense(recipe), store.peek_factors(recipe), chosen)
    record = start_analysis(store, chosen, "one", measure=False)
    assert record.job == AnalyzeJob(analysis_recipe(chosen))
    other_store = Store(tmp_path / "other", KINDS)  # measurements unknown
    other_store.jobs._work = lambda record: []
    first = start_analysis(other_store, chosen, "one", measure=False)
    assert first.job == AnalyzeJob(analysis_recipe(recipe))


def test_an_estimated_time_is_rounded():
    sentences = [
        words.allocation.approximate_time(seconds) for seconds in (0.2, 12, 49, 61, 700, 20_000)
    ]
    assert sentences == [
        "about 5 s",
        "about 15 s",
        "about 50 s",
        "about 2 min",
        "about 15 min",
        "about 6 h",
    ]


def test_an_analysis_job_computes_the_factors_of_the_page():
    budgets, policies = ("auto", "params", "kv", "latency"), ("uniform", "probed", "softmax")
    for method, budget, policy in product(METHODS, budgets, policies):
        recipe = lrcore.Recipe(method=method, budget=budget, policy=policy)
        assert factor_key(analysis_recipe(recipe)) == factor_key(recipe), recipe


def test_probes_on_disk_are_read_when_their_heatmap_is_selected(
    prepared, tmp_path, recipe, monkeypatch
):
    store, values = Store(tmp_path / "runs", KINDS), input_values(recipe)
    store.jobs._work = lambda record: []
    store.objects.put("factors", factor_key(recipe), prepared.factors(recipe))
    store.objects.put("pace", model_key(recipe), 1.0)
    for tokens, expected_recipes in ((1000, []), (0, [probed_recipe(recipe)])):
        monkeypatch.setattr(store_module, "evidence_tokens", lambda *_, tokens=tokens: tokens)
        *_, message = spectra.draw_heatmap(store, [spectra.LOSS, 0.9, "aware"], None, *values)
        assert ("being measured" in message) == bool(expected_recipes)
        jobs = [record.job.recipe for record in store.jobs.waiting()]
        assert [factor_key(queued_recipe) for queued_recipe in jobs] == [
            factor_key(expected_recipe) for expected_recipe in expected_recipes
        ]


@pytest.mark.parametrize("is_probed", [True, False])
def test_a_bar_says_what_its_rank_and_the_uniform_rank_lose(store, recipe, is_probed):
    chosen = recipe.with_(policy="probed")
    store.factors(chosen)
    plan, uniform = store.plan(chosen), store.uniform_plan(chosen)
    plan = plan if is_probed else replace(plan, probes=None)

    def loss(slot, rank):
        if is_probed:
            return numbers.small_nats(plan.probes.curves[slot].loss(rank))
        return numbers.percent(1 - plan.spectra[slot].energy(rank), 2)

    cells = [
        cell
        for trace in json.loads(plan_figures.bars(plan, uniform))["data"]
        for cell in trace.get("customdata", ())
    ]
    assert {(layer, name) for layer, name, *_ in cells} == {*plan.ranks}
    for layer, name, rank, _, text in cells:
        slot, lines = (layer, name), text.split("<br>")[1:]
        assert lines[0].startswith(loss(slot, rank))
        if uniform.ranks[slot] != rank:
            assert (
                f"uniform rank {uniform.ranks[slot]}: {loss(slot, uniform.ranks[slot])}" in lines[1]
            )
    assert any(text.count("<br>") == 2 for *_, text in cells)


@pytest.mark.parametrize(
    ("method", "budget", "shrinks"),
    [("a3", "auto", "decoder parameters"), ("care", "auto", "KV cache"), ("a3", "kv", "KV cache")],
)
def test_the_line_of_the_method_says_what_shrinks(recipe, method, budget, shrinks):
    line = plan_figures.about_choice(recipe.with_(method=method, budget=budget))
    assert f"{method}, uniform ranks; shrinks {shrinks}</div>" in line
