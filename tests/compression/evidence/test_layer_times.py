"""Latency budgets: layers are timed once, and plans use ranks that save time."""

import json

import pytest

import lrcore
from lrcore.cli import main
from lrcore.compression.evidence import latency
from lrcore.compression.evidence.measure import evidence_key
from lrcore.layers.account import SizeAndCost
from workbench.state.keys import (
    analysis_recipe,
    factor_key,
    with_uniform_ranks,
    without_measurements,
)


@pytest.fixture
def case(tiny_llama, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="a3", budget="latency", ratio=0.2
    )
    return model, recipe


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock: a layer takes one microsecond per parameter of its MLP."""
    requests = []

    def seconds(layer, hidden, call, repeats) -> float:
        requests.append(repeats)
        return sum(parameter.numel() for parameter in layer.mlp.parameters()) * 1e-6

    monkeypatch.setattr(latency, "_seconds", seconds)
    return requests


def test_ranks_are_reduced_only_where_this_saves_time(case, clock) -> None:
    model, recipe = case
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    account = plan.account
    assert account.achieved == pytest.approx(0.2, abs=0.02)
    assert account.achieved == account.removed_latency >= 0.2
    full = {name: plan.spectra[0, name].cost.full for name in ("qk", "ov")}
    assert all(plan.ranks[i, name] == full[name] for i in range(3) for name in full)
    counted = sum(parameter.numel() for parameter in model.network.model.layers[0].mlp.parameters())
    assert account.dense.latency == pytest.approx(3 * counted * 1e-6 / 32)
    small = lrcore.compress(model, recipe, factors, plan)
    mlp = sum(parameter.numel() for parameter in small.network.model.layers[0].mlp.parameters())
    assert mlp / counted == pytest.approx(0.8, abs=0.05)
    assert small.account.to_dict()["removed_latency"] == account.removed_latency
    restored = SizeAndCost.from_dict(json.loads(json.dumps(small.account.to_dict())))
    assert restored == small.account


def test_equal_layers_are_timed_once_and_cached(case, clock) -> None:
    model, recipe = case
    factors = lrcore.prepare(model, recipe)
    slots, turns = 3, 2 * latency.ROUNDS + 3
    assert len(clock) <= turns * (1 + slots * latency.RANKS)  # three layers of equal shape
    clock.clear()
    reloaded = lrcore.prepare(model, recipe)
    assert clock == []
    assert reloaded.evidence.get("latency") == factors.evidence.get("latency")
    lrcore.prepare(model, recipe.with_(seq_len=16))
    assert clock


def test_all_policies_of_the_budget_use_the_times(case, clock) -> None:
    model, recipe = case
    factors = lrcore.prepare(model, recipe)
    for policy in ("softmax", "greedy", "marginal"):
        plan = lrcore.allocate(factors, recipe.with_(policy=policy))
        assert plan.account.achieved >= 0.2 - 1e-9


def test_missing_times_and_offloaded_layers_raise(case) -> None:
    model, recipe = case
    calibration = lrcore.calibrate(model, recipe)
    with pytest.raises(lrcore.InputError, match="'latency' was not measured yet"):
        lrcore.allocate(lrcore.factorize(model, calibration, "a3"), recipe)
    offloaded = lrcore.load(model.name, offload=True)
    with pytest.raises(lrcore.InputError, match="cannot be measured with offloaded layers"):
        lrcore.prepare(offloaded, recipe)


def test_measured_seconds_increase_with_the_rank(case) -> None:
    model, recipe = case
    factors = lrcore.prepare(model, recipe.with_(ratio=0.01))
    latency_times = factors.evidence.get("latency")
    assert all(seconds > 0 for seconds in latency_times.layers)
    for times in latency_times.slots.values():
        assert list(times.seconds) == sorted(times.seconds)


def test_command_line_supports_the_latency_budget(
    case, clock, tiny_llama, story_file, capsys
) -> None:
    flags = ["--data", str(story_file), "--samples", "6", "--seq-len", "32"]
    arguments = ["allocate", str(tiny_llama), *flags, "--ratio", "0.2"]
    assert main([*arguments, "--budget", "latency", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["budget"] == "latency"
    assert summary["latency"] < summary["dense_latency"]


def test_factor_keys_depend_on_the_latency_budget() -> None:
    recipe = lrcore.Recipe(model="a", budget="latency", policy="softmax", ratio=0.3)
    assert factor_key(recipe) != factor_key(recipe.with_(budget="params"))
    assert without_measurements(recipe).budget == "auto"
    assert with_uniform_ranks(recipe).budget == "latency"
    assert factor_key(analysis_recipe(recipe)) == factor_key(recipe)
    assert analysis_recipe(recipe) == analysis_recipe(recipe.with_(policy="waterfill", ratio=0.1))
    assert evidence_key(recipe.with_(policy="probed")) == ("latency", "probes")
