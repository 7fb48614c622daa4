"""Short measurements of the loss on calibration tokens, and their speed."""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...layers.image_tokens import IGNORED, targets
from ...layers.linalg import float64_device, to_float64
from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.partial import starting_at
from ...models.stream import LayerStream
from ..calibration.calibrate import Calibration

WINDOWS, LENGTH = 32, 128  # the first windows of the calibration, shortened to LENGTH tokens
BATCH = 8  # windows per batch
# Nats/token, in place of a loss or divergence that is NaN or infinite, for example if a truncated
# model overflows in float16: larger than any other value, and still comparable.
NON_FINITE_LOSS = 1e3


def mean_loss(
    network: nn.Module, index: int, hidden: Sequence[Tensor], batches: Sequence[Tensor]
) -> float:
    """Return the mean loss (nats/token) of a network from decoder layer `index` on.

    Patches of images are not predicted. NON_FINITE_LOSS if the mean is NaN or infinite.

    hidden: the layer's inputs [windows, tokens, d], and batches: the token ids [windows, tokens],
    in the same batches.
    """
    total, count = 0.0, 0
    for states, tokens in zip(hidden, batches, strict=True):
        with starting_at(network, index, states):
            logits = network(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        next_tokens = targets(tokens).flatten()
        total += float(cross_entropy(logits.flatten(0, 1), next_tokens, reduction="sum"))
        count += int((next_tokens != IGNORED).sum())
    return total / count if math.isfinite(total) else NON_FINITE_LOSS


@torch.inference_mode()
def window_losses(network: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean loss (nats/token) of each window of tokens [n, t], [n], float64.

    NON_FINITE_LOSS where a mean is NaN or infinite.
    """
    means = []
    for batch in tokens.split(BATCH):
        logits = network(input_ids=batch, use_cache=False).logits[:, :-1].float()
        next_tokens = targets(batch)
        token_losses = cross_entropy(logits.flatten(0, 1), next_tokens.flatten(), reduction="none")
        counts = (next_tokens != IGNORED).sum(1).clamp_min(1)
        means.append(
            to_float64(token_losses.view(len(batch), -1)).sum(1)
            / counts.to(float64_device(token_losses.device))
        )
    return replace_non_finite(torch.cat(means)).cpu()


def replace_non_finite(values: Tensor) -> Tensor:
    """Return losses or divergences [...] with NON_FINITE_LOSS for NaN and infinity."""
    return torch.where(torch.isfinite(values), values, NON_FINITE_LOSS)


QUICK_SECONDS = 0.3  # if one window takes less, batches are timed
MAX_TIMED_PASSES, MAX_TIMED_SECONDS = 3, 1.0


@torch.inference_mode()
def seconds_per_token(model: LoadedModel, calibration: Calibration) -> float:
    """Return the time of the loss of the complete model, per token of windows of 128 tokens.

    The least of a few passes, since other work on the machine can only make a pass slower. A pass
    is one window, or a batch of 8 if a window is fast. The first pass is not counted: it includes
    one-time initialization.
    """
    network = clone(model.network)

    def timed(windows: int) -> tuple[float, int]:
        """Return the seconds and the number of tokens of a pass."""
        tokens = calibration.tokens[:windows, :LENGTH].to(network.device)
        hidden = LayerStream(network, tokens, BATCH).hidden
        begin = time.perf_counter()
        mean_loss(network, 0, hidden, tokens.split(BATCH))  # a float: the device has finished
        return time.perf_counter() - begin, tokens.numel()

    timed(1)
    passes = [timed(1)]
    windows = 1
    if passes[0][0] < QUICK_SECONDS:
        passes, windows = [], BATCH
    while (
        len(passes) < MAX_TIMED_PASSES and sum(seconds for seconds, _ in passes) < MAX_TIMED_SECONDS
    ):
        passes.append(timed(windows))
    seconds, tokens = min(passes)
    return seconds / tokens
