"""How numbers read on the page: with how many digits, which signs and units."""

import math

THIN = "\u202f"  # narrow space that breaks no line, between thousands
MINUS = "\u2212"
PERPLEXITY = ".4f"  # as Plotly writes it, too


def count(number: float) -> str:
    """A whole number, with a narrow space between thousands."""
    return f"{number:,.0f}".replace(",", THIN).replace("-", MINUS)


def several(number: int, what: str) -> str:
    """So many of something: "1 run", "2 runs"."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def signed(number: int) -> str:
    """A whole number that is added or taken away."""
    return f"{number:+,}".replace(",", THIN).replace("-", MINUS)


def short(number: float) -> str:
    """Three digits and a unit, which a name such as FLOPs follows."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def megabytes(number: float) -> str:
    return f"{number:.3g} MB" if number < 1000 else f"{number / 1000:.3g} GB"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def perplexity(value: float) -> str:
    """Predicted or measured, of any model."""
    return f"{value:{PERPLEXITY}}"


def nats(change: float) -> str:
    """A change in loss, per token."""
    return f"{change:+.2f}".replace("-", MINUS)


def percent(share: float, digits: int = 1) -> str:
    """A share of something; NaN is a dash."""
    return "–" if math.isnan(share) else f"{share:.{digits}%}".replace("-", MINUS)


def share(change: float, digits: int = 1) -> str:
    """A change as a share of what it is held against, with its sign."""
    return f"{change:+.{digits}%}".replace("-", MINUS)


def speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.{0 if tokens_per_second >= 10 else 1}f} tokens/s"
