"""Episodes that move people, things and numbers: each writes sentences and keeps the world's
state true to them.
"""

from . import words
from .world import World

_EATEN = {"apple", "pear", "plum", "berry", "nut", "carrot", "cookie", "muffin", "pancake"}


def lost_and_found(w: World) -> None:
    thing, spot = w.thing(words.TOYS + words.TREASURES), w.pick(w.place.spots)
    w.say(
        "{h} [had|owned] {t.a} [that {h.he} loved very much|that was a gift from {e}|and took it "
        "everywhere].",
        t=thing,
    )
    w.say(
        "[One moment {t} was there, and the next it was gone|But when {h} looked around, {t} was "
        "gone|Then {h} saw that {t} was missing].",
        t=thing,
    )
    w.say(
        '"[Where is my {t.noun}?|Oh no, I lost my {t.noun}!|Has anyone seen my {t.noun}?]" {h.he} '
        "[cried|asked|said].",
        t=thing,
    )
    w.meet(w.friend)
    w.say(
        "[{f} helped {h} look|{f} and {h} searched|The two friends looked] [everywhere|high and "
        "low|for a long time]."
    )
    w.holder[thing] = spot
    w.say(
        "[At last {f} looked {s}, and there it was|It was {f} who found it: {t} was {s}|Finally, "
        "{f} saw {t} {s}].",
        t=thing,
        s=spot,
    )
    finish = w.pick(("returned", "left", "kept"))
    if finish == "returned":
        w.holder[thing] = w.hero
        w.say(
            "{f} [picked up {t} and gave it back to {h}|handed {t} to {h}], and {h} [held it "
            "tightly|thanked {f.him}|jumped for joy].",
            t=thing,
        )
    elif finish == "left":
        w.say(
            "[They were too tired to carry it, so they left {t} {s}|{h} laughed and left {t} {s} "
            "until the next day].",
            t=thing,
            s=spot,
        )
    else:
        w.holder[thing] = w.friend
        w.say(
            '"You found it, so you may play with it today," said {h}. So {f} [kept|took] {t}.',
            t=thing,
        )


def giving(w: World) -> None:
    thing = w.thing(words.TREASURES + words.TOYS)
    w.meet(w.elder)
    w.say("{e} [had|was holding|carried] {t.a}[ in {e.his} bag| in {e.his} hands|].", t=thing)
    w.holder[thing] = w.elder
    w.say(
        '"[This is for you|Please take this|I want you to have this]," {e} [said|told {h}], and '
        "{e.he} gave {t} to {h}.",
        t=thing,
    )
    w.holder[thing] = w.hero
    w.say(
        "{h} [was very {g}|smiled|could hardly believe it]. [{h.he} looked at {t} from all "
        "sides|{h.he} said thank you].",
        t=thing,
        g=w.pick(words.FEELINGS_GOOD),
    )
    for _ in range(w.rng.randrange(3)):
        before = w.holder[thing]
        after = w.friend if before is w.hero else w.hero
        w.meet(w.friend)
        w.say(
            "[Later|After a while|Then] {b} [gave|handed|passed] {t} to {a}[| because {a} wanted "
            'to [see|hold|try] it]. [{a} [smiled|said, "Thank you!"|was careful with it].|]',
            b=before,
            a=after,
            t=thing,
        )
        w.holder[thing] = after


def counting(w: World) -> None:
    kind = w.kind()
    number = w.rng.randrange(3, 13)
    w.say(
        "{h} {v} {n}[| and put them in a basket| and counted them twice].",
        v=kind.gathered,
        n=kind.count(number),
    )
    for taker in w.rng.sample((w.friend, w.elder), w.rng.randrange(1, 3)):
        w.meet(taker)
        gift = w.rng.randrange(1, min(5, number) + 1)
        number -= gift
        w.say(
            "{h} gave {n} to {a}[|, who said thank you|, and {a} [smiled|was {g}]].",
            n=kind.count(gift),
            a=taker,
            g=w.pick(words.FEELINGS_GOOD),
        )
        w.left[taker, kind] = gift
        w.say("[Now|Then] {h} had {n} left.", n=kind.count(number))
        if number == 0:
            break
    if number > 2 and w.chance(0.4):
        number -= 1
        if kind.singular in _EATEN:
            w.say(
                "{h} ate one [{k}|of the {ks}], so {h.he} had {n}.",
                k=kind.singular,
                ks=kind,
                n=kind.count(number),
            )
        else:
            w.say(
                "One {k} [got lost|fell out of {h.his} pocket], so {h} had {n}.",
                k=kind.singular,
                n=kind.count(number),
            )
    w.left[w.hero, kind] = number


