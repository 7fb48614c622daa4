"""A global ranking of heads, neurons or ranks: FLAP's AL-AM, and global pruning by any score."""

from dataclasses import replace

import torch
from torch import Tensor

from ...layers.spectra import Spectrum
from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .waterfill import fill_by_value


def global_ranking(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep heads, neurons or ranks of all slots in the order of their scores while they fit the
    budget.

    The scores are those of the method (`Spectrum.scores`). With `flap` this is the paper's AL-AM,
    with `llm_pruner` the global ranking of the paper, with `llm_surgeon` a common threshold on the
    rise of the loss. For methods without scores, the losses of the ranks are standardized within
    each slot, as in FLAP.
    """
    spectra = evidence.spectra
    scored = {slot: replace(s, values=scores_of(s)) for slot, s in spectra.items()}
    dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in spectra.items()}
    ranks = fill_by_value(scored, budget.limit, budget)
    return {slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in spectra.items()}


def scores_of(s: Spectrum) -> Tensor:
    """Return the scores of a slot's ranks, [full / step], or standardized losses."""
    if s.scores is not None:
        return s.scores
    squares = s.values**2
    deviation = squares.std() if len(squares) > 1 else squares.new_zeros(())
    return (squares - squares.mean()) / torch.where(deviation > 0, deviation, 1.0)


POLICY = Policy(
    "global_ranking",
    "One ranking of the heads, neurons or ranks of all slots by the method's own scores, or by "
    "standardized losses (FLAP's AL-AM, global pruning).",
    global_ranking,
)
