"""Words of bases that neighbouring layers share."""

import lrcore

from .text import count

SHARE = (
    "**Share a basis** (Basis Sharing). Queries, keys, values, gate and up of neighbouring layers "
    "are low-rank pairs with one `down` factor for all of them; the KV cache stays."
)
RATIO = "share of the decoder parameters"
GROUP, GROUP_INFO = "Layers to a basis", "1: a basis for every layer, as SVD-LLM"
TO_BE_SHARED = (
    "The decoder goes from {} to {} parameters ({:.1%} fewer), with {} layers to a basis."
)
SHARED = (
    "{group} neighbouring layers share a basis: requested to remove {requested:.1%} of the decoder "
    "parameters, removed {removed:.1%}."
)


def to_be_shared(left: int, dense: int, group: int) -> str:
    """What sharing would leave of the decoder-linear parameters."""
    return TO_BE_SHARED.format(count(dense), count(left), 1 - left / dense, group)


def shared(step: lrcore.SharedBases) -> str:
    """What sharing did."""
    return SHARED.format(group=step.group, requested=step.requested, removed=step.removed)
