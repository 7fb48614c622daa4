"""LEMS, layer-wise error model search (Thoma et al., ICML 2026): the ranks of least modeled error.

The error of a slot at a rank is its loss at a reference rank, measured on the model, times the
ratio of its spectrum's tails at the two ranks, and times `1 + gamma h_alpha(depth)`: an error in an
early layer disturbs all later layers. lrcore/compression/evidence/error_model.py measures the
losses and searches alpha and gamma.

Error model and ranks on offer are those of the paper's released code. The code minimizes the sum by
an integer linear program with Gurobi; here `exact.py` finds the same optimum.
"""

import numpy as np

from ...layers.spectra import Slot, Spectrum
from ...system.settings import NoOptions
from ..budget import Budget, Offer
from ..evidence import ErrorModel, Evidence
from .exact import least_sum_exactly
from .multiplier import spend_rest
from .policy import Policy, Targets

# Ranks on offer, as in the released code: multiples of 8 that keep at most 0.95 of the price, and
# at least 0.3 of it, or 0.1 if the budget keeps less than half; and the full rank.
MULTIPLE, MOST = 8, 0.95
LEAST, LEAST_OF_SMALL_BUDGETS, SMALL_BUDGET = 0.3, 0.1, 0.5
FLAT = 1e-6  # least share of the squared spectrum that counts as the tail at the reference rank


def lems(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Minimize the sum of the modeled errors within the budget, exactly, among the ranks on offer.

    Evidence "error_model". If the smallest ranks on offer exceed the budget, all ranks of the slots
    are on offer. The remainder of the budget goes, in the smallest steps of the slots, to the slot
    that gains most per price; with a rank_multiple of 8 in the recipe these steps are of 8 ranks,
    too.

    Raises InputError if the error model was not measured.
    """
    model: ErrorModel = evidence.get("error_model")
    spectra = evidence.spectra
    weights = depth_weights(model.layers, model.alpha, model.gamma)
    offers = {slot: budget.offer(s.cost) for slot, s in spectra.items()}
    prices = {slot: offer.float_prices for slot, offer in offers.items()}
    errors = {
        slot: weights[slot[0]] * modeled_errors(s, offers[slot], model)
        for slot, s in spectra.items()
    }
    positions = {slot: _positions(offer, budget.keep) for slot, offer in offers.items()}
    if sum(prices[slot][chosen].min() for slot, chosen in positions.items()) > budget.limit:
        positions = {slot: np.arange(len(values)) for slot, values in prices.items()}
    selected = least_sum_exactly(
        {slot: errors[slot][chosen] for slot, chosen in positions.items()},
        {slot: prices[slot][chosen] for slot, chosen in positions.items()},
        spectra,
        budget.limit,
    )
    choice: dict[Slot, int] = {slot: int(positions[slot][i]) for slot, i in selected.items()}
    spent = sum(float(prices[slot][i]) for slot, i in choice.items())
    spend_rest(choice, errors, prices, budget.limit - spent)
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def depth_weights(layers: int, alpha: float, gamma: float) -> np.ndarray:
    """Return `1 + gamma h_alpha(l)` for each layer l, [layers], float64, >= 1.

    `h_alpha(l)` is the sum of `(k + 1) ** -alpha` over the layers k >= l, rescaled to fall from 1
    at the first layer to 0 at the last. alpha = 0: linear in depth.
    """
    terms = np.arange(1, layers + 1, dtype=np.float64) ** -alpha
    sums = np.cumsum(terms[::-1])[::-1] - terms[-1]
    weights: np.ndarray = 1 + gamma * sums / max(float(sums[0]), 1e-12)  # 0 / 0 of a single layer
    return weights


def modeled_errors(s: Spectrum, offer: Offer, model: ErrorModel) -> np.ndarray:
    """Return the error of a slot at each rank on offer, without the depth, [ranks], nats/token.

    The measured increase at the reference rank times `tail(rank) / tail(reference rank)`; 0 at full
    rank.
    """
    positions = np.minimum(np.array(offer.ranks) // s.grain, len(s.values))
    tails = s.remaining_losses[positions]
    reference = model.references.get(s.slot)
    if reference is None or s.tail(0) == 0:  # the slot has only its full rank, or is zero
        return np.zeros_like(tails)
    errors: np.ndarray = reference.increase * tails / max(s.tail(reference.rank), FLAT * s.tail(0))
    return errors


def _positions(offer: Offer, keep: float) -> np.ndarray:
    """Return the indices of the ranks of an offer that the search uses, ascending, int64."""
    ranks, shares = np.array(offer.ranks), offer.float_prices / offer.dense
    least = LEAST if keep >= SMALL_BUDGET else LEAST_OF_SMALL_BUDGETS
    is_used = (ranks % MULTIPLE == 0) & (shares >= least) & (shares <= MOST)
    is_used[-1] = True
    positions: np.ndarray = is_used.nonzero()[0]
    return positions


POLICY = Policy(
    "lems",
    "Least modeled error, weighted by depth: one probe per slot and ten measured plans (LEMS).",
    lems,
    needs="error_model",
)
