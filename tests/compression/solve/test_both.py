"""Budget `both`: decoder parameters and the KV cache."""

import pytest

import lrcore

RECIPE = lrcore.Recipe(samples=4, seq_len=64, policy="marginal", budget="both")


@pytest.fixture(scope="module")
def model():
    return lrcore.load("demo-llama")


@pytest.fixture(scope="module")
def calibration(model):
    return lrcore.calibrate(model, RECIPE)


@pytest.fixture(scope="module")
def factors(model, calibration):
    return lrcore.factorize(model, calibration, "a3")


@pytest.mark.parametrize("policy", ["uniform", "marginal", "energy"])
@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.8])
def test_parameters_and_cache_shrink_by_the_ratio(factors, policy, ratio):
    account = lrcore.allocate(factors, RECIPE.with_(policy=policy, ratio=ratio)).account
    assert account.removed_params == pytest.approx(ratio, abs=0.002)
    assert account.removed_kv >= ratio
    assert (account.budget, account.achieved) == ("both", account.removed_params)


def test_ranks_for_the_parameters_are_used_if_they_shrink_the_cache(factors):
    recipe = RECIPE.with_(policy="uniform")
    plans = [lrcore.allocate(factors, recipe.with_(budget=kind)) for kind in ("params", "both")]
    assert plans[0].account.removed_kv >= recipe.ratio
    assert plans[0].ranks == plans[1].ranks


def test_the_policy_chooses_the_ranks_of_the_cache_for_the_cache(factors):
    recipe = RECIPE.with_(ratio=0.4)
    parameters, cache, both = (
        lrcore.allocate(factors, recipe.with_(budget=kind)) for kind in ("params", "kv", "both")
    )
    assert parameters.account.removed_kv < recipe.ratio
    for slot, rank in cache.ranks.items():
        assert (both.ranks[slot] == rank) == (slot[1] != "mlp")


def test_manual_ranks_and_ratios_are_kept(factors):
    recipe = RECIPE.with_(ratio=0.4, rank_overrides={"2.qk": 30}, component_ratios={"ov": 0.6})
    plan = lrcore.allocate(factors, recipe)
    assert plan.ranks[2, "qk"] == 30
    rows = [row for row in plan.slot_ranks if row.component == "ov"]
    kept = sum(row.kv_bytes for row in rows) / sum(row.dense_kv_bytes for row in rows)
    assert kept == pytest.approx(0.4, abs=0.01)
    assert plan.account.removed_params == pytest.approx(0.4, abs=0.002)
    assert plan.account.removed_kv >= 0.4


def test_a_method_that_leaves_the_cache_is_refused(model, calibration):
    factors = lrcore.factorize(model, calibration, "svd_llm")
    with pytest.raises(lrcore.InputError, match="KV cache"):
        lrcore.allocate(factors, RECIPE.with_(method="svd_llm"))


def test_the_compressed_model_has_the_account_of_the_plan(model, factors):
    recipe = RECIPE.with_(ratio=0.4)
    small = lrcore.compress(model, recipe, factors)
    assert small.account.model == lrcore.allocate(factors, recipe).account.model
    assert small.account.to_dict()["budget"] == "both"


def test_manual_ratios_of_all_parts_of_the_cache_determine_it(factors):
    recipe = RECIPE.with_(ratio=0.4, component_ratios={"qk": 0.0, "ov": 0.2})
    account = lrcore.allocate(factors, recipe).account
    assert account.removed_params == pytest.approx(0.4, abs=0.002)
    assert account.removed_kv == pytest.approx(0.1, abs=0.01)
    assert account.requested == account.achieved == account.removed_kv
