"""The built-in stories: the same everywhere, disjoint splits, and probes whose answer the text
gives.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lrcore.data import stories
from lrcore.data.stories import words
from lrcore.errors import InputError

ROOT = Path(__file__).parents[2]
# The stories alone: importing the whole of lrcore, and torch with it, would take longer than all
# other tests of this file.
_HASH = """
import hashlib, sys, types
for package in ("lrcore", "lrcore.data"):
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [package.replace(".", "/")]
from lrcore.data import stories
texts = stories.documents("train", 60) + [repr(probe) for probe in stories.probes("test", 60)]
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


def test_a_story_is_the_same_in_every_process():
    outputs = set()
    for hash_seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _HASH],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_splits_share_no_document_and_repeat_none():
    splits = [
        stories.documents("train", 1500),
        stories.documents("calibration"),
        stories.documents("test"),
    ]
    every = [document for split in splits for document in split]
    assert len(splits[1]) == len(splits[2]) == 400
    assert len(set(every)) == len(every)


def test_a_longer_list_starts_with_the_shorter_one():
    assert stories.documents("train", 20)[:5] == stories.documents("train", 5)
    assert stories.documents("train", 0) == []


def test_stories_read_as_text():
    for document in stories.documents("calibration"):
        assert not re.search(r"[\[\]{}|]|  | \n|\bNone\b|\.\.", document), document
        assert 40 <= len(document.split()) <= 500
        for line in document.split("\n"):
            assert line[0].isupper() or line[0] == '"', line
            assert line[-1] in '.!?"', line
            assert line.count('"') % 2 == 0, line


def test_articles_agree():
    for document in stories.documents("test"):
        assert not re.search(
            r"\b[Aa] [aeio]\w+|\b[Aa] honest|\b[Aa]n (?!honest|hour)[^aeiou]", document
        ), document


def test_pronouns_agree_with_the_hero():
    gender = {**dict.fromkeys(words.GIRLS, "she"), **dict.fromkeys(words.BOYS, "he")}
    for document in stories.documents("train", 300):
        for name, pronoun in re.findall(r"(\w+) was happy at the end\. Yes, (\w+) was\.", document):
            assert gender[name] == pronoun


def test_probe_shape():
    for probe in stories.probes("test", 300):
        assert set(probe) == {"question", "choices", "label", "kind"}
        assert len(set(probe["choices"])) == len(probe["choices"]) >= 2
        assert 0 <= probe["label"] < len(probe["choices"])
        assert all(choice.startswith(" ") for choice in probe["choices"])
        assert not probe["question"].endswith(" ")
    labels = [probe["label"] for probe in stories.probes("test", 300)]
    assert 60 < labels.count(0) < 240  # the position of the answer tells nothing


@pytest.fixture(scope="module")
def by_kind():
    result: dict[str, list[dict]] = {}
    for probe in stories.probes("test", 1200):
        result.setdefault(probe["kind"], []).append(probe)
    assert set(result) == {"holder", "spot", "place", "count", "pronoun", "number"}
    return result


def _answer(probe):
    return probe["choices"][probe["label"]].strip().rstrip(".")


def test_the_holder_is_the_last_one_who_got_the_thing(by_kind):
    # Read back from the sentences alone: each is one of the ways in which a story says that
    # somebody got something.
    got = (
        r"gave (?:{t} to (?P<a>[^,.]+)|(?P<b>\w+) {t})|handed (?:{t} to (?P<c>[^,.]+)|(?P<d>\w+) "
        r"{t})|passed {t} to (?P<e>[^,.]+)"
        r"|(?P<f>[A-Z]\w+) (?:kept|took|paid and took) {t}|gave it back to (?P<g>\w+)"
    )
    checked = 0
    for probe in by_kind["holder"]:
        thing = re.search(r"the one who had (.*) was$", probe["question"])[1]
        story = probe["question"].rsplit("\n", 1)[0]
        result = [
            next(name for name in match.groups() if name)
            for match in re.finditer(got.replace("{t}", re.escape(thing)), story)
        ]
        result = [name.split(" because ")[0] for name in result]
        if result and "It was a present" not in story and "back" not in story:
            assert result[-1] == _answer(probe), probe
            checked += 1
    assert checked > 80


def test_a_spot_is_the_last_one_named_with_the_thing(by_kind):
    for probe in by_kind["spot"]:
        story, stem = probe["question"].rsplit("\n", 1)
        positions = {choice: story.rfind(choice.strip().rstrip(".")) for choice in probe["choices"]}
        after = story[story.rfind(stem.removeprefix("At the end, the ").split()[1]) :]
        assert positions[probe["choices"][probe["label"]]] >= 0, probe
        assert _answer(probe) in story or _answer(probe) in after


def test_a_place_was_named(by_kind):
    for probe in by_kind["place"]:
        assert _answer(probe).split(" ", 1)[1] in probe["question"], probe


def test_a_count_follows_from_the_numbers_in_the_story(by_kind):
    number = {word: value for value, word in enumerate(words.NUMBERS)}
    checked = 0
    for probe in by_kind["count"]:
        person, answer = re.search(r"At the end, (.*) had$", probe["question"])[1], _answer(probe)
        count, kind = answer.split(" ", 1)
        one = next(row[0] for row in words.COUNTED if kind in row[:2])
        many = next(row[1] for row in words.COUNTED if kind in row[:2])
        start = re.search(rf"(\w+) (?:\w+|pulled up) (\w+) {many}[ .]", probe["question"])
        given = re.findall(
            rf"(\w+) gave (\w+) (?:{one}|{many}) to ([^,.]+?)(?:, |\.)", probe["question"]
        )
        if start and start[1] == person and given:
            lost = len(
                re.findall(
                    rf"ate one (?:{one}|of the {many})|One {one} (?:got|fell)", probe["question"]
                )
            )
            assert number[count] == number[start[2]] - sum(number[n] for _, n, _ in given) - lost, (
                probe
            )
            checked += 1
        elif any(person in receiver for _, _, receiver in given):
            assert count in {n for _, n, receiver in given if person in receiver}, probe
            checked += 1
    assert checked > 20


def test_number_and_pronoun_probes(by_kind):
    assert {_answer(probe) for probe in by_kind["number"]} == {"were tired"}
    assert {_answer(probe) for probe in by_kind["pronoun"]} == {"he was", "she was"}


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match=r"Unknown stories split 'tests'\. Did you mean 'test'"):
        stories.documents("tests")
