"""SVD-LLM v2's allocation (Wang et al., NAACL 2025).

Layers with a large loss at the uniform share keep more, type by type.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...layers.spectra import Spectrum
from ...system.settings import option
from ..budget import Budget, rank_for
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import CAP, by_component, in_proportion

LEVEL = 5.0  # about the logarithm of the loss of a small model on about ten thousand tokens
LEAST = 1e-12  # share of the largest loss of a type below which a loss counts as zero


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
        "largest share that a layer may lose; the other layers share the excess",
        low=0.05,
        high=1.0,
    )


def svd_llm_v2(evidence: Evidence, budget: Budget, options: SvdLlmV2Options) -> Targets:
    """Within each type of matrix (or component), remove shares in proportion to `1 / log L_l`.

    Each type loses the requested share. L_l is the root of the truncation loss of layer l at the
    uniform share, `|W X - W^ X|_F` for whitened matrices. The logarithm of such a loss depends on
    its unit and on the number of tokens, and is negative below one. So losses are relative to the
    smallest of the type, which counts as e^level: `log L_l = level + log (L_l / min L)`. No layer
    loses more than the share cap; the other layers of the type share the excess, in proportion.
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
    """Return `log (L / min L)` of losses >= 0 of a type, [n], >= 0; zeros for all-zero losses."""
    floor = LEAST * max(losses)
    losses = [max(loss, floor) for loss in losses] if floor > 0 else [1.0] * len(losses)
    return [math.log(loss / min(losses)) for loss in losses]


def uniform_loss(s: Spectrum, budget: Budget) -> float:
    """Return the loss of a slot if all slots keep the same share of their price."""
    return s.tail(rank_for(s.cost, budget.keep, budget, nearest=False))


POLICY = Policy(
    "svd_llm_v2",
    "Per type of matrix, layers lose in proportion to 1 / log of their loss at the uniform share "
    "(SVD-LLM v2).",
    svd_llm_v2,
    options=SvdLlmV2Options,
)
