"""SVD-LLM v2's allocation (Wang et al., NAACL 2025): layers that a uniform truncation would hurt
most lose least, type by type.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..budget import Budget, rank_for
from ..evidence import Evidence
from ..options import option
from ..spectra import Spectrum
from .policy import Policy, Targets, by_component
from .softmax import CAP, in_proportion

LEVEL = 5.0  # about the logarithm of a bare loss of a small model on some ten thousand tokens
LEAST = 1e-12  # of the largest loss of a type: what counts as no loss


@dataclass(frozen=True)
class SvdLlmV2Options:
    level: float = option(
        LEVEL,
        "logarithm assigned to the smallest loss of a type: small is uneven, large is even",
        low=0.1,
        high=100.0,
    )
    cap: float = option(
        CAP,
        "largest share that one layer may lose; the excess is shared by the others",
        low=0.05,
        high=1.0,
    )


def svd_llm_v2(evidence: Evidence, budget: Budget, options: SvdLlmV2Options) -> Targets:
    """Within each type of matrix (or component) layer l loses a share proportional to
    `1 / log L_l`; the type as a whole loses the requested share.

    L_l is the root of the truncation loss at the uniform share, `|W X - W^ X|_F` for whitened
    matrices. The logarithm of such a loss depends on its unit and on the number of tokens, and is
    negative below one. So losses are taken relative to the smallest of the type, which counts as
    e^level: `log L_l = level + log (L_l / min L)`. No layer loses more than the share cap: the
    excess is shared by the others of the type, in proportion.
    """
    targets: Targets = {}
    for pool in by_component(evidence.spectra).values():
        losses = [math.sqrt(uniform_loss(s, budget)) for s in pool.values()]
        weights = [1 / (options.level + excess) for excess in relative_logs(losses)]
        prices = [float(budget.price(s.cost, s.cost.full)) for s in pool.values()]
        lost = in_proportion(weights, 1 - budget.keep, options.cap, prices)
        targets |= {slot: 1 - share for slot, share in zip(pool, lost, strict=True)}
    return targets


def relative_logs(losses: Sequence[float]) -> list[float]:
    """`log (L / min L)` of losses >= 0 of one type, [n], >= 0; zeros where all losses are zero."""
    least = LEAST * max(losses)
    losses = [max(loss, least) for loss in losses] if least > 0 else [1.0] * len(losses)
    return [math.log(loss / min(losses)) for loss in losses]


def uniform_loss(s: Spectrum, budget: Budget) -> float:
    """What a slot loses where every slot keeps the same share of its price."""
    return s.tail(rank_for(s.cost, budget.keep, budget, nearest=False))


POLICY = Policy(
    "svd_llm_v2",
    "Per type of matrix, layers lose in proportion to 1 / log of their loss at the uniform share "
    "(SVD-LLM v2).",
    svd_llm_v2,
    options=SvdLlmV2Options,
)
