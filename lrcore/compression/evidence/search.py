"""Evidence "search": shares of the layers from a small search on the loss of calibration tokens.

For A3-mix (A3, appendix F, which gives no more details). The search starts from equal shares and
changes complete plans that meet the budget. In each round it first raises one layer at a time, to
find the gain of each layer. Then it raises the layers of largest gain and lowers the layers of
least gain by the same step. It keeps the best plan if the loss falls; otherwise it halves the step.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.progress import Progress
from ..solve.allocate import allocate, allocation_key
from ..solve.factorize import Factorization
from .kind import EvidenceKind, cache_file
from .losses import BATCH, LENGTH, WINDOWS, mean_loss
from .plan_loss import measure_plan

STEP, ROUNDS = 0.1, 4
MIN_SHARE = 0.05  # of each layer
Shares = tuple[float, ...]  # by layer


def measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Shares:
    """Return the best shares of the layers at the recipe's budget, [layers].

    At most ROUNDS x (layers + 3) + 1 evaluations of the first 32 calibration windows, shortened to
    128 tokens. The result is cached on disk; the key covers the calibration, the method, the
    options and the recipe.
    """
    path = _file(factors, recipe)
    layers = len(factors.layers)
    cached = read_as(path, lambda value: tuple(float(share) for share in value))
    if cached is not None and len(cached) == layers:
        return cached
    loss = cache(plan_loss(model, factors, recipe, "search"))
    shares = best_shares(layers, 1 - recipe.ratio, loss, progress)
    keep_value(path, shares)
    return shares


def plan_loss(
    model: LoadedModel, factors: Factorization, recipe: Recipe, evidence: str
) -> Callable[[Any], float]:
    """Return a function from a value of an evidence to the loss of the resulting plan.

    The loss is the mean (nats/token) over the first 32 calibration windows, shortened to 128
    tokens, of the network with truncated layers.
    """
    budget, tokens = allocation_key(recipe), factors.calibration.tokens[:WINDOWS, :LENGTH]
    stream = LayerStream(clone(model.network), tokens, BATCH)
    batches = tokens.to(model.network.device).split(BATCH)

    def measure_loss(network: PreTrainedModel) -> float:
        return mean_loss(network, 0, stream.hidden, batches)

    def loss(value: Any) -> float:
        plan = allocate(factors.with_measurement(evidence, value, budget), recipe)
        return measure_plan(model, factors, plan, measure_loss)

    return loss


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of the search."""
    if _file(factors, recipe).exists():
        return 0.0
    tokens = factors.calibration.tokens[:WINDOWS, :LENGTH].numel()
    return float(tokens * (ROUNDS * (len(factors.layers) + 3) + 1))


def _file(factors: Factorization, recipe: Recipe) -> Path:
    budget = allocation_key(recipe)
    return cache_file("searches", factors, budget, STEP, ROUNDS, WINDOWS, LENGTH)


def best_shares(
    layers: int, start: float, loss: Callable[[Shares], float], progress: Progress
) -> Shares:
    """Return the shares of least loss among those that the search tries, including equal shares.

    start in (0, 1): the equal share.
    """
    shares, step = (start,) * layers, STEP
    least_loss = loss(shares)
    for number in range(ROUNDS):
        gains = []
        for layer in range(layers):
            progress("search", number * layers + layer, ROUNDS * layers)
            gains.append(least_loss - loss(moved(shares, [layer], [], step)))
        order = sorted(range(layers), key=gains.__getitem__, reverse=True)
        sizes = sorted({1, max(1, layers // 4), max(1, layers // 2)}) if layers > 1 else []
        candidates = [moved(shares, order[:size], order[-size:], step) for size in sizes]
        candidates += [moved(shares, [layer], [], step) for layer in order[:1]]
        best = min(candidates, key=loss)
        if loss(best) < least_loss:
            shares, least_loss = best, loss(best)
        else:
            step /= 2
    progress("search", ROUNDS * layers, ROUNDS * layers)
    return shares


def moved(shares: Shares, raised: list[int], lowered: list[int], step: float) -> Shares:
    """Return shares with some layers raised and some lowered by a step, within [MIN_SHARE, 1].

    The shares may miss the budget: rounding to ranks corrects that.
    """
    change = dict.fromkeys(lowered, -step) | dict.fromkeys(raised, step)
    return tuple(
        min(1.0, max(MIN_SHARE, round(share + change.get(layer, 0.0), 6)))
        for layer, share in enumerate(shares)
    )


KIND = EvidenceKind(
    "search",
    "Best share of every layer at one budget, from a search; some short evaluations per layer, "
    "cached on disk.",
    measure,
    one_budget=True,
    tokens=tokens_run,
)
