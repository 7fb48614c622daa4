"""What a run was measured on, as the page names it."""

from typing import Any

import lrcore

from ... import text


def protocol_of(run: lrcore.Run, evaluation: dict[str, Any]) -> str:
    """The dense model and the protocol: perplexities compare where both are the same."""
    return f"{run.recipe.model}: {text.protocol(evaluation['protocol'])}"


def evaluation_of(run: lrcore.Run, protocol: str | None) -> dict[str, Any] | None:
    """A run's evaluation under a protocol; else its newest one, None without any."""
    return next(
        (one for one in run.evaluations if protocol_of(run, one) == protocol),
        run.evaluations[-1] if run.evaluations else None,
    )
