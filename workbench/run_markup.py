"""Pieces of HTML that show what became of runs."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 240, 44  # of a curve, in units that the page stretches
MOST_POINTS = 120


def curve(losses: Sequence[float], what: str = "cross-entropy at each step, nats per token") -> str:
    """A line of losses with the first and the last one beside it; nothing for fewer than two."""
    if len(losses) < 2:
        return ""
    low, high = min(losses), max(losses)
    step = max(1, len(losses) // MOST_POINTS)
    kept = sorted({*range(0, len(losses), step), len(losses) - 1})
    points = " ".join(
        f"{WIDTH * i / (len(losses) - 1):.1f},"
        f"{2 + (HEIGHT - 4) * (1 - (losses[i] - low) / ((high - low) or 1)):.1f}"
        for i in kept
    )
    said = f"{losses[0]:.3f} → {losses[-1]:.3f}"
    return (
        f"<figure class='curve'><svg viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none' "
        f"role='img' aria-label='{escape(what, quote=True)}: {said}'>"
        f"<polyline points='{points}'/></svg>"
        f"<figcaption><b>{said}</b> {escape(what)}, {len(losses)} steps</figcaption></figure>"
    )
