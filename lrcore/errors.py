"""The exceptions a caller is meant to catch, and checks that every level shares."""

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """An input or a setting that cannot be used.

    The message says what was given, the likely cause, and what to do next.
    """


class Shortage(InputError):
    """Disk or memory did not suffice, or a folder cannot be written.

    The input may be fine: once there is room, the same call goes on where it stopped.
    """


class Cancelled(BaseException):
    """Raised by a progress callback, or the check of `cancellable`, to stop; finished layers stay
    cached.

    No `Exception`: it may be raised within any library, none of which is to take it for a failure.
    """


MOST_TOKENS = 2**27  # of all windows together, 1 GB of token ids


def check_tokens_held(samples: int, seq_len: int) -> None:
    """Raise InputError for more tokens than any machine holds the hidden states of."""
    if samples * seq_len > MOST_TOKENS:
        raise InputError(
            f"{samples:,} windows of {seq_len:,} tokens are {samples * seq_len:,} tokens; at most "
            f"{MOST_TOKENS:,} can be held. Use fewer or shorter windows (samples, seq_len)."
        )


LONGEST = 4096  # characters of a path
# Line breaks and other control characters, what turns the direction of what follows, and bytes of
# a name that are no UTF-8, which Python has as half a character.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def check_name(name: str, of: str, hint: str = "") -> None:
    """Raise InputError for a text that is no name of a model or of a data set; hint: what is."""
    if len(name) > LONGEST or _UNSEEN.search(name):
        reason = "it is too long, or holds characters that nobody sees."
        begin = _UNSEEN.sub("?", name[:40])
        raise InputError(f"'{begin}...' is no name of {of}: {reason} {hint}".rstrip())


SHOWN = 200  # characters of what was given, in a sentence about it


def quoted(given: str) -> str:
    """What was given, in quotes; of a long text the beginning."""
    text = as_text(given[:SHOWN])
    return f"'{text}'" if len(given) <= SHOWN else f"'{text}...'"


def as_text(given: str) -> str:
    """A text with numbers in the place of half characters, which no stream and no page takes."""
    return given.encode("utf-8", "backslashreplace").decode()


def shown(given: object) -> str:
    """What was given as Python writes it, for a sentence about it; of much of it the beginning: a
    few lines of YAML can stand for gigabytes.
    """
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 2, SHOWN, SHOWN
    try:
        text = brief.repr(given)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def as_name(given: object) -> str:
    """What was given in the place of a name: a text as it is, anything else as Python writes it."""
    return given if isinstance(given, str) else shown(given)


_VOWELS, _SPELLED_WITH_VOWELS = frozenset("aeio"), frozenset("aefhilmnorsx")


def with_article(name: str) -> str:
    """A name of a family or a type after "a", or "an" where it begins with a vowel's sound: "an
    olmo2", "an mpt". Letters without a vowel among them are taken to be spelled out.
    """
    letters = re.match("[a-z]*", name.lower())
    spelled = letters is not None and not set(letters[0]) & set("aeiouy")
    vowels = _SPELLED_WITH_VOWELS if spelled else _VOWELS
    return f"{'an' if name[:1].lower() in vowels else 'a'} {name}"


def unknown(kind: str, got: object, known: Iterable[str], hint: str = "") -> InputError:
    """An InputError (returned, not raised) for an unknown name, which suggests the nearest one."""
    names = sorted(known)
    near = get_close_matches(str(got).lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    suggestion = next(
        (f" Did you mean '{name}'?" for name in names if near and name.lower() == near[0]), ""
    )
    return InputError(
        f"Unknown {kind} {quoted(str(got))}.{suggestion} Known: "
        f"{', '.join(names)}.{' ' + hint if hint else ''}"
    )
