"""Windows for probes and for checking plans, and estimates from the first few windows.

A change of the model costs more on some windows than on others. Once a few changes were measured on
all windows, the relative cost of each window is known. Other changes are then measured on the first
few windows, and their means are divided by the relative cost of these windows: the ratio estimator
(Cochran, Sampling Techniques, 1977, chapter 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import torch
from torch import Tensor

from ..calibration.calibrate import Calibration
from .losses import LENGTH, WINDOWS

# If the text has fewer unseen windows than this share of the calibration windows, their mean is
# noise, and the calibration windows are used instead.
MIN_UNSEEN_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class ProbeWindows:
    """Windows [n, length] of the calibration text, n <= 32, shortened to 128 tokens.

    probing: for probes of slots. checking: for measurements of complete plans. is_held_out: whether
    the moments have not seen the probing windows. is_checking_unseen: whether neither moments nor
    probes have seen the checking windows.
    """

    probing: Tensor
    checking: Tensor
    is_held_out: bool
    is_checking_unseen: bool


def select_windows(calibration: Calibration) -> ProbeWindows:
    """Return windows for probing and for checking.

    As many of each as the calibration has, limited to 8 .. 32, from unseen windows of the same
    text. Each second unseen window is for checking. If there are too few for both purposes, all
    serve both; if there are too few for one, the calibration's windows are used.
    """
    seen, unseen = calibration.tokens[:WINDOWS, :LENGTH], calibration.unseen_tokens[:, :LENGTH]
    needed = MIN_UNSEEN_SHARE * len(seen)
    probing, checking = unseen[::2], unseen[1::2]
    if len(checking) >= needed:
        return ProbeWindows(probing[:WINDOWS], checking[:WINDOWS], True, True)
    if len(unseen) >= needed:
        return ProbeWindows(unseen[:WINDOWS], unseen[:WINDOWS], True, False)
    return ProbeWindows(seen, seen, False, False)


MIN_MEAN = 1e-30  # lower bound of divisors, if nothing changed


def window_costs(changes: Sequence[Tensor]) -> Tensor:
    """Return the cost of a change on each window relative to the mean, [windows], float64, mean 1.

    changes: measurements on all windows, [windows] >= 0 each; the result is their average. Empty
    without measurements.
    """
    if not changes:
        return torch.ones(0, dtype=torch.float64)
    shares = torch.stack([change / change.mean().clamp_min(MIN_MEAN) for change in changes]).mean(0)
    return torch.ones_like(shares) if float(shares.mean()) < 0.5 else shares / shares.mean()


def mean_and_error(values: Tensor, costs: Tensor) -> tuple[float, float]:
    """Return the estimated mean over all windows and the standard error.

    values [n]: measurements on the first n windows. costs [windows]: see `window_costs`; if it has
    no further windows, the result is the plain mean. The error of a single value is the value
    itself.
    """
    count = len(values)
    if count >= len(costs):
        mean = float(values.mean())
        return mean, float(values.std()) / count**0.5 if count > 1 else mean
    share = float(costs[:count].mean().clamp_min(MIN_MEAN))
    mean = float(values.mean()) / share
    if count == 1:
        return mean, mean
    ratio_error = float((values - mean * costs[:count]).std()) / share / count**0.5
    sample_error = mean * float(costs.std()) / len(costs) ** 0.5  # all windows are a sample, too
    return mean, hypot(ratio_error, sample_error)
