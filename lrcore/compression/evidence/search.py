"""Evidence "search": shares of the layers by a small search on the loss of calibration tokens
(A3-mix; A3, appendix F, which gives no more than that).

The search starts from equal shares and moves whole plans that meet the budget: first one layer at a
time is favoured, to see which gains most; then the layers that gained most are raised and those
that gained least are lowered by the same step. The best plan is kept where the loss falls;
otherwise the step is halved.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ...cache import keep_value, read_as
from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...progress import Progress
from ...recipe import Recipe
from ...spectra import Slot
from ..allocate import allocate, allocation_key
from ..factorise import Factorisation, truncate_layer
from .cache import cache_file
from .kind import EvidenceKind
from .losses import BATCH, LENGTH, WINDOWS, mean_loss

STEP, ROUNDS = 0.1, 4
LEAST = 0.05  # share that every layer keeps
Shares = tuple[float, ...]  # by layer
Ranks = dict[Slot, int]


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Shares:
    """The best shares of the layers at the recipe's budget, [layers].

    At most ROUNDS x (layers + 3) + 1 evaluations of the first 32 calibration windows, cut to 128
    tokens; kept on disk under a key of the calibration, the method, its options and the whole
    recipe.
    """
    path = _file(factors, recipe)
    layers = len(factors.layers)
    kept = read_as(path, lambda value: tuple(float(one) for one in value))
    if kept is not None and len(kept) == layers:
        return kept
    loss = cache(plan_loss(model, factors, recipe, "search"))
    shares = best_shares(layers, 1 - recipe.ratio, loss, progress)
    keep_value(path, shares)
    return shares


def plan_loss(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, evidence: str
) -> Callable[[Any], float]:
    """The mean loss (nats/token) of the first 32 calibration windows, cut to 128 tokens, in the
    model compressed by the recipe, as a function of the value of an evidence.
    """
    budget, tokens = allocation_key(recipe), factors.calibration.tokens[:WINDOWS, :LENGTH]
    stream = LayerStream(clone(model.network), tokens, BATCH)
    batches = tokens.to(model.network.device).split(BATCH)

    def loss(value: Any) -> float:
        plan = allocate(factors.with_measurement(evidence, value, budget), recipe)
        network = compressed(model, factors, plan.ranks)
        with torch.inference_mode():
            return mean_loss(network, 0, stream.hidden, batches)

    return loss


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`."""
    if _file(factors, recipe).exists():
        return 0.0
    tokens = factors.calibration.tokens[:WINDOWS, :LENGTH].numel()
    return float(tokens * (ROUNDS * (len(factors.layers) + 3) + 1))


def _file(factors: Factorisation, recipe: Recipe) -> Path:
    budget = allocation_key(recipe)
    return cache_file("searches", factors, budget, STEP, ROUNDS, WINDOWS, LENGTH)


def best_shares(
    layers: int, start: float, loss: Callable[[Shares], float], progress: Progress
) -> Shares:
    """The shares of least loss among those that the search tries, equal shares included.

    start in (0, 1): the equal share.
    """
    shares, step = (start,) * layers, STEP
    least = loss(shares)
    for number in range(ROUNDS):
        gains = []
        for layer in range(layers):
            progress("search", number * layers + layer, ROUNDS * layers)
            gains.append(least - loss(moved(shares, [layer], [], step)))
        order = sorted(range(layers), key=gains.__getitem__, reverse=True)
        sizes = sorted({1, max(1, layers // 4), max(1, layers // 2)}) if layers > 1 else []
        tries = [moved(shares, order[:size], order[-size:], step) for size in sizes]
        tries += [moved(shares, [layer], [], step) for layer in order[:1]]
        best = min(tries, key=loss)
        if loss(best) < least:
            shares, least = best, loss(best)
        else:
            step /= 2
    progress("search", ROUNDS * layers, ROUNDS * layers)
    return shares


def moved(shares: Shares, up: list[int], down: list[int], step: float) -> Shares:
    """Shares with some layers raised and some lowered by a step, within [LEAST, 1]. They need not
    meet the budget: rounding to ranks does that.
    """
    change = dict.fromkeys(down, -step) | dict.fromkeys(up, step)
    return tuple(
        min(1.0, max(LEAST, round(share + change.get(layer, 0.0), 6)))
        for layer, share in enumerate(shares)
    )


def compressed(model: LoadedModel, factors: Factorisation, ranks: Ranks) -> PreTrainedModel:
    """A clone of the network with every layer truncated to its ranks."""
    network = clone(model.network)
    for index, layer_factors in enumerate(factors.layers):
        truncate_layer(network, index, layer_factors, ranks)
    return network


KIND = EvidenceKind(
    "search",
    "Share of every layer that loses least at one budget; some short evaluations per layer, kept "
    "on disk.",
    measure,
    one_budget=True,
    tokens=tokens_run,
)
