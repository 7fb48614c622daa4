"""What may follow what: one table that the checks of the core, the command line, the page and the
error messages read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError
from .history import Compressed, Healed, Quantised, Shortened, Sliced, Step, last_step


@dataclass(frozen=True)
class Rule:
    """When a step may be taken.

    needs: a step that must have been taken before, and the sentence where it was not. refused:
    steps after which it may not be taken, each with the sentence that says why. `{name}` in a
    sentence is the model's.
    """

    needs: tuple[type[Any], str] | None = None
    refused: Mapping[type[Any], str] = field(default_factory=dict)


_RANKS_BELONG = (
    "'{name}' is compressed: its ranks belong to the layers it has. Shorten the dense model, then "
    "compress it."
)
_ONE_BASIS = (
    "'{name}' is compressed or sliced already, and a second basis would undo the first. Slice the "
    "dense model."
)
MAY_FOLLOW: dict[type[Any], Rule] = {
    Compressed: Rule(),
    Healed: Rule(
        (
            Compressed,
            "'{name}' is no compressed model: no recipe came with it. Give the folder that "
            "`compress --out` wrote.",
        ),
        {
            Quantised: "There is nothing to train: '{name}' is quantised, and quantised weights "
            "are not trained; heal first, then quantise."
        },
    ),
    Quantised: Rule(
        None,
        {
            Quantised: "'{name}' is quantised already. Quantise the model that it was made of.",
        },
    ),
    Shortened: Rule(
        None, {Compressed: _RANKS_BELONG, Quantised: _RANKS_BELONG, Sliced: _RANKS_BELONG}
    ),
    Sliced: Rule(None, {Compressed: _ONE_BASIS, Quantised: _ONE_BASIS, Sliced: _ONE_BASIS}),
}


def refusal(step: type[Any], history: Sequence[Step], name: str) -> str | None:
    """Why a step may not follow a history, in one sentence about the model `name`; None where it
    may.

    Only what happened since the last compression counts, which writes every matrix anew.
    """
    rule, since = MAY_FOLLOW[step], _since_compressed(history)
    if rule.needs is not None and last_step(since, rule.needs[0]) is None:
        return rule.needs[1].format(name=name)
    sentence = next(
        (why for kind, why in rule.refused.items() if last_step(since, kind) is not None), None
    )
    return sentence and sentence.format(name=name)


def check_may_follow(step: type[Any], history: Sequence[Step], name: str) -> None:
    """Raise InputError where a step may not follow a history; see `refusal`."""
    reason = refusal(step, history, name)
    if reason is not None:
        raise InputError(reason)


def _since_compressed(history: Sequence[Step]) -> Sequence[Step]:
    places = [place for place, step in enumerate(history) if isinstance(step, Compressed)]
    return history[places[-1] :] if places else history
