"""Differences of manual ranks from the policy."""

import pytest

import lrcore
from workbench.state import manual_ranks
from workbench.views import markup


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
