"""How fast short measurements of the loss run here and now."""

import time

import torch

from ...calibration.calibrate import Calibration
from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from .losses import BATCH, LENGTH, mean_loss

QUICK = 0.3  # seconds: where one window takes less, batches are timed
TIMES, ENOUGH = 3, 1.0  # at most so many passes are timed, and none more after so many seconds


@torch.inference_mode()
def seconds_per_token(model: LoadedModel, calibration: Calibration) -> float:
    """Of the loss of the whole model on calibration windows, cut to 128 tokens: the least of some
    passes, since whatever else runs makes a pass slower and none faster.

    One window, or a batch of 8 where one takes little. The first pass, which waits for what is done
    once, is not counted.
    """
    network = clone(model.network)

    def timed(windows: int) -> tuple[float, int]:
        """Seconds, and tokens."""
        tokens = calibration.tokens[:windows, :LENGTH].to(network.device)
        hidden = LayerStream(network, tokens, BATCH).hidden
        begin = time.perf_counter()
        mean_loss(network, 0, hidden, tokens.split(BATCH))  # a number: the device has ended
        return time.perf_counter() - begin, tokens.numel()

    timed(1)
    passes = [timed(1)]
    windows = 1
    if passes[0][0] < QUICK:
        passes, windows = [], BATCH
    while len(passes) < TIMES and sum(seconds for seconds, _ in passes) < ENOUGH:
        passes.append(timed(windows))
    seconds, tokens = min(passes)
    return seconds / tokens