def travel(w: World) -> None:
    target = w.other_place()
    w.say(
        '["[Let us go|I want to go|I have to go] to {t}!" said {h}|"Shall we walk to {t}?" asked '
        "{h}|{h} wanted to see {t}].",
        t=target,
    )
    if w.friend in w.met and w.chance(0.6):
        w.say(
            "[So {h} and {f} [walked|ran|went|hurried] to {t}|{h} and {f} took the "
            "[long|short|old] [road|path] to {t}].",
            t=target,
        )
        w.go(target, w.hero, w.friend)
    else:
        if w.friend in w.met:
            w.say("But {f} wanted to stay {here}.", here=w.place.at)
        w.say(
            "{h} [walked|ran|went|hurried] to {t} [alone|on {h.his} own|without waiting].", t=target
        )
        w.go(target, w.hero)
    if w.pet in w.met:
        w.say("{p} the {p.kind} [came too|ran ahead|followed behind].")
        w.at[w.pet] = target
    w.say(
        "[It was [noisy|quiet|busy|lovely|peaceful] {at}|There were [many|few] people {at}|{h} "
        "liked it {at}].",
        at=target.at,
    )


def delivery(w: World) -> None:
    thing, target = w.thing(words.TREASURES), w.other_place()
    w.meet(w.elder)
    if w.friend in w.met:
        w.say("{f} [went|had to go|walked] to {to}.", to=target)
    else:
        w.met.append(w.friend)
    w.say(
        '"[Please bring|I want you to bring|I need you to carry] {t.a} to {f}," {e} [said|told '
        '{h}]. "{f.he} is {at}."',
        t=thing,
        at=target.at,
    )
    w.holder[thing], w.at[w.friend] = w.hero, target
    w.say("{h} took {t} and [set off|left at once|started to walk].", t=thing)
    w.say(
        "On the way {h} [met an old man who asked for the time|had to cross a narrow bridge|saw a "
        "fox run over the road|stopped to rest under a tree]."
    )
    w.go(target, w.hero)
    w.say("[When {h} came to {to}, {f} was waiting|{h} found {f} {at}].", to=target, at=target.at)
    if w.chance(0.7):
        w.holder[thing] = w.friend
        w.say(
            '{h} [gave {t} to {f}|handed {f} {t}]. "[Thank you|How kind of you|I needed this]!" '
            "said {f}.",
            t=thing,
        )
    else:
        w.say(
            '"[Keep it|You can have it]," said {f}. "I do not need it any more." So {h} kept {t}.',
            t=thing,
        )


def hide_and_seek(w: World) -> None:
    w.meet(w.friend)
    first, second = w.pick(((w.hero, w.friend), (w.friend, w.hero)))
    spot, *wrong = w.rng.sample(w.place.spots, 3)
    w.say('[They played hide and seek|"Let us play hide and seek!" said {a}].', a=first)
    w.say(
        "{a} closed {a.his} eyes and counted to [ten|twenty], and {b} hid {s}.",
        a=first,
        b=second,
        s=spot,
    )
    w.say(
        "{a} looked {x}, but {b} was not there. [Then {a} looked {y}, but nobody was there "
        "either.|]",
        a=first,
        b=second,
        x=wrong[0],
        y=wrong[1],
    )
    w.say(
        "[At last {a} looked {s} and found {b}|Then {a} heard a giggle {s}, and there was {b}]. "
        '[They both laughed.|"I found you!" {a} said.]',
        a=first,
        b=second,
        s=spot,
    )


def shop(w: World) -> None:
    thing = w.thing(words.TOYS + words.TREASURES)
    coins, price = w.rng.randrange(4, 13), w.rng.randrange(1, 5)
    w.say(
        "{h} had {n} coins[| in {h.his} pocket]. [In a shop window {h.he} saw|A woman with a cart "
        "was selling] {t.a}.",
        n=words.NUMBERS[coins],
        t=thing,
    )
    w.say(
        '"How much is it?" {h} asked. "{c} {k}," said the [woman|seller]. {h} paid and took {t}.',
        c=words.NUMBERS[price].capitalize(),
        k="coin" if price == 1 else "coins",
        t=thing,
    )
    w.holder[thing] = w.hero
    coins_left = coins - price
    w.say(
        "Now {h} had {n} {k} left.",
        n=words.NUMBERS[coins_left],
        k="coin" if coins_left == 1 else "coins",
    )
    if w.chance(0.5):
        w.meet(w.friend)
        w.say(
            "{h} [did not keep|had not bought] {t} for {own}. It was a present for {f}, so {h.he} "
            "gave it to {f.him}.",
            t=thing,
            own=f"{w.hero.him}self",
        )
        w.holder[thing] = w.friend


def storing(w: World) -> None:
    thing, spot, place = w.thing(words.TREASURES), w.pick(w.place.spots), w.place
    w.say("{h} [had a secret|wanted to keep {t.a} safe|found {t.a} on the ground].", t=thing)
    w.holder[thing] = spot
    w.say(
        "[{h.he} [hid|put|placed] {t} {s}|{h} looked around and put {t} {s}][, where nobody would "
        "look|].",
        t=thing,
        s=spot,
    )
    if w.chance(0.5):
        w.meet(w.friend)
        second_spot = w.pick([candidate for candidate in place.spots if candidate != spot])
        w.say(
            "But {f} [saw it|was watching], and {f.he} [took {t} and put it {s}|moved {t}. Now it "
            "was {s}].",
            t=thing,
            s=second_spot,
        )
        w.holder[thing] = second_spot


MOVES = (lost_and_found, giving, counting, travel, delivery, hide_and_seek, shop, storing)
