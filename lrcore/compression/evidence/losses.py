"""Short measurements of the loss on calibration tokens, for probes, searches and shortening."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...image_tokens import IGNORED, targets
from ...models.partial import starting_at
from ...precise import exact, exact_device

# the first windows of the calibration, cut to so many tokens, in batches of so many windows
WINDOWS, LENGTH = 32, 128
BATCH = 8
# Nats/token that stand for a loss, or a divergence, that is NaN or infinite, as where a truncated
# model overflows in float16: far beyond any other, and still a number to compare and to keep.
WITHOUT_SENSE = 1e3


def mean_loss(
    network: nn.Module, index: int, hidden: Sequence[Tensor], batches: Sequence[Tensor]
) -> float:
    """Mean loss (nats/token) of the network from layer `index` on; patches are not predicted.
    WITHOUT_SENSE where that is NaN or infinite.

    hidden: the layer's inputs [windows, tokens, d] and batches: the token ids [windows, tokens], in
    the same batches.
    """
    total, count = 0.0, 0
    for states, tokens in zip(hidden, batches, strict=True):
        with starting_at(network, index, states):
            logits = network(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        after = targets(tokens).flatten()
        total += float(cross_entropy(logits.flatten(0, 1), after, reduction="sum"))
        count += int((after != IGNORED).sum())
    return total / count if math.isfinite(total) else WITHOUT_SENSE


@torch.inference_mode()
def window_losses(network: nn.Module, tokens: Tensor) -> Tensor:
    """Mean loss (nats/token) of every window of tokens [n, t], [n], float64; WITHOUT_SENSE where
    that is NaN or infinite.
    """
    means = []
    for own in tokens.split(BATCH):
        logits = network(input_ids=own, use_cache=False).logits[:, :-1].float()
        after = targets(own)
        each = cross_entropy(logits.flatten(0, 1), after.flatten(), reduction="none")
        counts = (after != IGNORED).sum(1).clamp_min(1)
        means.append(exact(each.view(len(own), -1)).sum(1) / counts.to(exact_device(each.device)))
    return sensible(torch.cat(means)).cpu()


def sensible(values: Tensor) -> Tensor:
    """Losses or divergences [...] with WITHOUT_SENSE where they are NaN or infinite."""
    return torch.where(torch.isfinite(values), values, WITHOUT_SENSE)
