"""One ranking of everything that can be removed: FLAP's AL-AM, and global pruning by any score."""

from dataclasses import replace

import torch
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Spectrum
from .policy import Policy, Targets
from .waterfill import fill_by_value


def global_ranking(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Heads, neurons or ranks of all slots are kept in the order of their scores while they fit
    the budget, each at its price.

    The scores are the method's own (`Spectrum.scores`). With `flap` this is the paper's AL-AM, with
    `llm_pruner` its global ranking, with `llm_surgeon` one threshold on the rise of the loss. Where
    a method has none, the losses of its ranks are standardised within their slot, as FLAP does.
    """
    spectra = evidence.spectra
    scored = {slot: replace(s, values=scores_of(s)) for slot, s in spectra.items()}
    dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in spectra.items()}
    ranks = fill_by_value(scored, budget.limit, budget)
    return {slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in spectra.items()}


def scores_of(s: Spectrum) -> Tensor:
    """The scores of a slot's ranks, [full / step]; its standardised losses where it has none."""
    if s.scores is not None:
        return s.scores
    squares = s.values**2
    deviation = squares.std() if len(squares) > 1 else squares.new_zeros(())
    return (squares - squares.mean()) / torch.where(deviation > 0, deviation, 1.0)


POLICY = Policy(
    "global_ranking",
    "One ranking of the heads, neurons or ranks of all slots by the method's own scores, or by "
    "standardised losses (FLAP's AL-AM, global pruning).",
    global_ranking,
)
