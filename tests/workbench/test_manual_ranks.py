"""Manual ranks: undo, redo and differences from the policy."""

import pytest

import lrcore
from workbench.state import manual_ranks
from workbench.views import markup


def test_changes_can_be_undone_and_redone():
    first, history = manual_ranks.step(manual_ranks.EMPTY, {}, {"0.qk": 4})
    second, history = manual_ranks.step(history, first, {"0.qk": 4, "1.ov": 2})
    back, history = manual_ranks.undo(history, second)
    assert back == first
    assert manual_ranks.redo(history, back)[0] == second
    start, history = manual_ranks.undo(history, back)
    assert start == {}
    assert manual_ranks.undo(history, start) == (start, history)
    third, history = manual_ranks.step(history, start, {"2.mlp": 7})
    assert manual_ranks.redo(history, third) == (
        third,
        history,
    )  # a new change discards undone changes


def test_a_gesture_is_a_single_change():
    ranks, history = {}, manual_ranks.EMPTY
    for rank in (9, 8, 7):
        ranks, history = manual_ranks.step(history, ranks, {"0.qk": rank}, "drag")
    assert manual_ranks.undo(history, ranks)[0] == {}
    later, history = manual_ranks.step(history, ranks, {"0.qk": 3}, "another drag")
    assert manual_ranks.undo(history, later)[0] == ranks
    assert manual_ranks.step(history, later, later) == (later, history)


@pytest.fixture(scope="module")
def factors():
    return lrcore.prepare(lrcore.load("demo-llama"), lrcore.Recipe(samples=4, seq_len=32))


def test_changes_compare_a_plan_with_the_plan_of_its_policy(factors):
    fixed = {"2.ov": 31}
    recipe = lrcore.Recipe(ratio=0.3, rank_overrides=fixed)
    plan, alone = (
        lrcore.allocate(factors, variant) for variant in (recipe, recipe.with_(rank_overrides={}))
    )
    result = manual_ranks.changes(plan, alone, fixed)
    assert (result[0].layer, result[0].component, result[0].rank, result[0].is_manual) == (
        2,
        "ov",
        31,
        True,
    )
    assert result[0].policy_rank == alone.ranks[2, "ov"]
    assert sum(change.parameters for change in result) == sum(
        p.table()["parameters"].sum() * sign for p, sign in ((plan, 1), (alone, -1))
    )
    assert {(change.layer, change.component) for change in result} >= {
        slot for slot in plan.ranks if plan.ranks[slot] != alone.ranks[slot]
    }
    assert "1 set manually" in markup.changes(result, plan, alone)
