"""Sweeps with chains of steps: shared steps, achieved reduction, and rejected chains."""

from dataclasses import replace

import pytest

import lrcore
from lrcore.runs.sweep_report import cross_table, points

QUANTIZE = {"quantize": {"bits": [8, 4], "group": 16}}
HEALED = "heal 1 steps (samples=2, seq_len=16, batch=1)"
HEAL = {"heal": {"steps": 1, "batch": 1, "samples": 2, "seq_len": 16, "test_samples": 0}}


@pytest.fixture
def chains(requested):
    """Return a sweep of a compression at two ratios: without further steps, quantized at two
    widths, and healed before quantization; also pruned layers and a sliced stream.
    """
    compress = {"compress": {"method": "svd"}}
    rows = [compress, [compress, QUANTIZE], [compress, HEAL, {"quantize": {"group": 16}}]]
    rows += [[{"prune-layers": {"layers": 1}}, compress, HEAL], [{"slice": {"ratio": 0.3}}]]
    return replace(requested, methods=["a3"], rows=rows)


def test_a_policy_without_temperature_has_a_single_cell():
    sweep = lrcore.Sweep(policies=["softmax", "uniform"], temperatures=[0.1, 0.2])
    recipes = [cell[0].recipe for cell in sweep.cells()]
    assert [(recipe.policy, recipe.temperature) for recipe in recipes] == [
        ("softmax", 0.1),
        ("softmax", 0.2),
        ("uniform", None),
    ]


def test_shared_first_steps_of_cells_are_computed_once(chains, counted, tmp_path):
    model = lrcore.load(chains.base.model)
    rows = lrcore.run_sweep(model, chains, tmp_path)
    assert [row.error for row in rows] == [None] * 12
    assert [(row.method, row.ratio, row.then) for row in rows] == [
        ("dense", 0.0, None),
        ("svd", 0.2, None),
        ("svd", 0.2, "nearest 8 bit (group=16)"),
        ("svd", 0.2, "nearest 4 bit (group=16)"),
        ("svd", 0.2, f"{HEALED} > nearest 8 bit (group=16)"),
        ("svd", 0.4, None),
        ("svd", 0.4, "nearest 8 bit (group=16)"),
        ("svd", 0.4, "nearest 4 bit (group=16)"),
        ("svd", 0.4, f"{HEALED} > nearest 8 bit (group=16)"),
        ("prune-layers 1", None, f"svd uniform 20% > {HEALED}"),
        ("prune-layers 1", None, f"svd uniform 40% > {HEALED}"),
        ("slice", 0.3, None),
    ]
    assert counted == {
        "calibrate": 2,  # for the full model and the shortened one
        "factorize": 2,
        "compress": 4,
        "quantize": 6,
        "heal": 4,
        "prune_layers": 1,
        "evaluate": 12,
    }
    assert lrcore.run_sweep(model, chains, tmp_path) == rows
    assert counted["evaluate"] == 12
    series = {point.series for point in points(rows, "parameters")}
    assert {"svd", "svd > nearest 8 bit (group=16)", "svd > nearest 4 bit (group=16)"} <= series
    assert rows[4].title == f"svd uniform 20% > {rows[4].then}, {chains.base.data}"


def test_the_reduction_of_a_chain_is_relative_to_the_dense_model(chains, tmp_path):
    model = lrcore.load(chains.base.model)
    several = [row for row in lrcore.run_sweep(model, chains, tmp_path) if row.then]
    assert len(several) == 8
    for row in several:
        gone = (model.size.parameters - row.parameters) / model.size.decoder_linear
        assert row.achieved == pytest.approx(gone, abs=5e-3), row.title  # norms of a layer


def test_rows_that_differ_in_a_later_step_have_different_titles(requested, tmp_path):
    """Titles differ in all tables, also if a line has results on several texts."""
    by_part = [{"mlp": 0.2, "qk": 0, "ov": 0}, {"mlp": 0.3, "qk": 0, "ov": 0.1}]
    base = requested.base.with_(ratio=0.1)
    later = {"compress": {"method": "modegpt", "component_ratios": by_part}}
    rows = [[{"slice": {"multiple": 2}}, later], [{"quantize": {"group": [16, 32]}}]]
    heal = HEAL["heal"] | {"lr": [1e-3, 1e-4]}
    rows += [[{"compress": {"method": "svd"}}, {"heal": heal}]]
    sweep = lrcore.Sweep(base, rows=rows, evaluations=requested.evaluations)
    made = lrcore.run_sweep(lrcore.load(base.model), sweep, tmp_path)
    assert not any(row.error for row in made)
    assert len({row.title for row in made}) == len(made) == 7
    assert len(cross_table(made)) == 7
    assert made[1].options == "multiple=2"
    assert made[1].then == "modegpt uniform 10% (mlp=0.2, qk=0, ov=0)"
    assert "lr=0.0001" in made[6].then


def test_the_row_of_a_chain_equals_its_steps_by_hand(chains, tmp_path):
    model, data = lrcore.load(chains.base.model), chains.base.data
    rows = lrcore.run_sweep(model, replace(chains, rows=chains.rows[2:3], ratios=[0.2]), tmp_path)
    small = lrcore.compress(model, chains.base.with_(method="svd", ratio=0.2))
    made = lrcore.quantize(lrcore.heal(small, teacher=model, **HEAL["heal"]), 8, 16)
    by_hand = lrcore.evaluate(made, data, samples=2, seq_len=16).perplexity
    assert rows[1].perplexity == by_hand
    assert rows[1].parameters == made.size.parameters
    assert (rows[1].samples, rows[1].seed) == (4, 2)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["compres"], "Did you mean 'compress'"),
        ([{"quantize": {"bit": 4}}], "field of quantize"),
        ([{"prune-layers": {}}], "needs layers"),
        ([[]], "needs at least one step"),
        ([{"quantize": 4}], "fields of a step"),
        ([{"compress": {"method": "a4"}}], "Did you mean 'a3'"),
        ([{"slice": {"rotations": "two"}}], "rotations"),
        ([{"compress": {}, "quantize": {}}], "A step must have the form"),
        ([3], "A step must have the form"),
    ],
)
def test_invalid_rows_are_refused_before_any_work(rows, words):
    with pytest.raises(lrcore.InputError, match=words):
        lrcore.Sweep(rows=rows)


def test_steps_in_an_invalid_order_are_a_row_with_an_error_message(requested, tmp_path):
    rows = [["quantize", "compress"]]
    made = lrcore.run_sweep(
        lrcore.load(requested.base.model), replace(requested, rows=rows), tmp_path
    )
    assert "is quantized" in made[1].error
