"""Pieces of HTML that show what became of runs."""

from collections.abc import Sequence
from html import escape

from .continuation import Continuation
from .markup import MOST_NATS, shade, token

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
    change = f"{losses[0]:.3f} → {losses[-1]:.3f}"
    return (
        f"<figure class='curve'><svg viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none' "
        f"role='img' aria-label='{escape(what, quote=True)}: {change}'>"
        f"<polyline points='{points}'/></svg>"
        f"<figcaption><b>{change}</b> {escape(what)}, {len(losses)} steps</figcaption></figure>"
    )


def answer(shown: Continuation) -> str:
    """An answer: grey as far as it is the dense model's, the first other token marked, and from
    there each token coloured by its change in loss.
    """
    parts, begin, first = [], shown.begin, shown.first
    for i, (words, dense, small) in enumerate(shown.tokens):
        if i < max(begin, first):
            kind = "prompt" if i < begin else "same"
            parts.append(token(words, dense, small, kind))
        else:
            parts.append(token(words, dense, small, "first" if i == first else ""))
    return f"<div class='tokens'>{''.join(parts)}</div>"


def scale(words: str) -> str:
    """What the colours mean, in words beside them."""
    steps = [MOST_NATS * i / 4 for i in range(-4, 5)]
    boxes = "".join(f"<span style='background:{shade(one)}'></span>" for one in steps)
    return (
        f"<div class='scale'><span>−{MOST_NATS}</span><span class='boxes'>{boxes}</span>"
        f"<span>+{MOST_NATS}</span><span>{escape(words)}</span></div>"
    )
