"""Probes: divergences from the dense model, and plans made from them."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from plans import plan_ranks, probes

import lrcore
from lrcore.compression.calibration.calibrate import MIN_UNSEEN
from lrcore.compression.evidence.divergence import DensePredictions
from lrcore.compression.evidence.layer_probes import LayerProbes, Probing, max_windows
from lrcore.compression.evidence.losses import BATCH, window_losses
from lrcore.compression.evidence.probe_windows import select_windows
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.data import load_texts
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.stream import LayerStream
from lrcore.ranks.budget import make_budget
from lrcore.ranks.evidence import Evidence
from lrcore.system.progress import Progress
from workbench import words
from workbench.views import markup


@pytest.fixture(params=["tiny_llama", "tiny_opt"])
def case(request, story_file):
    model = lrcore.load(str(request.getfixturevalue(request.param)))
    recipe = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, policy="probed", ratio=0.3)
    return model, recipe, lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3")


def log_probabilities(network, tokens) -> torch.Tensor:
    with torch.inference_mode():
        return network(tokens).logits[:, :-1].float().log_softmax(-1)


def plain_loss(network, tokens) -> float:
    predictions = log_probabilities(network, tokens)
    return -float(predictions.gather(2, tokens[:, 1:, None]).mean())


def truncated(model, factors, slot, rank):
    layer, name = slot
    network = clone(model.network)
    write_layer(network, factors.layers[layer][name].truncate(read_layer(network, layer), rank))
    return network


def test_probes_equal_the_divergences_of_full_forward_passes(case) -> None:
    model, _, factors = case
    tokens = factors.calibration.tokens
    dense = log_probabilities(model.network, tokens)
    base, points = measure_divergences(model, factors, tokens, lambda *_: None)
    assert base == pytest.approx(plain_loss(model.network, tokens), abs=1e-5)
    for slot, slot_probes in points.items():
        probe = slot_probes[-1]
        changed = log_probabilities(truncated(model, factors, slot, probe.rank), tokens)
        windows = (dense.exp() * (dense - changed)).sum(-1).mean(-1)
        assert probe.increase == pytest.approx(float(windows.mean()), rel=1e-3, abs=1e-7)
        expected = float(windows.std()) / len(windows) ** 0.5
        assert probe.standard_error == pytest.approx(expected, rel=1e-2, abs=1e-7)
    assert torch.equal(log_probabilities(model.network, tokens), dense)


def test_slot_with_a_lower_loss_after_truncation_still_has_a_positive_cost(case) -> None:
    """On few tokens, a noisy change lowers the loss about as often as it raises it."""
    model, _, factors = case
    tokens = factors.calibration.tokens
    before = plain_loss(model.network, tokens)
    probes = lrcore.probe(model, factors).evidence.get("probes")
    lower = [
        (slot, probe)
        for slot, slot_probes in probes.points.items()
        for probe in slot_probes
        if plain_loss(truncated(model, factors, slot, probe.rank), tokens) < before
    ]
    assert lower
    for slot, probe in lower:
        assert probe.increase > 2 * probe.standard_error
        assert float(probes.curves[slot].at([probe.rank])) > 0.5 * probe.increase


def test_probes_use_windows_outside_the_calibration(case) -> None:
    model, _, factors = case
    moment_tokens = factors.calibration.tokens
    probe_windows = select_windows(factors.calibration)
    assert probe_windows.is_held_out
    windows = probe_windows.probing
    assert windows.shape == (MIN_UNSEEN / 2, moment_tokens.shape[1])  # the moments use 6 windows
    assert lrcore.probe(model, factors).evidence.get("probes").held_out
    seen = {tuple(row) for row in moment_tokens.unfold(1, 8, 1).flatten(0, 1).tolist()}
    assert not all(tuple(row[:8]) in seen for row in windows.tolist())


def test_probes_skip_the_test_split_of_a_file(tiny_llama, story_text, tmp_path) -> None:
    model, tail = (
        lrcore.load(str(tiny_llama)),
        "zq9 " * 1020,
    )  # nearly the 4,096 characters of the split
    long = tmp_path / "long.txt"
    long.write_text(f"{story_text} {story_text} {story_text}\n{tail}")
    recipe = lrcore.Recipe(data=str(long), samples=32, seq_len=32, sampling="first")
    probe_windows = select_windows(lrcore.calibrate(model, recipe))
    windows = torch.cat((probe_windows.probing, probe_windows.checking))
    assert probe_windows.is_held_out
    assert len(probe_windows.probing) == 32
    assert load_texts(f"{long}:test").documents == (tail,)
    assert not any("zq9" in model.tokenizer.decode(row) for row in windows)


def test_short_texts_are_probed_on_the_calibration_with_a_notice(
    tiny_llama, story_file, tmp_path
) -> None:
    model = lrcore.load(str(tiny_llama))
    short = tmp_path / "short.txt"
    short.write_text(story_file.read_text()[:1500])
    recipe = lrcore.Recipe(
        data=str(short), samples=40, seq_len=32, sampling="first", policy="probed", ratio=0.3
    )
    factors = lrcore.probe(model, lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3"))
    assert torch.equal(select_windows(factors.calibration).probing, factors.calibration.tokens[:32])
    assert not factors.evidence.get("probes").held_out
    account = lrcore.allocate(factors, recipe).summary()
    assert account["predicted_held_out"] is False
    assert words.allocation.PROBED_ON_CALIBRATION in markup.prediction_cell(account)


@pytest.mark.parametrize("max_bytes", [2**28, 0])
def test_one_pass_returns_divergences_and_losses(case, max_bytes) -> None:
    model, recipe, factors = case
    tokens = factors.calibration.tokens
    dense = DensePredictions(model.network, tokens, max_bytes)
    small = lrcore.compress(model, recipe.with_(ratio=0.3), factors).network
    divergences, losses = dense.compared(small)
    hidden = LayerStream(model.network, tokens, BATCH).hidden
    assert torch.equal(divergences, dense.divergences(small, 0, hidden))
    assert torch.equal(losses, window_losses(small, tokens))
    assert torch.equal(dense.losses(), window_losses(model.network, tokens))


def test_stored_and_recomputed_dense_predictions_agree(case) -> None:
    model, _, factors = case
    stored = DensePredictions(model.network, factors.calibration.tokens)
    recomputed = DensePredictions(model.network, factors.calibration.tokens, max_bytes=0)
    for number in range(len(factors.calibration.tokens)):
        ours, theirs = stored.log_probabilities(number), recomputed.log_probabilities(number)
        torch.testing.assert_close(ours, theirs)
    assert recomputed.mean_loss() == pytest.approx(stored.mean_loss(), abs=1e-6)


def test_second_probe_uses_the_cache(case, monkeypatch) -> None:
    model, recipe, factors = case
    first = lrcore.probe(model, factors)
    monkeypatch.setattr(Probing, "_measure", lambda *_: pytest.fail("the cache was not used"))
    recomputed = lrcore.probe(model, factors)
    first, again_probes = first.evidence.get("probes"), recomputed.evidence.get("probes")
    assert again_probes.dense_loss == first.dense_loss
    for slot, curve in again_probes.curves.items():
        assert torch.equal(curve.increase, first.curves[slot].increase)
    assert lrcore.allocate(recomputed, recipe).summary()["predicted_perplexity"] > 1


def test_cancelled_probing_resumes_at_the_same_layer(case, monkeypatch) -> None:
    model, recipe, _ = case
    factors = lrcore.factorize(model, lrcore.calibrate(model, recipe.with_(samples=5)), "a3")
    measured: list[int] = []
    measure = Probing._measure

    def counted(self: Probing, index: int, progress: Progress) -> LayerProbes:
        measured.append(index)
        return measure(self, index, progress)

    def stop_inside_the_second(stage: str, done: int, total: int) -> None:
        del stage, total
        if len(measured) == 2 and done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Probing, "_measure", counted)
    with pytest.raises(KeyboardInterrupt):
        lrcore.probe(model, factors, stop_inside_the_second)
    assert measured == [0, 1]
    lrcore.probe(model, factors)
    assert measured == [0, 1, *range(1, len(factors.layers))]


def test_allocate_requires_probes_and_compress_makes_them(case) -> None:
    model, recipe, factors = case
    with pytest.raises(lrcore.InputError, match="probe"):
        lrcore.allocate(factors, recipe)
    small = lrcore.compress(model, recipe, factors)
    assert small.account.to_dict()["achieved"] >= 0.3
    assert small.account.to_dict()["predicted_perplexity"] is not None


def test_methods_with_the_same_factors_share_their_probes(case, monkeypatch) -> None:
    model, recipe, _ = case
    svd_llm, aa_svd = (
        recipe.with_(method="svd_llm", policy="probed"),
        recipe.with_(method="aa_svd", policy="probed", calibration_mode="sequential"),
    )
    first, second = (
        lrcore.factorize(model, lrcore.calibrate(model, recipe), each.method)
        for each in (svd_llm, aa_svd)
    )
    assert first.spectra.keys() == second.spectra.keys()
    for slot, spectrum in first.spectra.items():
        assert torch.equal(spectrum.values, second.spectra[slot].values)
    first = lrcore.measure_evidence(model, first, svd_llm)
    monkeypatch.setattr(Probing, "_measure", lambda *_: pytest.fail("the cache was not used"))
    second = lrcore.measure_evidence(model, second, aa_svd)
    interactions = [each.evidence.get("probes").interaction for each in (first, second)]
    assert interactions[0].joint != interactions[1].joint  # of models made by each method
    assert lrcore.allocate(first, svd_llm).ranks == lrcore.allocate(second, aa_svd).ranks


def test_plan_is_optimal_up_to_one_step_of_the_budget() -> None:
    g = torch.Generator().manual_seed(2)
    spectra, increases = {}, {}
    for layer in range(3):
        cost = Cost(6, 5 + layer, (5 + layer) * 6)
        increase = torch.cat(
            (
                torch.rand(5, generator=g, dtype=torch.float64)
                .sort(descending=True)
                .values.cumsum(0)
                .flip(0),
                torch.zeros(1),
            )
        )
        spectra[layer, "mlp"] = Spectrum((layer, "mlp"), torch.ones(6, dtype=torch.float64), cost)
        increases[layer, "mlp"] = increase.double()
    evidence = Evidence(spectra).with_measurement("probes", probes(spectra, increases))
    total = sum(s.cost.dense for s in spectra.values())
    for ratio in (0.2, 0.35, 0.5, 0.7):
        budget = make_budget("params", ratio, spectra, total)
        ranks = plan_ranks("probed", evidence, budget)

        def loss(choice) -> float:
            return sum(
                float(increases[slot][s.cost.ranks().index(r)])
                for (slot, s), r in zip(spectra.items(), choice, strict=True)
            )

        def price(choice) -> int:
            return sum(s.cost.parameters(r) for s, r in zip(spectra.values(), choice, strict=True))

        result = [ranks[slot] for slot in spectra]
        combinations = list(product(range(1, 7), repeat=3))
        assert price(result) <= budget.limit
        # a multiplier finds plans on the convex hull; between two of them it misses the optimum by
        # less than the largest step
        step = max(s.cost.per_rank for s in spectra.values())
        assert (
            loss(result)
            <= min(loss(c) for c in combinations if price(c) <= budget.limit - step) + 1e-12
        )


def test_predicted_perplexity_at_full_ranks_is_the_dense_perplexity(case) -> None:
    model, recipe, factors = case
    probed = lrcore.probe(model, factors)
    plan = lrcore.allocate(probed, recipe)
    untouched = replace(plan, ranks={slot: s.cost.full for slot, s in plan.spectra.items()})
    assert untouched.predicted.perplexity == pytest.approx(
        torch.tensor(probed.evidence.get("probes").dense_loss).exp().item(), rel=1e-6
    )
    assert plan.predicted.perplexity >= untouched.predicted.perplexity


def test_large_models_are_probed_on_fewer_windows(case) -> None:
    """The work is at most that of ten calibrations, with a minimum for small models."""
    _, _, factors = case
    windows = torch.zeros(32, 128, dtype=torch.long)
    assert max_windows(factors, windows) >= 32
    shape = replace(factors.shape, decoder_linear=10**9)
    large = replace(factors, shape=shape)
    assert max_windows(large, windows) == 8
    long = replace(factors.calibration, tokens=torch.zeros(64, 4096, dtype=torch.long))
    limited = max_windows(replace(large, calibration=long), windows)
    assert limited % 8 == 0
    spent = sum(4 * (2 - layer) / 2 for layer, _ in factors.spectra) * limited * 128 * 10**9
    assert 0.5 < spent / (10 * 10**9 * 64 * 4096) <= 1.1
