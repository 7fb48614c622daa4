"""Episodes with a cause and a consequence: weather, mistakes, fear, learning, building,
quarrels.
"""

from . import words
from .world import World


def weather(w: World) -> None:
    state, effect, help_, end = w.pick(words.WEATHERS)
    w.say(
        "{s}, and {x}. {h} could not [go on|play|go home] because [of the weather|{h.he} was not "
        "ready for it].",
        s=state,
        x=effect,
    )
    w.meet(w.elder)
    w.say(
        '[{e} brought {y}|"Take this," said {e}, and gave {h.him} {y}]. [That helped a lot.|{h} '
        "felt much better.|]",
        y=help_,
    )
    w.say("[After an hour|A little later|In the afternoon|Soon] {z}.", z=end)


def broken(w: World) -> None:
    w.meet(w.friend)
    thing, tool = w.thing(words.TOYS), w.thing(words.TOOLS)
    w.say(
        "[{h} and {f} were running|{f} was not careful|{f} threw a stick], and {h}'s {t.bare} "
        "[fell down and broke|cracked in the middle|broke in two].",
        t=thing,
    )
    w.holder[thing] = w.hero
    if w.chance(0.6):
        w.say(
            '"[I am sorry|It was my fault|I did it]," said {f}. "[I will help you fix it.|Can you '
            'forgive me?|I should have been careful.]"'
        )
        w.say(
            '{h} was [not angry|a little {g}, but only for a moment|quiet for a while]. "[Thank '
            'you for telling the truth|We can repair it together|Do not worry]," {h.he} said.',
            g=w.pick(words.FEELINGS_BAD),
        )
    else:
        w.say(
            '{f} [hid behind {h}|looked away]. "[It was the wind|I did not do it]," {f.he} said, '
            "but {f.his} face turned red."
        )
        w.say(
            "[That night|After some minutes] {f} felt so bad that {f.he} told the truth. {h} "
            "forgave {f.him}."
        )
    w.meet(w.elder)
    w.say(
        "{e} brought {t.a} and [showed them what to do|helped them repair it], and soon the {o} "
        "was as good as new.",
        t=tool,
        o=thing.noun,
    )
    w.holder[tool] = w.elder


def learning(w: World) -> None:
    skill, failure, success = w.pick(words.SKILLS)
    w.say("{h} wanted to [learn to|know how to] {s}.", s=skill)
    w.say(
        "The first time, {h} {x}. The second time, {h.he} {x} again. [{h.he} felt {b}.|{h.he} "
        "almost gave up.]",
        x=failure,
        b=w.pick(words.FEELINGS_BAD),
    )
    w.meet(w.elder)
    w.say(
        '"[Try once more|Do not give up|Everyone starts like that|Go slowly]," said {e}[, who had '
        "watched everything|]. [{e.he} showed {h.him} how to do it.|]"
    )
    w.say(
        "[The third time|The next day|After a week of practice], {h} {y}! {h.he} was [so|very] "
        "{g}.",
        y=success,
        g=w.pick(words.FEELINGS_GOOD),
    )


def fright(w: World) -> None:
    sign, truth = w.pick(words.FRIGHTS)
    w.say(
        "[Suddenly|That evening|When it grew dark], {h} [noticed|was startled by] {s}. {h.his} "
        "heart beat fast.",
        s=sign,
    )
    w.meet(w.friend)
    w.say(
        '"[What is that?|Did you notice that?|I am scared,]" {h.he} [whispered|asked]. {f} took '
        "{h.his} hand, and they went closer[ step by step|]."
    )
    w.say(
        "It was only {t}! [{h} and {f} laughed|They laughed until their bellies hurt], and {h} "
        "was not afraid any more.",
        t=truth,
    )


def rescue(w: World) -> None:
    animal, trouble, help_, thanks = w.pick(words.RESCUES)
    w.say(
        "[{h} heard a sound and stopped|On the ground something moved|{h} looked closer]. {a} {t}.",
        a=animal,
        t=trouble,
    )
    if w.chance(0.5):
        w.meet(w.friend)
        w.say('"We have to help it!" said {f}. So {h} and {f} {x}.', x=help_)
    else:
        w.say('"[Do not be afraid|I will help you]," {h} said softly. {h.he} {x}.', x=help_)
    w.say(
        "{a} {y}. {h} [waved|watched it and smiled|knew that it was safe now].",
        a="the " + animal.split(" ", 1)[1],
        y=thanks,
    )


def building(w: World) -> None:
    project, material, way, result = w.pick(words.PROJECTS)
    w.meet(w.friend)
    w.say(
        "{h} and {f} decided to make {x}. They [needed|collected|brought] {m}.",
        x=project,
        m=material,
    )
    w.say(
        "{a} {y}, while {b} [held everything in place|sang a song|read the plan aloud|cleaned up].",
        a=w.hero,
        b=w.friend,
        y=way,
    )
    w.say(
        "[It was hard work, but|It took all morning, and|They made one mistake and had to start "
        "again, but] they did not stop."
    )
    w.say(
        "When it was finished, {z}. Both children were [proud|{g}].",
        z=result,
        g=w.pick(words.FEELINGS_GOOD),
    )


def quarrel(w: World) -> None:
    w.meet(w.friend)
    thing = w.thing(words.TOYS)
    w.say(
        "There was only one {n}: {t.a}. {h} wanted it, and {f} wanted it too.",
        n=thing.noun,
        t=thing,
    )
    w.say(
        '"[It is mine|I saw it first|Give it to me]!" said {h}. "No, [it is mine|I saw it '
        'first|you had it yesterday]!" said {f}. They pulled, and both [fell down|began to '
        "cry|were angry]."
    )
    w.meet(w.elder)
    first, second = w.pick(((w.hero, w.friend), (w.friend, w.hero)))
    w.say(
        '{e} shook {e.his} head. "{a} may have it first, and {b} may have it after '
        '[lunch|supper|the nap]," {e.he} said. So {a} took {t}.',
        a=first,
        b=second,
        t=thing,
    )
    w.holder[thing] = first
    if w.chance(0.6):
        w.say(
            "After that, {a} gave {t} to {b}, [as they had promised|just as {e} had said].",
            a=first,
            b=second,
            t=thing,
        )
        w.holder[thing] = second
    w.say(
        "[They were friends again|Nobody was angry any more|{h} said sorry, and {f} said sorry "
        "too]."
    )


def errand_forgotten(w: World) -> None:
    w.meet(w.elder)
    kind = w.kind()
    number = w.rng.randrange(2, 10)
    w.say(
        '{e} said, "[Please bring me|I need] {n}." {h} [nodded|said yes] and ran off.',
        n=kind.count(number),
    )
    w.say(
        "But {h} [met a friend|saw a parade|chased a butterfly|sat down to watch the clouds] and "
        "forgot [all about it|the {k}].",
        k=kind,
    )
    w.say(
        '"[Where are the {k}?|Did you bring the {k}?]" asked {e}. {h} felt {b} because {h.he} had '
        "forgotten {h.his} promise.",
        k=kind,
        b=w.pick(words.FEELINGS_BAD),
    )
    w.say(
        "{h.he} went back and brought {n}. {e} [thanked {h.him}|smiled again]. Now {e} had {n}.",
        n=kind.count(number),
    )
    w.left[w.elder, kind] = number


TROUBLES = (weather, broken, learning, fright, rescue, building, quarrel, errand_forgotten)
