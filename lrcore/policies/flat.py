"""FLAT-LLM's allocation, IPRS (Tian et al., 2025): a layer keeps in proportion to the angle by
which it turns the residual stream.
"""

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from .policy import Policy, Targets
from .softmax import in_proportion, layer_prices


def flat(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """All slots of layer l keep `phi_l = min(1, C t_l / sum t)`, t the angular influence, evidence
    "angles"; what a layer cannot take is shared by the others in proportion, until none is above 1.

    C is what makes the mean, weighted by price, the budget's. Raises InputError where the angles
    were not measured.
    """
    angles, prices = evidence.get("angles"), layer_prices(evidence, budget)
    turned = [angles[layer] for layer in prices]
    shares = in_proportion(turned, budget.keep, 1.0, list(prices.values()))
    by_layer = dict(zip(prices, shares, strict=True))
    return {slot: by_layer[slot[0]] for slot in evidence.spectra}


POLICY = Policy(
    "flat",
    "A layer keeps in proportion to the angle by which it turns the residual stream (FLAT-LLM).",
    flat,
    needs="angles",
)
