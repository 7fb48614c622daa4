"""Histories, accounts and what may follow what: as they are written they are read again."""

import json
from dataclasses import replace

import pytest

import lrcore
from lrcore.history import STEPS, SlotRank, last_step, stock_of
from lrcore.may_follow import MAY_FOLLOW, check_may_follow, refusal

COMPRESSED = lrcore.Compressed(
    lrcore.Recipe(method="svd", ratio=0.3, overrides={"0.q": 4}),
    (SlotRank(0, "q", 4, 8, 0.5, 64, 128, 32, 32, 0.9),),
    {"source": "stories", "mode": "independent", "refit": False},
    lrcore.StockFit(False, ("q below full rank",), {(0, "mlp"): 12}),
    {"calibrate": 0.5},
    ({"layer": 0, "component": "qk", "bound": None},),
)
HEALED = lrcore.Healed(
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
QUANTISED = lrcore.Quantised("hqq", 4, 64)
SHORTENED = lrcore.Shortened("loss", (3, 1), 6)
SLICED = lrcore.Sliced(28, 32, "one", 0.2, 0.21, 0, {"source": "stories"}, lrcore.StockFit(True))
SPARSIFIED = lrcore.Sparsified("wanda", calibration={"source": "stories"})
SHARED = lrcore.SharedBases(2, 0.3, 0.31, {"source": "stories"})
PRUNED = lrcore.ExpertsPruned("activation", ((0, 3, -1), (1, 2, 0)), 4, {"source": "stories"})
EXAMPLES = {
    type(step): step
    for step in (COMPRESSED, HEALED, QUANTISED, SHORTENED, SLICED, SPARSIFIED, SHARED, PRUNED)
}

DENSE = lrcore.ModelAccount(1000, 800, 4000, 64, 5000)
ACCOUNT = lrcore.SizeAndCost(
    lrcore.ModelAccount(600, 400, 2400, 32, 3000, latency=0.01), DENSE, "kv", bits=8
)


def test_every_kind_of_step_has_an_example_and_a_rule():
    assert EXAMPLES.keys() == set(STEPS.values()) == MAY_FOLLOW.keys()


@pytest.mark.parametrize("step", EXAMPLES.values(), ids=lambda step: step.kind)
def test_a_step_is_read_as_it_is_written(step):
    assert type(step).from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_how_a_model_came_to_be_is_read_as_it_is_written():
    known = lrcore.Provenance(tuple(EXAMPLES.values()), lrcore.BaseModel("dense", "abc"), ACCOUNT)
    assert lrcore.Provenance.from_dict(json.loads(json.dumps(known.to_dict()))) == known
    nothing = lrcore.Provenance()
    assert lrcore.Provenance.from_dict(nothing.to_dict()) == nothing


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 3}, "has version 3"),
        ({"version": 2}, "cannot be read"),
        ({"version": 2, "base": None, "account": None, "history": [{"kind": "x"}]}, "step 'x'"),
        ({"shortened": {"by": "hand"}}, "cannot be read"),
        ({"quantised": 4}, "cannot be read"),
    ],
)
def test_a_report_that_cannot_be_read_says_so(values, message):
    with pytest.raises(lrcore.InputError, match=message):
        lrcore.Provenance.from_dict(values)


def test_an_account_keeps_the_names_of_its_figures():
    values = ACCOUNT.to_dict()
    assert values["parameters"], values["dense_parameters"] == (600, 1000)
    assert (values["megabytes"], values["dense_megabytes"]) == (0.0024, 0.004)
    assert (values["removed_params"], values["removed_total"]) == (0.5, 0.4)
    assert values["achieved"] == values["removed_kv"] == 0.5
    assert not {"requested", "energy_kept", "temperature"} & values.keys()
    planned = replace(ACCOUNT, planned=lrcore.Planned(0.3, 0.9), bits=None, budget="params")
    assert planned.to_dict().keys() >= {"requested", "energy_kept", "predicted_perplexity"}
    assert lrcore.SizeAndCost.from_dict(planned.to_dict()) == planned
    old = {"asked" if name == "requested" else name: x for name, x in planned.to_dict().items()}
    assert lrcore.SizeAndCost.from_dict(old) == planned


def test_queries_of_a_history():
    history = (SLICED, COMPRESSED, replace(QUANTISED, bits=8), QUANTISED, HEALED)
    assert last_step(history, lrcore.Quantised) == QUANTISED
    assert last_step(history, lrcore.Shortened) is None
    assert stock_of(history) == QUANTISED.stock
    assert stock_of((SLICED, COMPRESSED)) == COMPRESSED.stock
    assert stock_of((SHORTENED,)) is None


# compressed, healed, quantised, shortened, sliced, sparse, with shared bases, with fewer experts
C, H, Q, SH, SL, SP, SB, EP = EXAMPLES
REFUSED = {
    (Q, C): "then quantise",
    (Q, Q): "quantised already",
    (C, SH): "Shorten the dense model",
    (Q, SH): "Shorten the dense model",
    (SL, SH): "Shorten the dense model",
    (C, SL): "Slice the dense model",
    (Q, SL): "Slice the dense model",
    (SL, SL): "Slice the dense model",
    (SP, C): "sparse matrices",
    (SP, Q): "sparse matrices",
    (SP, SH): "sparse matrices",
    (SP, SL): "sparse matrices",
    (SP, SP): "sparse matrices",
    (Q, SP): "is quantised",
    **dict.fromkeys([(SB, C), (SB, Q), (SB, SP)], "share bases"),
    (C, EP): "belong to the experts",
    (Q, EP): "Prune the experts of the model",
    (SP, EP): "sparse matrices",
    (SB, EP): "share bases",
    (SB, SH): "Shorten the dense model",
    (SB, SL): "Slice the dense model",
    **dict.fromkeys([(one, SB) for one in (C, Q, SL, SP, SB)], "changed already"),
}


@pytest.mark.parametrize("before", EXAMPLES, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("after", EXAMPLES, ids=lambda kind: kind.kind)
def test_what_may_follow_what(before, after):
    """Each pair, the first step taken on a dense model where it may be, else on a compressed
    one.
    """
    history = (EXAMPLES[before],) if before is not H else (COMPRESSED, HEALED)
    expected = REFUSED.get((before, after))
    if before is H:  # it is compressed as well
        expected = REFUSED.get((C, after))
    reason = refusal(after, history, "small")
    if expected is None:
        assert reason is None
        check_may_follow(after, history, "small")
    else:
        assert expected in reason
        assert "{" not in reason
        with pytest.raises(lrcore.InputError, match=expected):
            check_may_follow(after, history, "small")


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.kind)
def test_what_may_be_done_with_a_dense_model(kind):
    assert (refusal(kind, (), "dense") is None) == (kind is not H)


def test_compressing_writes_every_matrix_anew():
    assert refusal(Q, (QUANTISED, COMPRESSED), "small") is None
    assert refusal(H, (COMPRESSED, QUANTISED, COMPRESSED), "small") is None
