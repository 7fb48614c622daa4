"""Random recipes: plans satisfy their budget, shrink with the ratio, and predict the size of the
written model.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import replace

import hypothesis
import pytest
from campaign import SEED, long, run_campaign, short
from hypothesis import strategies as st
from random_models import by_size, counted, exactness

import lrcore
from lrcore.compression.evidence import latency
from lrcore.compression.evidence.measure import evidence_key, evidence_of
from lrcore.compression.solve.factorize import Factorization
from lrcore.methods import METHODS
from lrcore.ranks.budget import Prices
from lrcore.ranks.plan import RankPlan
from lrcore.ranks.policies import POLICIES
from lrcore.recipes.recipe import BUDGETS, ROUNDING

SERVING = [name for name in POLICIES if not evidence_of(name).one_budget]
# Policies that need only the spectra, which are computed without measurements.
AT_ONCE = [name for name in SERVING if not evidence_key(lrcore.Recipe(policy=name))]
RATIO = st.floats(0.01, 0.99)
Factors = Callable[..., Factorization]


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def factors(model, story_file) -> Factors:
    """Return a function that factorizes by a method, optionally with all evidence that is valid for
    every budget.
    """

    @functools.cache
    def of(method: str, evidence: bool = False) -> Factorization:
        recipe = lrcore.Recipe(
            model.name, data=str(story_file), samples=4, seq_len=32, method=method
        )
        made = lrcore.factorize(model, lrcore.calibrate(model, recipe), method)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(latency, "_seconds", by_size)
            made = lrcore.measure_evidence(model, made, recipe.with_(budget="latency"))
        for policy in SERVING if evidence else ():
            made = lrcore.measure_evidence(model, made, recipe.with_(policy=policy))
        return made

    return of


@st.composite
def recipes(draw: st.DrawFn, policies: list[str] = AT_ONCE, free: bool = False) -> lrcore.Recipe:
    """Draw a recipe; free: without ranks, ratios and rounding set by hand."""
    method = METHODS[draw(st.sampled_from(sorted(METHODS)))]
    names = st.sampled_from(method.components)
    ranks = st.dictionaries(st.tuples(st.integers(0, 2), names), st.integers(1, 32), max_size=3)
    by_hand = {
        "component_ratios": draw(st.dictionaries(names, st.floats(0, 0.9), max_size=3)),
        "rank_overrides": {f"{layer}.{name}": rank for (layer, name), rank in draw(ranks).items()},
        "rounding": draw(st.sampled_from(ROUNDING)),
    }
    return lrcore.Recipe(
        seq_len=32,
        method=method.name,
        policy=draw(st.sampled_from(policies)),
        ratio=draw(RATIO),
        budget=draw(st.sampled_from(sorted(BUDGETS))),
        temperature=draw(st.none() | st.floats(1e-6, 1e6)),
        rank_multiple=draw(st.integers(1, 16)),
        refit="off",
        **({} if free else by_hand),
    )


def factors_of(factors: Factors, recipe: lrcore.Recipe) -> Factorization:
    return factors(recipe.method, recipe.policy not in AT_ONCE)


def plan_of(factors: Factors, recipe: lrcore.Recipe) -> RankPlan:
    """Return the plan; reject a recipe that is refused with a message."""
    try:
        return lrcore.allocate(factors_of(factors, recipe), recipe)
    except lrcore.InputError:
        hypothesis.reject()


def check_plan(factors: Factors, recipe: lrcore.Recipe) -> None:
    plan = plan_of(factors, recipe)
    assert plan.ranks.keys() == plan.spectra.keys()
    for slot, rank in plan.ranks.items():
        assert 1 <= rank <= plan.spectra[slot].cost.full
    json.dumps(plan.summary(), allow_nan=False)
    if recipe.rounding == "down":
        tolerance = exactness(plan.account, len(plan.ranks), recipe.seq_len)
        assert plan.account.achieved >= plan.requested - tolerance


def check_order(factors: Factors, recipe: lrcore.Recipe, other_ratio: float) -> None:
    """Check that a larger ratio does not retain more, apart from one step in rank."""
    low, high = sorted((recipe.ratio, other_ratio))
    larger, smaller = (plan_of(factors, recipe.with_(ratio=ratio)) for ratio in (low, high))
    prices, spectra = Prices(larger.budget), factors_of(factors, recipe).spectra
    spectra = {slot: s.in_multiples(recipe.rank_multiple) for slot, s in spectra.items()}
    if larger.latency is not None:
        spectra = larger.latency.priced(spectra)
    costs = {spectra[slot].cost for slot in larger.ranks}
    steps = [step for cost in costs for step in prices.offer(cost).prices.diff().tolist()]

    def kept_parameters(plan: RankPlan) -> int:
        return sum(prices.price(spectra[slot].cost, rank) for slot, rank in plan.ranks.items())

    assert kept_parameters(smaller) <= kept_parameters(larger) + max(steps, default=0)


def check_written(model: lrcore.LoadedModel, factors: Factors, recipe: lrcore.Recipe) -> None:
    """Check that the plan predicts the account of the written model."""
    plan = plan_of(factors, recipe)
    small = lrcore.compress(model, recipe, factors_of(factors, recipe), plan)
    planned = replace(plan.account.model, latency=None).to_dict()  # latency is not counted
    assert planned == pytest.approx(counted(small, recipe.seq_len), rel=1e-12)


def test_random_plans_satisfy_their_budget(factors):
    assert run_campaign(short(120), functools.partial(check_plan, factors), recipes()) > 40


def test_plans_shrink_with_the_ratio(factors):
    check = functools.partial(check_order, factors)
    assert run_campaign(short(40), check, recipes(free=True), RATIO) > 10


def test_plans_predict_the_size_of_written_models(model, factors):
    check = functools.partial(check_written, model, factors)
    assert run_campaign(short(8), check, recipes()) > 1


@pytest.mark.soak
def test_many_random_recipes(model, factors, capsys):
    written = functools.partial(check_written, model, factors)
    counts = {
        "plans": run_campaign(
            long(20_000), functools.partial(check_plan, factors), recipes(SERVING)
        ),
        "pairs of plans": run_campaign(
            long(5_000), functools.partial(check_order, factors), recipes(SERVING, free=True), RATIO
        ),
        "written models": run_campaign(long(1_000), written, recipes(SERVING)),
    }
    with capsys.disabled():
        print(f"\nseed {SEED}: {counts}")
