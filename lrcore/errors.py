"""The two exceptions a caller is meant to catch."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """What was asked for cannot be done.

    The message says what was got, the likely cause, and what to do next.
    """


class Cancelled(Exception):
    """Raised by a progress callback to stop the work at the next layer.

    Finished layers stay in the cache.
    """


def unknown(kind: str, got: str, known: Iterable[str], hint: str = "") -> InputError:
    """An InputError for a name that is in no table, with the nearest known name suggested."""
    names = sorted(known)
    near = get_close_matches(got.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    suggestion = next(
        (f" Did you mean '{name}'?" for name in names if near and name.lower() == near[0]), ""
    )
    return InputError(
        f"Unknown {kind} '{got}'.{suggestion} Known: "
        f"{', '.join(names)}.{' ' + hint if hint else ''}"
    )
