"""Every method and policy at the budget on show: the share of each layer that it keeps, and its
perplexity where that was measured.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import lrcore

from . import markup, plots, text
from .keys import factor_key
from .live import Wish, affordable, key_of

if TYPE_CHECKING:
    from .session import Session

EVEN = lrcore.Recipe().policy


class Line(NamedTuple):
    """kept: share of every layer under this policy; budget: what its ratio counts; key: of its
    live figure.
    """

    kept: list[float]
    budget: str
    key: str


class Measured(NamedTuple):
    perplexity: float
    method: str
    policy: str
    shown: bool  # whether these are the ranks on show


def surveyed(session: "Session", recipe: lrcore.Recipe | None) -> tuple[str, str]:
    """The share of every layer that each policy keeps, for each method whose factors are here,
    and what is not shown.
    """
    lines: dict[str, dict[str, Line]] = {}
    missing, refused = [], []
    for asked in [] if recipe is None else session.by_method(recipe):
        own = lines_here(session, asked)
        if own:
            lines[asked.method] = own
        else:
            (missing if own is None else refused).append(asked.method)
    notes = [text.SURVEY_CONCLUDE] if lines else []
    notes += [text.SURVEY_MISSING.format(", ".join(missing))] if missing else []
    notes += [text.SURVEY_REFUSED.format(", ".join(refused))] if refused else []
    shares = {
        method: {policy: line.kept for policy, line in own.items()} for method, own in lines.items()
    }
    return plots.policy_curves(shares) if shares else "", markup.note(" ".join(notes))


def ranking(session: "Session", recipe: lrcore.Recipe | None) -> str:
    """The measured perplexities of methods and policies at this budget, lowest first; of those
    whose ratio counts the same thing.
    """
    if recipe is None or recipe.overrides:
        return ""
    lines = {asked.method: lines_here(session, asked) or {} for asked in session.by_method(recipe)}
    counted = next((line.budget for line in lines[recipe.method].values()), None)
    found = []
    for method, own in lines.items():
        for policy, line in own.items():
            figure = session.live.peek(line.key) if line.budget == counted else None
            if figure is not None and figure.perplexity is not None:
                found.append(
                    Measured(
                        figure.perplexity,
                        method,
                        policy,
                        (method, policy) == (recipe.method, recipe.policy),
                    )
                )
    return markup.ranking(sorted(found))


def lines_here(session: "Session", recipe: lrcore.Recipe) -> dict[str, Line] | None:
    """The policy lines of a recipe, kept for as long as they may be asked for again; None while
    its method is not factorised.
    """
    for base in (recipe, recipe.with_(policy=EVEN)):
        factors = session.peek_factors(base)
        if factors is not None:
            key = (factor_key(base), recipe.to_json())
            return session.shelf.get(
                "lines", key, lambda factors=factors: policy_lines(factors, recipe)
            )
    return None


def policy_lines(factors: Any, recipe: lrcore.Recipe) -> dict[str, Line]:
    """Kept share by layer under every policy that these factors serve; empty where the budget
    cannot be met.
    """
    lines = {}
    for row in lrcore.policies():
        try:
            own = recipe.policy_options if row["name"] == recipe.policy else {}
            asked = recipe.with_(policy=row["name"], policy_options=own)
            plan = lrcore.allocate(factors, asked)
        except lrcore.InputError:  # not probed yet, or more than this method can remove
            continue
        lines[row["name"]] = Line(plan.kept_by_layer(), plan.budget, key_of(factors, asked, plan))
    return lines


def wishes(session: "Session", recipe: lrcore.Recipe, browser: Any) -> list[Wish]:
    """What to measure so that methods can be ranked: each by the recipe's policy and with even
    ranks, where factors are here.
    """
    found = []
    for asked in session.by_method(recipe):
        factors = session.peek_factors(asked)
        for one in (
            (asked, asked.with_(policy=EVEN, policy_options={})) if factors is not None else ()
        ):
            if affordable(factors, one):
                try:
                    plan = lrcore.allocate(factors, one)
                except lrcore.InputError:  # more than this method can remove
                    continue
                found.append(Wish(key_of(factors, one, plan), browser, factors, one, plan))
    counted = {wish.plan.budget for wish in found if wish.recipe.method == recipe.method}
    return [wish for wish in found if wish.plan.budget in counted]
