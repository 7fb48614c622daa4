"""Jobs that choose the method or the size by measurement, and open the answers of their run."""

import math
from dataclasses import dataclass
from typing import ClassVar

import lrcore

from .. import words
from ..base import numbers
from ..state.job import Job, Reporter
from ..state.keys import (
    BYTES,
    DEFAULTS,
    PROBED,
    predicted_recipe,
    with_uniform_policy,
    without_measurements,
)
from ..state.live import LiveRequest
from ..state.store import Store
from .measuring import load_dense, measure_speeds
from .models import (
    compressed,
    deleted_if_canceled,
    log_notices,
    run_name,
    save_and_evaluate,
)
from .ratio_search import MOST_TRIES, Increase, interpolated, largest_ratio

# Methods and policies that are compared with the default on a small model: the best of
# docs/choosing.md for weights, and the default method with measured ranks.
CANDIDATES = (("a3", "probed"), ("modegpt", "probed"), ("fused", "probed"))
CHOICE = ("method", "policy", "options", "policy_options", "component_ratios", "rank_overrides")
PROBE_SECONDS = 60.0  # longest estimated time of the measurements of a policy
SMALL_RATIO = 0.05  # that all methods can remove
WINDOWS = 32  # of the measurement, if the form has none


@dataclass(frozen=True)
class ShrinkJob(Job):
    """Compression to a size. On a small model, several methods are measured and the best is used.

    A recipe with another method, policy or option than the default is used as it is.
    """

    kind: ClassVar[str] = "shrink"
    is_unique: ClassVar[bool] = True
    opens_answers: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = (
        words.compress.ANALYZE_PART,
        words.compress.CHOICE_PART,
        words.compress.COMPRESS_PART,
        words.compress.MEASURE_PART,
    )

    recipe: lrcore.Recipe
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        return words.compress.TO_SIZE.format(
            self.recipe.model, numbers.size_left(self.recipe.ratio)
        )

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        reporter.part = words.compress.ANALYZE_PART
        dense = load_dense(store, self.recipe, reporter, self.evaluation)
        store.analysis(self.recipe, reporter.progress)
        recipe = choose_method(store, reporter, self.recipe, dense)
        reporter.part = words.compress.COMPRESS_PART
        small = compressed(store, reporter, recipe, dense)
        return save_and_measure(store, reporter, recipe, dense, small, self.evaluation)


@dataclass(frozen=True)
class SmallestJob(Job):
    """Search for the smallest size whose perplexity increases by at most a fraction.

    The sizes follow the predicted perplexities, and each is compressed and measured.
    """

    kind: ClassVar[str] = "smallest"
    is_unique: ClassVar[bool] = True
    opens_answers: ClassVar[bool] = True

    recipe: lrcore.Recipe
    evaluation: lrcore.EvaluationSettings | None = None
    increase: float = 0.02

    @property
    def title(self) -> str:
        return words.compress.SMALLEST.format(
            self.recipe.model, numbers.relative_change(self.increase, 0)
        )

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        """Run the search. Raises InputError if no measured size is within the increase."""
        settings = self.evaluation or lrcore.EvaluationSettings(self.recipe.data, WINDOWS)
        dense = load_dense(store, self.recipe, reporter, settings)
        limit, increases = math.log1p(self.increase), dict[float, float]()
        models: dict[float, lrcore.LoadedModel] = {}  # the smallest within the limit

        def measure(ratio: float) -> float:
            reporter.part = words.compress.TRY.format(len(increases) + 1, MOST_TRIES)
            small = compressed(store, reporter, self.recipe.with_(ratio=ratio), dense)
            comparison = lrcore.compare(dense, small, settings, progress=reporter.progress)
            increases[ratio] = comparison.delta
            reporter.add_log(words.compress.MEASURED_SIZE.format(ratio, change(comparison.delta)))
            if comparison.delta <= limit:
                models.clear()
                models[ratio] = small
            return comparison.delta

        ratio = largest_ratio(measure, prediction(store, reporter, self.recipe), limit)
        if ratio is None:
            lowest = min(increases)
            raise lrcore.InputError(
                words.compress.NOTHING_WITHIN.format(
                    numbers.relative_change(self.increase, 0), lowest, change(increases[lowest])
                )
            )
        recipe = self.recipe.with_(ratio=ratio)
        return save_and_measure(store, reporter, recipe, dense, models[ratio], settings)


def change(increase: float) -> str:
    """Return the relative change in perplexity of an increase in loss (nats/token)."""
    return numbers.relative_change(math.expm1(increase))


