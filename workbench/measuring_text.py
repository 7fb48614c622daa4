"""What the page says of what is measured on the model only where that is asked for."""

import math

from .numbers import count

MEASURE_FIRST = (
    "{} shares the budget by what it measures on this model. Until then the ranks are those of {}, "
    "drawn pale."
)
TIME_FIRST = (
    "What layers take at each rank is measured on this machine first. Until then the budget is one "
    "of parameters, and the ranks are those of {1}, drawn pale."
)
MEASURES_NOW = "{} is being measured on this model: see above. Until then: the ranks of {}."
SPECTRUM_AND_LOSS = (
    " Below: what the spectrum says against what the loss says; over {} slots their rank "
    "correlation is {:.2f}."
)
PROBE_FIRST = (
    "The increase in loss is measured on the model: every slot of {} alone, truncated to four "
    "ranks."
)
PROBES_NOW = "The slots of {} are being probed: see above. The map appears here."


MORE_TOKENS = count(8192)  # see `live.MORE`
MORE = f"Measure on {MORE_TOKENS} tokens"
MORE_NOW = f"measuring {MORE_TOKENS} tokens…"


def run(seconds: float | None) -> str:
    """The button that starts it; None: nobody knows how long it takes."""
    return "Run" if seconds is None else f"{roughly(seconds)} · Run"


def roughly(seconds: float) -> str:
    """A time that is known from a sample, so that no digit says more than is known."""
    if seconds < 50:
        return f"about {max(5, 5 * math.ceil(seconds / 5))} s"
    minutes = math.ceil(seconds / 60)
    if minutes >= 90:
        return f"about {seconds / 3600:.0f} h"
    return f"about {minutes if minutes < 10 else 5 * math.ceil(minutes / 5)} min"
