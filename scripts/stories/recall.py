"""Sentences that recall the final state of a world; stories end with some of them, probes ask
for one of them.
"""

from dataclasses import dataclass

from . import words
from .world import Person, World


@dataclass(frozen=True)
class Recall:
    """``stem + answer`` is true of the story, ``stem + wrong`` is false for each wrong answer;
    ``kind`` names what is asked.
    """

    kind: str
    stem: str
    answer: str
    wrong: tuple[str, ...]


def recalls(w: World) -> list[Recall]:
    """Everything the final state of ``w`` lets one ask, in the order in which the story made it
    true.
    """
    return [*_holders(w), *_spots(w), *_locations(w), *_counts(w), *_agreement(w)]


def _names(w: World) -> list[Person]:
    return [person for person in (w.hero, w.friend, w.elder) if person in w.met]


def _holders(w: World) -> list[Recall]:
    items = []
    for thing, holder in w.holder.items():
        wrong_names = tuple(f" {person}." for person in _names(w) if person is not holder)
        if isinstance(holder, Person) and wrong_names:
            items.append(
                Recall(
                    "holder", f"At the end, the one who had {thing} was", f" {holder}.", wrong_names
                )
            )
    return items


def _spots(w: World) -> list[Recall]:
    items = []
    for thing, spot in w.holder.items():
        if isinstance(spot, str):
            wrong = w.rng.sample(
                sorted(
                    {f" {s}." for place in (w.place, w.other_place()) for s in place.spots}
                    - {f" {spot}."}
                ),
                3,
            )
            items.append(Recall("spot", f"At the end, {thing} was", f" {spot}.", tuple(wrong)))
    return items


def _locations(w: World) -> list[Recall]:
    items = []
    for person, place in w.at.items():
        seen = {f" {location.at}." for location in w.at.values()} | {f" {w.other_place(place).at}."}
        if person in _names(w):
            items.append(
                Recall(
                    "place",
                    f"At the end, {person} was",
                    f" {place.at}.",
                    tuple(sorted(seen - {f" {place.at}."})),
                )
            )
    return items


def _counts(w: World) -> list[Recall]:
    items = []
    for (person, kind), number in w.left.items():
        near = [
            n
            for n in (number - 2, number - 1, number + 1, number + 2)
            if 0 <= n < len(words.NUMBERS)
        ]
        wrong = tuple(f" {kind.count(n)}." for n in near)
        items.append(
            Recall("count", f"At the end, {person} had", f" {kind.count(number)}.", wrong[:3])
        )
    return items


def _agreement(w: World) -> list[Recall]:
    person = w.hero
    wrong = " he was." if person.he == "she" else " she was."
    items = [
        Recall("pronoun", f"{person} was happy at the end. Yes,", f" {person.he} was.", (wrong,))
    ]
    if w.friend in w.met:
        items.append(
            Recall(
                "number",
                f"{w.hero} and {w.friend} said good night. Both of them",
                " were tired.",
                (" was tired.",),
            )
        )
    return items
