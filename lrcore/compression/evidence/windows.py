"""Which windows of the calibration text serve for what, besides the moments: probing slots, and
checking the plans that the probes lead to.
"""

from dataclasses import dataclass

from torch import Tensor

from ...calibration.calibrate import Calibration
from .losses import LENGTH, WINDOWS

# Where the text has fewer windows aside than this share of those wanted, a mean over them is noise.
ENOUGH = 0.5


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows [n, length] of the calibration text, n <= 32, cut to 128 tokens.

    probing: of the probes. held_out: whether the moments have not seen them. checking: of what is
    measured of whole plans. apart: whether neither moments nor probes have seen those.
    """

    probing: Tensor
    checking: Tensor
    held_out: bool
    apart: bool


def windows_of(calibration: Calibration) -> Windows:
    """As many windows of each kind as the calibration has, but 8 to 32, of the same text.

    Of the windows aside every second one is kept for checking. Where there are too few for both,
    all serve for both; where there are too few for one, the calibration's own windows do.
    """
    own, aside = calibration.tokens[:WINDOWS, :LENGTH], calibration.aside[:, :LENGTH]
    if len(aside[1::2]) >= ENOUGH * len(own):
        return Windows(aside[::2][:WINDOWS], aside[1::2][:WINDOWS], held_out=True, apart=True)
    if len(aside) >= ENOUGH * len(own):
        return Windows(aside[:WINDOWS], aside[:WINDOWS], held_out=True, apart=False)
    return Windows(own, own, held_out=False, apart=False)
