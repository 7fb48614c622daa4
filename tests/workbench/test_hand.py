"""Ranks set by hand: undo, redo, and what they changed against the policy."""

import pytest

import lrcore
from workbench import hand, markup


def test_steps_can_be_undone_and_redone():
    one, history = hand.step(hand.EMPTY, {}, {"0.qk": 4})
    two, history = hand.step(history, one, {"0.qk": 4, "1.ov": 2})
    back, history = hand.undo(history, two)
    assert back == one
    assert hand.redo(history, back)[0] == two
    start, history = hand.undo(history, back)
    assert start == {}
    assert hand.undo(history, start) == (start, history)
    other, history = hand.step(history, start, {"2.mlp": 7})
    assert hand.redo(history, other) == (other, history)  # a new step forgets what was undone


def test_a_gesture_is_one_step():
    now, history = {}, hand.EMPTY
    for rank in (9, 8, 7):
        now, history = hand.step(history, now, {"0.qk": rank}, "drag")
    assert hand.undo(history, now)[0] == {}
    later, history = hand.step(history, now, {"0.qk": 3}, "another drag")
    assert hand.undo(history, later)[0] == now
    assert hand.step(history, later, later) == (later, history)


@pytest.fixture(scope="module")
def factors():
    return lrcore.prepare(lrcore.load("demo-llama"), lrcore.Recipe(samples=4, seq_len=32))


def test_changes_are_those_against_the_policy(factors):
    fixed = {"2.ov": 31}
    recipe = lrcore.Recipe(ratio=0.3, overrides=fixed)
    plan, alone = (lrcore.allocate(factors, one) for one in (recipe, recipe.with_(overrides={})))
    result = hand.changes(plan, alone, fixed)
    assert (result[0].layer, result[0].component, result[0].rank, result[0].hand) == (
        2,
        "ov",
        31,
        True,
    )
    assert result[0].policy == alone.ranks[2, "ov"]
    assert sum(one.parameters for one in result) == sum(
        p.table()["parameters"].sum() * sign for p, sign in ((plan, 1), (alone, -1))
    )
    assert {(one.layer, one.component) for one in result} >= {
        slot for slot in plan.ranks if plan.ranks[slot] != alone.ranks[slot]
    }
    assert "1 set by hand" in markup.changes(result, plan, alone)
