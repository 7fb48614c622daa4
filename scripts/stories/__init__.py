"""Seeded generator of short stories and of multiple-choice questions about them.

make_stories.py stores its output in assets/stories, which lrcore reads.
"""

import random
from typing import Literal

from . import words
from .episodes import MOVES
from .recall import recalls
from .troubles import TROUBLES
from .world import World

Split = Literal["train", "calibration", "test"]
SIZES = {"train": 20_000, "calibration": 400, "test": 400}


def documents(split: Split, count: int | None = None) -> list[str]:
    """Return the first `count` stories of a split, by default as many as are stored.

    Story i depends on (split, i) only, so a longer list starts with the shorter one and splits are
    disjoint. A story has 80 to 400 words in one or more paragraphs separated by one newline.
    """
    count = SIZES[split] if count is None else count
    return [_story(f"stories/{split}/{i}")[0] for i in range(count)]


def probes(split: Split, count: int | None = None) -> list[dict]:
    """Return the first `count` questions of a split, by default as many as are stored.

    A question is {"question", "choices", "label", "kind"}. `question` is a story and the beginning
    of a last sentence; `question + choices[label]` is true of the story, all other choices (each
    begins with a space) are false. `kind` is "holder", "spot", "place", "count", "pronoun" or
    "number". The stories of questions are never documents of a split.
    """
    count = SIZES[split] if count is None else count
    return [_probe(f"probes/{split}/{i}") for i in range(count)]


def _story(seed: str, closing: bool = True) -> tuple[str, World]:
    # A string seed goes through SHA-512 inside `random`, so hash randomisation has no part in it.
    w = World(random.Random(seed))
    _opening(w)
    episodes = w.rng.sample(MOVES, w.rng.randrange(1, 3)) + w.rng.sample(
        TROUBLES, w.rng.randrange(1, 3)
    )
    w.rng.shuffle(episodes)
    for episode in episodes:
        w.paragraph()
        episode(w)
    if closing:
        w.paragraph()
        _ending(w)
    return w.text(), w


def _opening(w: World) -> None:
    w.met.append(w.hero)
    w.at[w.hero] = w.place
    trait, second_trait = w.rng.sample(words.TRAITS, 2)
    home = (
        "[near|not far from] {place}" if w.place.outdoors else "in a [small|big|quiet|white] house"
    )
    w.say(
        "[Once upon a time|One day|One morning|Long ago|Last summer|On a Sunday], [there was "
        "{art} {trait} {h.kind} [named|called] {h}|{art} {trait} {h.kind} [named|called] {h} woke "
        "up early]. "
        "[{h} was [also|very] {other}, [and everyone knew it|but {h.he} did not know it]. |{h} "
        "lived " + home + ". |]",
        trait=trait,
        art="an" if trait[0] in "aeiou" or trait == "honest" else "a",
        other=second_trait,
    )
    if w.chance(0.3):
        w.meet(w.pet)
    w.say(
        "[That day|In the morning|After breakfast|In the afternoon], {h} was {at}.", at=w.place.at
    )


def _ending(w: World) -> None:
    # About two thirds of the stories say again what is true at the end, in the words in which
    # probes ask for it.
    available = recalls(w)
    kinds = sorted({recall.kind for recall in available})
    for kind in w.rng.sample(kinds, min(len(kinds), w.pick((0, 1, 1, 2, 2, 3)))):
        recall = w.pick([recall for recall in available if recall.kind == kind])
        w.paragraphs[-1].append(recall.stem + recall.answer)
    w.say(
        "[{h} went [home with a smile|to bed and dreamed of the day|home and told {h.his} family "
        "everything|to sleep at once]|"
        "That evening, {h} was [tired but {g}|{g}]|It had been a [long|good|wonderful|strange] "
        "day, and {h} was {g}|The sun went down, and the day was over]. "
        "[{h.he} had learned that {l}.|From that day on, {h} knew that {l}.|{h} [would never "
        "forget|often thought about] that day.|The end.|And they lived happily.|]",
        l=w.pick(words.LESSONS),
        g=w.pick(words.FEELINGS_GOOD),
    )


def _probe(seed: str) -> dict:
    text, w = _story(seed, closing=False)
    # One kind first, then one recall of it: otherwise "place", of which every story has several,
    # would be most of the probes.
    available = [recall for recall in recalls(w) if recall.wrong]
    kind = w.pick(sorted({recall.kind for recall in available}))
    recall = w.pick([recall for recall in available if recall.kind == kind])
    choices = [recall.answer, *recall.wrong]
    w.rng.shuffle(choices)
    return {
        "question": f"{text}\n{recall.stem}",
        "choices": choices,
        "label": choices.index(recall.answer),
        "kind": recall.kind,
    }
