"""Never worse than uniform: the ranks of a policy that is built on predictions are measured before
they are given, against uniform ranks at the same budget.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..cache import keep_value, read_as
from ..errors import InputError
from ..evidence import AgainstUniform
from ..models.layers import clone
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..plan import RankPlan
from ..policies import find_policy
from ..recipe import Recipe
from .allocate import allocate
from .evidence.cache import cache_file
from .evidence.divergence import DensePredictions
from .evidence.losses import BATCH
from .evidence.search import compressed
from .evidence.windows import windows_of
from .factorise import Factorisation

FORMAT = 2  # of the files on disk; increase it whenever what is measured changes its meaning


def settle(model: LoadedModel, factors: Factorisation, recipe: Recipe) -> RankPlan:
    """The plan of a recipe; under a policy that is checked (`Policy.checked`), uniform ranks where
    the policy's are further from the dense model by more than two standard errors.

    Both are truncated, not refit, and measured on windows that neither the moments nor the probes
    have seen, as far as the text has them: two evaluations at most, none where the ranks are the
    same or where uniform ones cannot save as much, kept on disk beside the probes.
    `RankPlan.against_uniform` has what was found. Raises InputError as `allocate` does.
    """
    plan = allocate(factors, recipe)
    if not find_policy(recipe.policy).checked:
        return plan
    try:
        uniform = allocate(factors, recipe.with_(policy="uniform", policy_options={}))
    except InputError:  # uniform ranks have the first form of every part, which saves too little
        return plan
    if plan.ranks == uniform.ranks:
        return plan
    comparison = against_uniform(model, factors, plan, uniform)
    return replace(uniform if comparison.hurts else plan, against_uniform=comparison)


def against_uniform(
    model: LoadedModel, factors: Factorisation, plan: RankPlan, uniform: RankPlan
) -> AgainstUniform:
    """How far a plan and the uniform one take the model's predictions from the dense model's."""
    windows = windows_of(factors.calibration)
    tokens = windows.checking
    ranks = [sorted([*slot, rank] for slot, rank in one.ranks.items()) for one in (plan, uniform)]
    path = cache_file("probes", factors, "against uniform", FORMAT, ranks, tokens.tolist())
    if (both := read_as(path, lambda kept: _pair(kept, len(tokens)))) is None:
        kept = _divergences(model, factors, tokens, (plan, uniform))
        keep_value(path, kept)
        both = _pair(kept, len(tokens))
    own, other = both
    error = float((own - other).std()) / len(own) ** 0.5 if len(own) > 1 else float("inf")
    return AgainstUniform(float(own.mean()), float(other.mean()), error, windows.apart)


def _pair(kept: Sequence[Sequence[float]], windows: int) -> torch.Tensor:
    """The divergences of two plans by window [2, n]. Raises ValueError for another shape."""
    pair = torch.tensor(kept, dtype=torch.float64)
    if pair.shape != (2, windows):
        raise ValueError(pair.shape)
    return pair


@torch.inference_mode()
def _divergences(
    model: LoadedModel, factors: Factorisation, tokens: torch.Tensor, plans: Sequence[RankPlan]
) -> list[list[float]]:
    """The divergences of plans from the dense model on tokens [n, t], window by window."""
    network = clone(model.network)
    dense, hidden = DensePredictions(network, tokens), LayerStream(network, tokens, BATCH).hidden
    return [
        dense.divergences(compressed(model, factors, plan.ranks), 0, hidden).tolist()
        for plan in plans
    ]
