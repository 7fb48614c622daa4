"""Estimates of the time that measuring evidence takes."""

import threading
from types import SimpleNamespace

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

import lrcore
from lrcore.compression.evidence import losses, type_search
from lrcore.compression.evidence.losses import seconds_per_token
from lrcore.compression.evidence.measure import EVIDENCE, evidence_tokens
from lrcore.models.architectures import decoder_layers


@pytest.fixture
def case(tiny_llama, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))  # without measurements of other tests
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, ratio=0.3)
    return model, recipe, lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3")


def tokens_run(model, work) -> float:
    """Return the number of tokens that `work` runs through all layers in this thread."""
    kind, run, thread = type(decoder_layers(model.network)[0]), [], threading.get_ident()

    def count_tokens(module, inputs) -> None:
        if isinstance(module, kind) and threading.get_ident() == thread:
            run.append(inputs[0].shape[0] * inputs[0].shape[1])

    handle = register_module_forward_pre_hook(count_tokens)
    try:
        work()
    finally:
        handle.remove()
    return sum(run) / len(decoder_layers(model.network))


@pytest.mark.parametrize("policy", ["probed", "lems", "fisher", "mix", "bolaco", "flat", "zs_svd"])
def test_estimated_tokens_equal_the_tokens_run_and_are_zero_if_cached(
    case, policy, monkeypatch
) -> None:
    monkeypatch.setattr(type_search, "RUNS", 6)
    model, recipe, factors = case
    if policy == "zs_svd":  # its scores need factored matrices
        factors = lrcore.factorize(model, factors.calibration, "svd")
    recipe = recipe.with_(policy=policy)
    tokens, window = evidence_tokens(factors, recipe), factors.calibration.tokens.numel()
    done = []
    run = tokens_run(model, lambda: done.append(lrcore.measure_evidence(model, factors, recipe)))
    if policy in ("probed", "lems"):  # plus the dense passes of the probes
        assert tokens <= run <= tokens + 3 * window
    elif policy == "flat":
        assert tokens == run == window
    elif policy == "bolaco":
        assert run == tokens
    elif policy in ("fisher", "zs_svd"):
        assert tokens == 3 * run  # a backward pass counts as two forward passes
    else:
        assert run <= tokens + window <= 2 * run  # the search may end early
    assert evidence_tokens(factors, recipe) == 0
    assert evidence_tokens(done[0], recipe) == 0


def test_tokens_of_a_refit_are_counted(case) -> None:
    model, recipe, factors = case
    recipe = recipe.with_(policy="probed", refit="on", calibration_mode="sequential")
    tokens = evidence_tokens(factors, recipe)
    run = tokens_run(model, lambda: lrcore.measure_evidence(model, factors, recipe))
    assert tokens == pytest.approx(run, rel=0.25)


def test_every_measurement_estimates_its_tokens() -> None:
    assert all((kind.measure is None) == (kind.tokens is None) for kind in EVIDENCE.values())


def test_evidence_of_the_factors_needs_no_tokens(case) -> None:
    model, recipe, factors = case
    assert evidence_tokens(factors, recipe.with_(policy="waterfill")) == 0
    assert seconds_per_token(model, factors.calibration) > 0


@pytest.mark.parametrize(
    ("pass_seconds", "expected"),
    [
        ([9.0, 0.2, 0.8, 0.1, 0.6], 0.1 / (6 * 32)),  # one batch holds all six windows
        ([9.0, 0.4, 0.3, 0.4], 0.3 / 32),
        ([9.0, 2.0], 2.0 / 32),
    ],
)
def test_slow_first_pass_is_excluded_from_the_pace(
    case, monkeypatch, pass_seconds, expected
) -> None:
    model, _, factors = case
    clock, remaining = [0.0], list(pass_seconds)

    def one_pass(*_) -> None:
        clock[0] += remaining.pop(0)

    monkeypatch.setattr(losses, "mean_loss", one_pass)
    monkeypatch.setattr(losses, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert seconds_per_token(model, factors.calibration) == pytest.approx(expected)
    assert remaining == []
