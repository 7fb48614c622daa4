"""The error model: its growth rates, its references and its cache."""

from dataclasses import replace

import pytest

import lrcore
from lrcore.compression.evidence import error_model
from lrcore.compression.evidence.divergence import DensePredictions
from lrcore.compression.evidence.error_model import GROWTHS
from lrcore.compression.evidence.layer_probes import Probing
from lrcore.compression.evidence.plan_loss import TRUNCATED
from lrcore.compression.evidence.probe_windows import select_windows
from lrcore.compression.solve.compress_layers import compress_layers
from lrcore.ranks.evidence import ErrorModel
from lrcore.system.progress import silent


def test_growth_with_the_lowest_divergence_is_chosen_and_used_by_compress(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    monkeypatch.setattr(error_model, "GROWTHS", GROWTHS[::4])
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="kfac_svd", policy="lems", ratio=0.3
    )
    plain = lrcore.prepare(model, recipe.with_(policy="uniform"))
    with pytest.raises(lrcore.InputError, match="error_model"):
        lrcore.allocate(plain, recipe)
    factors = lrcore.measure_evidence(model, plain, recipe)
    measured = factors.evidence.get("error_model")
    windows = select_windows(factors.calibration)

    def divergence(tokens, ranks) -> float:
        plan = replace(lrcore.allocate(factors, recipe), ranks=ranks)
        network = compress_layers(model, TRUNCATED, factors, plan, silent)
        return float(DensePredictions(model.network, tokens).compared(network)[0].mean())

    # reference of a slot: a tenth of its parameters, with all other slots dense
    dense = {slot: s.cost.full for slot, s in factors.spectra.items()}
    assert measured.references.keys() == dense.keys()
    for slot in ((0, "q"), (1, "down")):
        probe, cost = measured.references[slot], factors.spectra[slot].cost
        assert cost.parameters(probe.rank) == pytest.approx(0.1 * cost.dense, abs=cost.per_rank)
        expected = divergence(windows.probing, dense | {slot: probe.rank})
        assert probe.increase == pytest.approx(expected, rel=1e-3)

    # no other growth gives a plan with a lower divergence
    def divergence_of_plan(alpha: float, gamma: float) -> float:
        tried = ErrorModel(measured.references, measured.layers, alpha, gamma)
        budget = factors.evidence.measurements["error_model"].budget
        plan = lrcore.allocate(factors.with_measurement("error_model", tried, budget), recipe)
        return divergence(windows.checking, plan.ranks)

    divergences = {growth: divergence_of_plan(*growth) for growth in GROWTHS[::4]}
    assert len(set(divergences.values())) > 1
    chosen = divergences[measured.alpha, measured.gamma]
    assert chosen == pytest.approx(min(divergences.values()), rel=1e-6)

    small = lrcore.compress(model, recipe, factors)
    assert small.account.to_dict()["achieved"] >= 0.3
    monkeypatch.setattr(Probing, "_measure", lambda *_: pytest.fail("a slot was probed again"))
    monkeypatch.setattr(error_model, "_measure_plans", lambda *_: pytest.fail("plans were tried"))
    cached = lrcore.measure_evidence(model, plain, recipe).evidence.get("error_model")
    assert vars(cached) == vars(measured)
