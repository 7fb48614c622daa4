"""Histories and accounts: round trips through JSON, and the steps that may follow each step."""

import json
from dataclasses import replace

import pytest

import lrcore
from lrcore.compression.step_rules import STEP_RULES, check_may_follow, step_conflict
from lrcore.layers.account import ModelAccount, PlanSummary, SizeAndCost
from lrcore.recipes.history import (
    STEPS,
    Compressed,
    ExpertsPruned,
    Healed,
    LayersDropped,
    Quantized,
    SharedBases,
    Sliced,
    SlotRank,
    Sparsified,
    StandardFit,
    last_step,
    standard_fit_of,
)
from lrcore.recipes.provenance import BaseModel, Provenance

COMPRESSED = Compressed(
    lrcore.Recipe(method="svd", ratio=0.3, rank_overrides={"0.q": 4}),
    (SlotRank(0, "q", 4, 8, 0.5, 64, 128, 32, 32, 0.9),),
    {"source": "stories", "mode": "independent", "refit": False},
    StandardFit(False, ("q below full rank",), {(0, "mlp"): 12}),
    {"calibrate": 0.5},
    ({"layer": 0, "component": "qk", "bound": None},),
)
HEALED = Healed(
    data="stories",
    samples=4,
    seq_len=24,
    steps=2,
    batch=2,
    lr=3e-4,
    beta=1.0,
    temperature=2.0,
    rotary_channel=0,
    train="factors",
    test_samples=0,
    seed=0,
    teacher="dense",
    trained_parameters=100,
    seconds=0.1,
    tokens=92,
    first_loss=3.0,
    last_loss=2.5,
    cross_entropy=(3.0, 2.5),
    divergence=(0.0, 0.0),
)
QUANTIZED = Quantized("hqq", 4, 64)
SHORTENED = LayersDropped("loss", (3, 1), 6)
SLICED = Sliced(28, 32, "one", 0.2, 0.21, 0, {"source": "stories"}, StandardFit(True))
SPARSIFIED = Sparsified("wanda", calibration={"source": "stories"})
SHARED = SharedBases(2, 0.3, 0.31, {"source": "stories"})
PRUNED = ExpertsPruned("activation", ((0, 3, -1), (1, 2, 0)), 4, {"source": "stories"})
EXAMPLES = {
    type(step): step
    for step in (COMPRESSED, HEALED, QUANTIZED, SHORTENED, SLICED, SPARSIFIED, SHARED, PRUNED)
}

DENSE = ModelAccount(1000, 800, 4000, 64, 5000)
ACCOUNT = SizeAndCost(ModelAccount(600, 400, 2400, 32, 3000, latency=0.01), DENSE, "kv", bits=8)


def test_every_kind_of_step_has_an_example_and_a_rule():
    assert EXAMPLES.keys() == set(STEPS.values()) == STEP_RULES.keys()


@pytest.mark.parametrize("step", EXAMPLES.values(), ids=lambda step: step.kind)
def test_step_survives_a_round_trip(step):
    assert type(step).from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_provenance_survives_a_round_trip():
    provenance = Provenance(tuple(EXAMPLES.values()), BaseModel("dense", "abc"), ACCOUNT)
    assert Provenance.from_dict(json.loads(json.dumps(provenance.to_dict()))) == provenance
    empty = Provenance()
    assert Provenance.from_dict(empty.to_dict()) == empty


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 3}, "has version 3"),
        ({"version": 2}, "cannot be read"),
        ({"version": 2, "base": None, "account": None, "history": [{"kind": "x"}]}, "step 'x'"),
        ({"recipe": {"method": "svd"}}, "cannot be read"),
    ],
)
def test_unreadable_report_raises(values, message):
    with pytest.raises(lrcore.InputError, match=message):
        Provenance.from_dict(values)


def test_account_has_stable_names_of_figures():
    values = ACCOUNT.to_dict()
    assert values["parameters"], values["dense_parameters"] == (600, 1000)
    assert (values["megabytes"], values["dense_megabytes"]) == (0.0024, 0.004)
    assert (values["removed_params"], values["removed_all_params"]) == (0.5, 0.4)
    assert values["achieved"] == values["removed_kv"] == 0.5
    assert not {"requested", "energy_kept", "temperature"} & values.keys()
    planned = replace(ACCOUNT, planned=PlanSummary(0.3, 0.9), bits=None, budget="params")
    assert planned.to_dict().keys() >= {"requested", "energy_kept", "predicted_perplexity"}
    assert SizeAndCost.from_dict(planned.to_dict()) == planned


def test_last_step_and_stock_fit_of_a_history():
    history = (SLICED, COMPRESSED, replace(QUANTIZED, bits=8), QUANTIZED, HEALED)
    assert last_step(history, Quantized) == QUANTIZED
    assert last_step(history, LayersDropped) is None
    assert standard_fit_of(history) == QUANTIZED.stock
    assert standard_fit_of((SLICED, COMPRESSED)) == COMPRESSED.stock
    assert standard_fit_of((SHORTENED,)) is None


# compressed, healed, quantized, pruned layers, sliced, sparse, shared bases, pruned experts
C, H, Q, SH, SL, SP, SB, EP = EXAMPLES
REFUSED = {
    (Q, C): "then quantize",
    (Q, Q): "already quantized",
    (C, SH): "Drop layers of the dense model",
    (Q, SH): "Drop layers of the dense model",
    (SL, SH): "Drop layers of the dense model",
    (C, SL): "Slice the dense model",
    (Q, SL): "Slice the dense model",
    (SL, SL): "Slice the dense model",
    (SP, C): "sparse matrices",
    (SP, Q): "sparse matrices",
    (SP, SH): "sparse matrices",
    (SP, SL): "sparse matrices",
    (SP, SP): "sparse matrices",
    (Q, SP): "is quantized",
    **dict.fromkeys([(SB, C), (SB, Q), (SB, SP)], "share bases"),
    (C, EP): "belong to its current experts",
    (Q, EP): "Prune the experts of the unquantized model",
    (SP, EP): "sparse matrices",
    (SB, EP): "share bases",
    (SB, SH): "Drop layers of the dense model",
    (SB, SL): "Slice the dense model",
    **dict.fromkeys(
        [(previous, SB) for previous in (C, Q, SL, SP, SB)], "is compressed. Share bases"
    ),
}


@pytest.mark.parametrize("before", EXAMPLES, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("after", EXAMPLES, ids=lambda kind: kind.kind)
def test_steps_that_may_follow_each_step(before, after):
    """Take the first step on a dense model if possible, and on a compressed model otherwise."""
    history = (EXAMPLES[before],) if before is not H else (COMPRESSED, HEALED)
    expected = REFUSED.get((before, after))
    if before is H:  # a healed model is compressed as well
        expected = REFUSED.get((C, after))
    reason = step_conflict(after, history, "small")
    if expected is None:
        assert reason is None
        check_may_follow(after, history, "small")
    else:
        assert expected in reason
        assert "{" not in reason
        with pytest.raises(lrcore.InputError, match=expected):
            check_may_follow(after, history, "small")


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.kind)
def test_every_step_except_healing_may_follow_a_dense_model(kind):
    assert (step_conflict(kind, (), "dense") is None) == (kind is not H)


def test_compression_replaces_quantized_matrices():
    assert step_conflict(Q, (QUANTIZED, COMPRESSED), "small") is None
    assert step_conflict(H, (COMPRESSED, QUANTIZED, COMPRESSED), "small") is None
