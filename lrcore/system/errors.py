"""Exceptions of the package, and helpers for their messages."""

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """An invalid input or setting.

    The message names the value, the likely cause and the remedy.
    """


class ResourceError(InputError):
    """The disk or the memory is full, or a folder is not writable.

    With more space, the same call continues after the last finished layer.
    """


class Cancelled(BaseException):
    """Raised by a progress callback or by the check of `cancellable` to stop; finished layers stay
    cached.

    A BaseException, so that no library handles it as a failure.
    """


MAX_TOKENS = 2**27  # of all windows, 1 GB of token ids


def check_tokens_held(samples: int, seq_len: int) -> None:
    """Raise InputError for more tokens than `MAX_TOKENS`, whose hidden states exceed any memory."""
    if samples * seq_len > MAX_TOKENS:
        raise InputError(
            f"{samples:,} windows of {seq_len:,} tokens are {samples * seq_len:,} tokens; the "
            f"maximum is {MAX_TOKENS:,}. Use fewer or shorter windows."
        )


MAX_PATH = 4096  # characters of a path
# Line breaks, control characters, marks of text direction, and bytes that are not UTF-8, which
# Python represents as surrogates.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def check_name(name: str, of: str, hint: str = "") -> None:
    """Raise InputError for a text that cannot be the name of a model or of a data set.

    of: "a model" or "a data set". hint: last sentence of the message.
    """
    if len(name) > MAX_PATH or _INVISIBLE.search(name):
        reason = "it is too long or contains invisible characters."
        begin = _INVISIBLE.sub("?", name[:40])
        raise InputError(f"'{begin}...' is not a valid name of {of}: {reason} {hint}".rstrip())


SHOWN = 200  # characters of a value in a message


def quoted(value: str) -> str:
    """Return a text in quotes, cut at `SHOWN` characters."""
    text = as_text(value[:SHOWN])
    return f"'{text}'" if len(value) <= SHOWN else f"'{text}...'"


def as_text(value: str) -> str:
    """Return a text with escapes for surrogates, which no stream can encode."""
    return value.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """Return the repr of a value in a line, cut at `SHOWN` characters: a few lines of YAML can
    stand for gigabytes.
    """
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 2, SHOWN, SHOWN
    try:
        text = brief.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    text = " ".join(text.splitlines())  # the repr of a table has many
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def as_name(value: object) -> str:
    """Return a text unchanged, and the repr of any other value, for a message about a name."""
    return value if isinstance(value, str) else shown(value)


_VOWELS, _SPELLED_WITH_VOWELS = frozenset("aeio"), frozenset("aefhilmnorsx")


def with_article(name: str) -> str:
    """Return a name after "a" or "an", by pronunciation: "a llama", "an olmo2", "an mpt".

    A name without vowels is taken to be spelled.
    """
    letters = re.match("[a-z]*", name.lower())
    is_spelled = letters is not None and not set(letters[0]) & set("aeiouy")
    vowels = _SPELLED_WITH_VOWELS if is_spelled else _VOWELS
    return f"{'an' if name[:1].lower() in vowels else 'a'} {name}"


def unknown(kind: str, name: object, valid_names: Iterable[str], hint: str = "") -> InputError:
    """Return (not raise) an InputError for an unknown name, with the nearest valid name."""
    names = sorted(valid_names)
    near = get_close_matches(str(name).lower(), [valid.lower() for valid in names], n=1, cutoff=0.5)
    suggestion = next(
        (f" Did you mean '{valid}'?" for valid in names if near and valid.lower() == near[0]), ""
    )
    return InputError(
        f"Unknown {kind} {quoted(str(name))}.{suggestion} Known: "
        f"{', '.join(names)}.{' ' + hint if hint else ''}"
    )
