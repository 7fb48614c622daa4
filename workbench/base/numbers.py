"""Formats of numbers on the page: digits, signs and units."""

import math

THIN = "\u202f"  # narrow no-break space, between thousands
MINUS = "\u2212"
PERPLEXITY = ".4f"  # also used by Plotly


def count(number: float) -> str:
    """Format a whole number, with narrow spaces between thousands."""
    return f"{number:,.0f}".replace(",", THIN).replace("-", MINUS)


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: "1 run", "2 runs"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def signed(number: int) -> str:
    """Format a change of a whole number, with its sign."""
    return f"{number:+,}".replace(",", THIN).replace("-", MINUS)


def with_prefix(number: float) -> str:
    """Format three digits and a unit prefix: "9.83 M"."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.0f}"


def megabytes(number: float) -> str:
    """Format a size given in MB, in GB if it is large."""
    return f"{number:.3g} MB" if number < 1000 else f"{number / 1000:.3g} GB"


def milliseconds(seconds: float) -> str:
    """Format a duration given in seconds."""
    return f"{1e3 * seconds:.3f} ms"


def perplexity(value: float) -> str:
    """Format a predicted or measured perplexity."""
    return f"{value:{PERPLEXITY}}"


def short_perplexity(value: float) -> str:
    """Format a perplexity for the label of a button."""
    return f"{value:.4g}"


def nats(change: float) -> str:
    """Format a change in loss per token, with its sign."""
    return f"{change:+.2f}".replace("-", MINUS)


def small_nats(increase: float) -> str:
    """Format an increase in loss per token, which may be tiny, with two digits."""
    return f"{increase:+.2g}".replace("-", MINUS)


def influence(value: float) -> str:
    """Format a Block Influence."""
    return f"{value:.3f}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share as percent; NaN as a dash."""
    return "–" if math.isnan(share) else f"{share:.{digits}%}".replace("-", MINUS)


def size_left(ratio: float) -> str:
    """Format the size that removing a fraction leaves, as percent of the dense size."""
    return f"{100 * (1 - ratio):.4g} %"


def relative_change(change: float, digits: int = 1) -> str:
    """Format a relative change as percent, with its sign; from 1000 % on, without decimals."""
    digits = 0 if abs(change) >= 10 else digits
    return f"{change:+,.{digits}%}".replace(",", THIN).replace("-", MINUS)


def speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.{0 if tokens_per_second >= 10 else 1}f} tokens/s"
