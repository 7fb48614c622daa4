"""Words of targets: what will run the compressed model."""

import lrcore

COSTS = (
    "At this budget perplexity is predicted to be {:.3f}; {:.3f} where any form may be used "
    "({:+.1%})."
)


def of_target(name: str) -> str:
    """What a target is, and what it runs natively."""
    target = lrcore.TARGETS[name]
    even = ", the same in all layers" if target.even else ""
    return f"{name} ({target.about}) runs {target.runs}{even}."
