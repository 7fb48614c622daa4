"""The small world behind a story: who is where, who holds what, how many are left; every
sentence is written from this state.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from . import words

Option = TypeVar("Option")

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SENTENCE_START = re.compile(r'(^\W*|[.!?] "?)([a-z])')


@dataclass(frozen=True)
class Person:
    name: str
    kind: str  # "girl", "boy", "woman", "man" or an animal
    he: str
    him: str
    his: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Thing:
    noun: str
    look: str

    def __str__(self) -> str:
        return f"the {self.look} {self.noun}"

    @property
    def bare(self) -> str:
        return f"{self.look} {self.noun}"

    @property
    def a(self) -> str:
        return f"{'an' if self.look[0] in 'aeiou' else 'a'} {self.bare}"


@dataclass(frozen=True)
class Place:
    name: str
    preposition: str
    outdoors: bool
    spots: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def at(self) -> str:
        return f"{self.preposition} {self.name}"


@dataclass(frozen=True)
class Kind:
    """Something that is counted."""

    singular: str
    plural: str
    outdoors: bool
    gathered: str

    def __str__(self) -> str:
        return self.plural

    def count(self, number: int) -> str:
        return f"{words.NUMBERS[number]} {self.singular if number == 1 else self.plural}"


PLACES = tuple(Place(*row) for row in words.PLACES)
KINDS = tuple(Kind(*row) for row in words.COUNTED)
_PRONOUNS = {True: ("she", "her", "her"), False: ("he", "him", "his")}


class World:
    """State and text of one story, driven by one seeded generator.

    ``holder`` maps a thing to the person who has it or to the spot (text) where it lies, ``at`` a
    person to a place, ``left`` a (person, kind) to a number.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.paragraphs: list[list[str]] = [[]]
        self.holder: dict[Thing, Person | str] = {}
        self.at: dict[Person, Place] = {}
        self.left: dict[tuple[Person, Kind], int] = {}
        self.met: list[Person] = []
        self.hero, self.friend = self._child(), self._child()
        while self.friend.name == self.hero.name:
            self.friend = self._child()
        self.elder = self._elder()
        self.pet = self._pet()
        self.place = self.pick([place for place in PLACES if place.name != "the train station"])

    def pick(self, options: Sequence[Option]) -> Option:
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _child(self) -> Person:
        girl = self.chance(0.5)
        return Person(
            self.pick(words.GIRLS if girl else words.BOYS),
            "girl" if girl else "boy",
            *_PRONOUNS[girl],
        )

    def _elder(self) -> Person:
        woman = self.chance(0.5)
        return Person(
            self.pick(words.WOMEN if woman else words.MEN),
            "woman" if woman else "man",
            *_PRONOUNS[woman],
        )

    def _pet(self) -> Person:
        animal, names = self.pick(words.PETS)
        return Person(self.pick(names.split()), animal, *_PRONOUNS[self.chance(0.5)])

    def thing(self, nouns: tuple[str, ...]) -> Thing:
        """A thing whose noun is not yet in the story, so that "the ball" always means one ball."""
        used = {thing.noun for thing in self.holder} | {kind.singular for _, kind in self.left}
        return Thing(
            self.pick([noun for noun in nouns if noun not in used]), self.pick(words.LOOKS)
        )

    def kind(self) -> Kind:
        used = {kind.singular for _, kind in self.left} | {thing.noun for thing in self.holder}
        return self.pick(
            [
                kind
                for kind in KINDS
                if kind.outdoors == self.place.outdoors and kind.singular not in used
            ]
        )

    def other_place(self, *avoid: Place) -> Place:
        return self.pick(
            [place for place in PLACES if place not in avoid and place is not self.place]
        )

    def say(self, template: str, **names: object) -> None:
        """Add one or more sentences: ``[a|b]`` is a random choice, ``{a.he}`` a field; sentences
        start with a capital.
        """
        while "[" in template:
            template = _CHOICE.sub(lambda match: self.pick(match[1].split("|")), template)
        text = template.format(
            h=self.hero, f=self.friend, e=self.elder, p=self.pet, place=self.place, **names
        )
        self.paragraphs[-1].append(
            _SENTENCE_START.sub(lambda match: match[0].upper(), text.strip())
        )

    def paragraph(self) -> None:
        if self.paragraphs[-1]:
            self.paragraphs.append([])

    def meet(self, person: Person) -> None:
        """Bring a person to the current place: introduced at their first appearance, and told of
        when they come from elsewhere.
        """
        came_from, self.at[person] = self.at.get(person), self.place
        if person in self.met:
            if came_from is not self.place:
                self.say("[A little later|Then|Soon] {a} came to {place} too.", a=person)
            return
        self.met.append(person)
        if person is self.friend:
            self.say(
                "[{h}'s friend {f} [was there too|came by|was waiting there]|A {f.kind} named {f} "
                "[came along|was already there]]."
            )
        elif person is self.elder:
            self.say(
                "[{e} was [sitting|standing|working] nearby|Just then {e} came {by}].",
                by=self.pick(("by", "out", "along")),
            )
        elif person is self.pet:
            self.say(
                "{h} had a [little|young|funny|fat] {p.kind} [named|called] {p}[, and {p.he} "
                "followed {h.him} everywhere|]."
            )

    def go(self, place: Place, *people: Person) -> None:
        self.place = place
        for person in people:
            self.at[person] = place

    def text(self) -> str:
        return "\n".join(" ".join(lines) for lines in self.paragraphs if lines)
