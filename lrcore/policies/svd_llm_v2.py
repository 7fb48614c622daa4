"""SVD-LLM v2's allocation (Wang et al., NAACL 2025): layers that a uniform truncation would hurt
most lose least, type by type.
"""

import math

from ..budget import Budget, Influence, Spectra, rank_for
from ..spectra import Slot, Spectrum
from .softmax import CAP, in_proportion

# about what the bare losses of the paper's formula have on a small model and some ten thousand
# tokens
LEVEL = 5.0
LEAST = 1e-12  # of the largest loss of a type: what counts as no loss


def svd_llm_v2(
    spectra: Spectra,
    budget: Budget,
    temperature: float,
    influence: Influence,
    level: float = LEVEL,
    cap: float = CAP,
) -> dict[Slot, float]:
    """Within each type of matrix (or component) layer l loses a share proportional to
    `1 / log L_l`, the type the share asked for.

    L_l is the root of the truncation loss at the uniform share, `|W X - W^ X|_F` for whitened
    matrices. The logarithm of a bare loss depends on its unit and on the number of tokens, and is
    no weight at all below one; so losses are taken relative to the smallest of the type, which
    counts as e^level: `log L_l = level + log (L_l / min L)`. A large level is even. No layer loses
    more than the share cap: the excess is shared by the others of the type, in proportion.
    """
    targets = {}
    for kind in dict.fromkeys(name for _, name in spectra):
        pool = {slot: s for slot, s in spectra.items() if slot[1] == kind}
        weights = [1 / (level + excess) for excess in log_losses(pool, budget)]
        prices = [float(budget.price(s.cost, s.cost.full)) for s in pool.values()]
        lost = in_proportion(weights, 1 - budget.keep, cap, prices)
        targets |= {slot: 1 - share for slot, share in zip(pool, lost, strict=True)}
    return targets


def log_losses(pool: Spectra, budget: Budget) -> list[float]:
    """`log (L / min L)` of every slot at the uniform share of the budget; zeros where nothing is
    lost anywhere.
    """
    losses = [math.sqrt(uniform_loss(s, budget)) for s in pool.values()]
    least = LEAST * max(losses)
    losses = [max(loss, least) for loss in losses] if least > 0 else [1.0] * len(losses)
    return [math.log(loss / min(losses)) for loss in losses]


def uniform_loss(s: Spectrum, budget: Budget) -> float:
    """What a slot loses where every slot keeps the same share of its price."""
    return s.tail(rank_for(s.cost, budget.keep, budget, nearest=False))
