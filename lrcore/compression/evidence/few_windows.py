"""The mean over many windows of text from a measurement on the first few of them: the ratio
estimator (Cochran, Sampling Techniques, 1977, chapter 6).

On some windows every change of the model costs more than on others. How much more is known once a
few changes were measured on all windows; the others are measured on some, and their means divided
by what those windows cost on the average.
"""

from collections.abc import Sequence
from math import hypot

import torch
from torch import Tensor

LEAST = 1e-30  # means below are taken for it: nothing changed


def window_costs(whole: Sequence[Tensor]) -> Tensor:
    """What a change costs on each window, as a share of its mean over all windows, [windows],
    float64, mean 1: the average over changes measured on all of them, [windows] >= 0 each. Of no
    change, [0].
    """
    if not whole:
        return torch.ones(0, dtype=torch.float64)
    shares = torch.stack([own / own.mean().clamp_min(LEAST) for own in whole]).mean(0)
    return torch.ones_like(shares) if float(shares.mean()) < 0.5 else shares / shares.mean()


def mean_and_error(values: Tensor, costs: Tensor) -> tuple[float, float]:
    """Estimated mean over all windows and its standard error, from the values [n] on the first n of
    them; costs [windows]: see `window_costs`; where it knows no further windows, the plain mean.
    The error of one value is the value itself.
    """
    count = len(values)
    if count >= len(costs):
        mean = float(values.mean())
        return mean, float(values.std()) / count**0.5 if count > 1 else mean
    share = float(costs[:count].mean().clamp_min(LEAST))
    mean = float(values.mean()) / share
    if count == 1:
        return mean, mean
    own = float((values - mean * costs[:count]).std()) / share / count**0.5
    common = mean * float(costs.std()) / len(costs) ** 0.5  # all windows are a sample as well
    return mean, hypot(own, common)
