"""FLAT-LLM's allocation, IPRS (Tian et al., 2025).

Layers keep in proportion to the angle by which they rotate the residual stream.
"""

from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import in_proportion, layer_prices


def flat(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep `phi_l = min(1, C t_l / sum t)` of all slots of layer l, t the angular influence.

    Evidence "angles". The excess of a layer is shared by the other layers, in proportion. C makes
    the mean, weighted by price, equal to the budget's share. Raises InputError if the angles were
    not measured.
    """
    angles, prices = evidence.get("angles"), layer_prices(evidence, budget)
    layer_angles = [angles[layer] for layer in prices]
    shares = in_proportion(layer_angles, budget.keep, 1.0, list(prices.values()))
    by_layer = dict(zip(prices, shares, strict=True))
    return {slot: by_layer[slot[0]] for slot in evidence.spectra}


POLICY = Policy(
    "flat",
    "Layers keep in proportion to the angle by which they rotate the residual stream (FLAT-LLM).",
    flat,
    needs="angles",
)
