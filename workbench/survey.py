"""Every method and policy at one budget: the share of each layer that it keeps, and its perplexity
where that was measured.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lrcore

from .keys import UNIFORM, plan_key
from .live import Figure, LiveRequest, figure_key
from .store import Store


class Line(NamedTuple):
    """kept: share of every layer under one policy; budget: what its ratio counts; key: of its live
    figure.
    """

    kept: list[float]
    budget: str
    key: str


@dataclass(frozen=True)
class Survey:
    """shares {method: {policy: share kept of every layer}}. missing: methods that are not
    factorised. refused: methods that cannot meet the budget by any policy.
    """

    shares: dict[str, dict[str, list[float]]]
    missing: tuple[str, ...]
    refused: tuple[str, ...]


class Measurement(NamedTuple):
    """A measured perplexity; shown: whether these are the ranks on show; error: the standard error
    of its share above the lowest, paired by window, NaN for fewer than two; held_out: whether it
    was measured on text that calibration has not seen.
    """

    perplexity: float
    method: str
    policy: str
    shown: bool
    error: float
    held_out: bool


def survey(store: Store, recipe: lrcore.Recipe | None) -> Survey:
    """The share of every layer that each policy keeps, for each method whose factors are here."""
    by_method = {} if recipe is None else _lines_by_method(store, recipe)
    return Survey(
        {
            method: {policy: line.kept for policy, line in lines.items()}
            for method, lines in by_method.items()
            if lines
        },
        tuple(method for method, lines in by_method.items() if lines is None),
        tuple(method for method, lines in by_method.items() if lines == {}),
    )


def measurements(store: Store, recipe: lrcore.Recipe | None) -> list[Measurement]:
    """The measured perplexities of methods and policies at a recipe's budget, lowest first; of
    those whose ratio counts the same thing. Policies that choose the same ranks are one, named
    after the policy on show, else uniform. None of them where ranks were set by hand.
    """
    if recipe is None or recipe.overrides:
        return []
    by_method = _lines_by_method(store, recipe)
    counted = next((line.budget for line in (by_method[recipe.method] or {}).values()), None)
    figures: dict[str, tuple[str, str, Figure]] = {}  # by the key of the line
    for method, lines in by_method.items():
        ordered = sorted((lines or {}).items(), key=lambda one: _place(one[0], recipe))
        for policy, line in ordered:
            figure = store.live.peek(line.key) if line.budget == counted else None
            if figure is not None and figure.perplexity is not None and line.key not in figures:
                figures[line.key] = method, policy, figure
    return ranked([*figures.values()], (recipe.method, recipe.policy))


def ranked(figures: Sequence[tuple[str, str, Figure]], shown: tuple[str, str]) -> list[Measurement]:
    """Measured figures by method and policy, lowest first, all on the windows that each of them
    has: one of them may have been measured on more. shown: the method and policy on show.
    """
    if not figures:
        return []
    fewest = min((figure for *_, figure in figures), key=lambda one: len(one.losses))
    alike = [(*names, figure.on_those_of(fewest)) for *names, figure in figures]
    lowest = min((figure for *_, figure in alike), key=lambda one: one.perplexity or math.inf)
    return sorted(
        Measurement(
            figure.perplexity or math.inf,
            method,
            policy,
            (method, policy) == shown,
            figure.above(lowest)[1],
            figure.held_out,
        )
        for method, policy, figure in alike
    )


def _place(policy: str, recipe: lrcore.Recipe) -> int:
    return 0 if policy == recipe.policy else 1 if policy == UNIFORM else 2


def _lines_by_method(store: Store, recipe: lrcore.Recipe) -> dict[str, dict[str, Line] | None]:
    return {one.method: policy_lines(store, one) for one in store.by_method(recipe)}


def policy_lines(store: Store, recipe: lrcore.Recipe) -> dict[str, Line] | None:
    """The line of every policy that a method's factors serve; None while it is not factorised,
    empty where the budget cannot be met.
    """
    for base in (recipe, recipe.with_(policy=UNIFORM)):
        if store.peek_factors(base) is not None:
            key = plan_key(store.factored_by(base), recipe)
            return store.objects.get("lines", key, lambda base=base: _lines(store, base, recipe))
    return None


def _lines(store: Store, base: lrcore.Recipe, recipe: lrcore.Recipe) -> dict[str, Line]:
    lines = {}
    for row in lrcore.policies():
        options = recipe.policy_options if row["name"] == recipe.policy else {}
        one = recipe.with_(policy=row["name"], policy_options=options)
        try:
            plan = store.plan_with(base, one)
        except lrcore.InputError:  # not probed yet, or more than this method can remove
            continue
        factors = store.peek_factors(base)
        if plan is not None and factors is not None:
            key = figure_key(factors, one, plan)
            lines[row["name"]] = Line(plan.kept_by_layer(), plan.budget, key)
    return lines


def live_requests(store: Store, recipe: lrcore.Recipe, browser: Hashable) -> list[LiveRequest]:
    """What to measure so that methods can be ranked: each by the recipe's policy and with uniform
    ranks, where its factors are here.
    """
    requests = []
    for one in store.by_method(recipe):
        for make in (store.live_request, store.live_request_uniform):
            try:
                request = make(one, browser)
            except lrcore.InputError:  # more than this method can remove
                continue
            if request is not None:
                requests.append(request)
    counted = {one.plan.budget for one in requests if one.recipe.method == recipe.method}
    return [one for one in requests if one.plan.budget in counted]