def save_and_measure(
    store: Store,
    reporter: Reporter,
    recipe: lrcore.Recipe,
    dense: lrcore.LoadedModel,
    small: lrcore.LoadedModel,
    evaluation: lrcore.EvaluationSettings | None,
) -> list[str]:
    """Save a model as a run, measure its perplexity and speed, and return its id."""
    log_notices(reporter, recipe, small)
    reporter.part = words.compress.MEASURE_PART
    ids = save_and_evaluate(store, reporter, recipe, run_name(recipe), small, evaluation)
    run = store.runs.get(ids[0])
    with deleted_if_canceled(store, run):
        measure_speeds(store, dense, [run], reporter)
    return ids


def choose_method(
    store: Store, reporter: Reporter, recipe: lrcore.Recipe, dense: lrcore.LoadedModel
) -> lrcore.Recipe:
    """Return the recipe with the method and policy of the lowest perplexity on a small sample.

    The recipe is returned as it is if it differs from the default in one of CHOICE, or if its model
    is too large to be measured automatically. With a budget of bytes, the default policy is that of
    the page, which chooses ranks and bits together.
    """
    text, default = words.compress, DEFAULTS
    if recipe.budget == BYTES and recipe.policy == PROBED:
        default = DEFAULTS.with_(policy=PROBED)
    if any(getattr(recipe, name) != getattr(default, name) for name in CHOICE):
        reporter.add_log(text.FORM_CHOICE)
        return recipe
    best, lowest, budget = recipe, math.inf, ""
    candidates = [*dict.fromkeys(((recipe.method, recipe.policy), *CANDIDATES))]
    for i, (method, policy) in enumerate(candidates):
        part = f"{text.CHOICE_PART}: {method}, {policy}"
        reporter.begin_step(part, i, len(candidates))
        candidate = recipe.with_(method=method, policy=policy)
        try:
            request = sample_request(store, reporter, candidate)
        except lrcore.InputError as error:  # the method cannot remove as much
            reporter.add_log(text.CANDIDATE.format(method, policy, error))
            continue
        if request is None and not budget:
            reporter.add_log(text.NOT_COMPARED)
            return recipe
        if request is None:
            reporter.add_log(text.CANDIDATE.format(method, policy, text.TAKES_LONG))
            continue
        budget = budget or request.plan.budget
        if request.plan.budget != budget:
            reporter.add_log(text.CANDIDATE.format(method, policy, text.OTHER_BUDGET))
            continue
        perplexity = sample_perplexity(store, reporter, request, dense)
        if perplexity < lowest:
            best, lowest = candidate, perplexity
    reporter.add_log(text.BEST.format(best.method, best.policy))
    return best


def sample_request(store: Store, reporter: Reporter, recipe: lrcore.Recipe) -> LiveRequest | None:
    """Return the measurement of a recipe on a small sample; None if it takes too long.

    Raises InputError if the method cannot meet the budget.
    """
    if not can_probe(store, reporter, recipe):
        return None
    store.factors(recipe, reporter.progress)
    return store.live_request(recipe, reporter.id)


def sample_perplexity(
    store: Store, reporter: Reporter, request: LiveRequest, dense: lrcore.LoadedModel
) -> float:
    """Return the measured perplexity of a request; infinity if the measurement failed."""
    store.live.measure(request, dense, reporter.progress)
    figure, recipe = store.live.peek(request.key), request.recipe
    value = None if figure is None else figure.perplexity
    result = numbers.perplexity(value) if value else words.compress.NOT_SAMPLED
    reporter.add_log(words.compress.CANDIDATE.format(recipe.method, recipe.policy, result))
    return value or math.inf


def can_probe(store: Store, reporter: Reporter, recipe: lrcore.Recipe) -> bool:
    """Return True if the measurements of a policy are estimated to take at most PROBE_SECONDS."""
    store.factors(with_uniform_policy(recipe), reporter.progress)
    if not recipe.offload:  # a forward pass would read the full model from disk
        store.pace(recipe)
    missing = store.missing_evidence(recipe)
    if missing is None:
        return True
    return missing.seconds is not None and missing.seconds <= PROBE_SECONDS


def prediction(store: Store, reporter: Reporter, recipe: lrcore.Recipe) -> Increase:
    """Return the predicted increase in loss, from probes if they take little time."""
    probed = predicted_recipe(recipe)
    if not can_probe(store, reporter, probed):
        return interpolated((), 1.0)
    factors = store.factors(probed, reporter.progress)
    plain = without_measurements(recipe).with_(ratio=SMALL_RATIO)
    dense = lrcore.allocate(factors, plain).dense_perplexity
    return interpolated(lrcore.predicted_curve(factors, recipe) if dense else (), dense or 1.0)
