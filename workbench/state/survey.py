"""Plans of all methods and policies at one budget: retained shares and measured perplexities."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import lrcore

from .keys import UNIFORM, plan_key
from .live import LiveFigure, LiveRequest, figure_key
from .store import Store


class PolicyShares(NamedTuple):
    """Plan of a policy. shares: retained share by layer. budget: quantity that the ratio counts.
    key: of the live figure.
    """

    shares: list[float]
    budget: str
    key: str


@dataclass(frozen=True)
class Survey:
    """shares: {method: {policy: retained share by layer}}. missing: methods without factors.
    refused: methods that cannot meet the budget with any policy.
    """

    shares: dict[str, dict[str, list[float]]]
    missing: tuple[str, ...]
    refused: tuple[str, ...]


class Measurement(NamedTuple):
    """A measured perplexity.

    is_displayed: whether the plan is displayed. error: standard error of the relative difference to
    the lowest perplexity, paired by window, NaN for fewer than two windows. is_held_out: whether
    the text is held out from calibration.
    """

    perplexity: float
    method: str
    policy: str
    is_displayed: bool
    error: float
    is_held_out: bool


def survey(store: Store, recipe: lrcore.Recipe | None) -> Survey:
    """Return the retained shares of all policies, for each method with cached factors."""
    methods = {} if recipe is None else _shares_by_method(store, recipe)
    return Survey(
        {
            method: {policy: plan.shares for policy, plan in policies.items()}
            for method, policies in methods.items()
            if policies
        },
        tuple(method for method, policies in methods.items() if policies is None),
        tuple(method for method, policies in methods.items() if policies == {}),
    )


def measurements(store: Store, recipe: lrcore.Recipe | None) -> list[Measurement]:
    """Return the measured perplexities at the budget of a recipe, lowest first.

    The list has methods whose ratio counts the same quantity. Policies with equal ranks appear
    once, as the displayed policy or else as uniform. With manual ranks, the list is empty.
    """
    if recipe is None or recipe.rank_overrides:
        return []
    methods = _shares_by_method(store, recipe)
    displayed = (methods[recipe.method] or {}).values()
    budget = next((plan.budget for plan in displayed), None)
    figures: dict[str, tuple[str, str, LiveFigure]] = {}  # by key
    for method, policies in methods.items():
        ordered = sorted((policies or {}).items(), key=lambda entry: _order(entry[0], recipe))
        for policy, plan in ordered:
            figure = store.live.peek(plan.key) if plan.budget == budget else None
            if figure is not None and figure.perplexity is not None and plan.key not in figures:
                figures[plan.key] = method, policy, figure
    return rank_figures([*figures.values()], (recipe.method, recipe.policy))


def rank_figures(
    figures: Sequence[tuple[str, str, LiveFigure]], displayed: tuple[str, str]
) -> list[Measurement]:
    """Sort figures of methods and policies by perplexity, on the windows that all figures share.

    displayed: method and policy of the displayed plan.
    """
    if not figures:
        return []
    smallest = min((figure for *_, figure in figures), key=lambda figure: len(figure.losses))
    comparable = [
        (method, policy, figure.restricted_to(smallest)) for method, policy, figure in figures
    ]
    lowest = min(
        (figure for *_, figure in comparable), key=lambda figure: figure.perplexity or math.inf
    )
    return sorted(
        Measurement(
            figure.perplexity or math.inf,
            method,
            policy,
            (method, policy) == displayed,
            figure.relative_change(lowest)[1],
            figure.is_held_out,
        )
        for method, policy, figure in comparable
    )


def _order(policy: str, recipe: lrcore.Recipe) -> int:
    return 0 if policy == recipe.policy else 1 if policy == UNIFORM else 2


def _shares_by_method(
    store: Store, recipe: lrcore.Recipe
) -> dict[str, dict[str, PolicyShares] | None]:
    recipes = store.recipes_by_method(recipe)
    return {method_recipe.method: policy_shares(store, method_recipe) for method_recipe in recipes}


def policy_shares(store: Store, recipe: lrcore.Recipe) -> dict[str, PolicyShares] | None:
    """Return the plans of all policies that the cached factors of a method support.

    Returns None without factors, and {} if the budget cannot be met.
    """
    for base in (recipe, recipe.with_(policy=UNIFORM)):
        if store.peek_factors(base) is not None:
            key = plan_key(store.factors_recipe(base), recipe)
            return store.objects.get("lines", key, partial(_plans, store, base, recipe))
    return None


def _plans(store: Store, base: lrcore.Recipe, recipe: lrcore.Recipe) -> dict[str, PolicyShares]:
    plans = {}
    for row in lrcore.list_policies():
        options = recipe.policy_options if row["name"] == recipe.policy else {}
        policy_recipe = recipe.with_(policy=row["name"], policy_options=options)
        try:
            plan = store.plan_from(base, policy_recipe)
        except lrcore.InputError:  # missing probes, or more than this method can remove
            continue
        factors = store.peek_factors(base)
        if plan is not None and factors is not None:
            key = figure_key(factors, policy_recipe, plan)
            plans[row["name"]] = PolicyShares(plan.kept_by_layer(), plan.budget, key)
    return plans


def live_requests(store: Store, recipe: lrcore.Recipe, browser: Hashable) -> list[LiveRequest]:
    """Return the requests that rank all methods with cached factors.

    Each method is measured with the policy of the recipe and with uniform ranks.
    """
    requests = []
    for method_recipe in store.recipes_by_method(recipe):
        for make in (store.live_request, store.live_request_uniform):
            try:
                request = make(method_recipe, browser)
            except lrcore.InputError:  # more than this method can remove
                continue
            if request is not None:
                requests.append(request)
    budgets = {
        request.plan.budget for request in requests if request.recipe.method == recipe.method
    }
    return [request for request in requests if request.plan.budget in budgets]
