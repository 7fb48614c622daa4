"""Built-in stories: disjoint splits, correct English, and questions that are answered by
the story.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lrcore.data import stories
from lrcore.system.errors import InputError

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))
from stories import words  # noqa: E402

_GENERATE = """
import json, stories
parts = [[stories.documents(split, 9), stories.probes(split, 9)] for split in stories.SIZES]
print(json.dumps(parts))
"""


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_script_generates_the_stored_stories(hash_seed):
    output = subprocess.run(
        [sys.executable, "-c", _GENERATE],
        cwd=SCRIPTS,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for split, (documents, questions) in zip(stories.STORIES, json.loads(output), strict=True):
        assert stories.documents(split, 9) == documents
        if split in stories.QUESTIONS:
            assert stories.probes(split, 9) == questions


@pytest.mark.parametrize(
    ("kind", "read"), [("stories", stories.documents), ("questions", stories.probes)]
)
def test_a_request_for_more_than_the_stored_items_is_refused(kind, read):
    assert len(read("test")) == len(read("test", 400)) == 400
    with pytest.raises(InputError, match=f"has 400 {kind}, but 401 were requested"):
        read("test", 401)


def test_documents_are_unique_within_and_across_splits():
    splits = [
        stories.documents("train", 1500),
        stories.documents("calibration"),
        stories.documents("test"),
    ]
    all_documents = [document for split in splits for document in split]
    assert len(splits[1]) == len(splits[2]) == 400
    assert len(set(all_documents)) == len(all_documents)


def test_a_longer_list_starts_with_the_shorter_one():
    assert stories.documents("train", 20)[:5] == stories.documents("train", 5)
    assert stories.documents("train", 0) == []


def test_stories_contain_complete_sentences():
    for document in stories.documents("calibration"):
        assert not re.search(r"[\[\]{}|]|  | \n|\bNone\b|\.\.", document), document
        assert 40 <= len(document.split()) <= 500
        for line in document.split("\n"):
            assert line[0].isupper() or line[0] == '"', line
            assert line[-1] in '.!?"', line
            assert line.count('"') % 2 == 0, line


def test_articles_agree_with_the_following_sound():
    for document in stories.documents("test"):
        assert not re.search(
            r"\b[Aa] [aeio]\w+|\b[Aa] honest|\b[Aa]n (?!honest|hour)[^aeiou]", document
        ), document


def test_pronouns_agree_with_the_hero():
    gender = {**dict.fromkeys(words.GIRLS, "she"), **dict.fromkeys(words.BOYS, "he")}
    for document in stories.documents("train", 300):
        for name, pronoun in re.findall(r"(\w+) was happy at the end\. Yes, (\w+) was\.", document):
            assert gender[name] == pronoun


def test_probes_have_valid_fields_and_balanced_labels():
    for probe in stories.probes("test", 300):
        assert set(probe) == {"question", "choices", "label", "kind"}
        assert len(set(probe["choices"])) == len(probe["choices"]) >= 2
        assert 0 <= probe["label"] < len(probe["choices"])
        assert all(choice.startswith(" ") for choice in probe["choices"])
        assert not probe["question"].endswith(" ")
    labels = [probe["label"] for probe in stories.probes("test", 300)]
    assert 60 < labels.count(0) < 240  # the label does not reveal the answer


@pytest.fixture(scope="module")
def by_kind():
    result: dict[str, list[dict]] = {}
    for probe in [*stories.probes("calibration"), *stories.probes("test")]:
        result.setdefault(probe["kind"], []).append(probe)
    assert set(result) == {"holder", "spot", "place", "count", "pronoun", "number"}
    return result


def _answer(probe):
    return probe["choices"][probe["label"]].strip().rstrip(".")


def test_the_holder_is_the_last_person_who_received_the_object(by_kind):
    # The sentences by which a story states that a person receives an object.
    receiving = (
        r"gave (?:{t} to (?P<a>[^,.]+)|(?P<b>\w+) {t})|handed (?:{t} to (?P<c>[^,.]+)|(?P<d>\w+) "
        r"{t})|passed {t} to (?P<e>[^,.]+)"
        r"|(?P<f>[A-Z]\w+) (?:kept|took|paid and took) {t}|gave it back to (?P<g>\w+)"
    )
    checked = 0
    for probe in by_kind["holder"]:
        object_name = re.search(r"the one who had (.*) was$", probe["question"])[1]
        story = probe["question"].rsplit("\n", 1)[0]
        result = [
            next(name for name in match.groups() if name)
            for match in re.finditer(receiving.replace("{t}", re.escape(object_name)), story)
        ]
        result = [name.split(" because ")[0] for name in result]
        if result and "It was a present" not in story and "back" not in story:
            assert result[-1] == _answer(probe), probe
            checked += 1
    assert checked > 50


def test_the_spot_is_the_last_one_named_with_the_object(by_kind):
    for probe in by_kind["spot"]:
        story, stem = probe["question"].rsplit("\n", 1)
        positions = {choice: story.rfind(choice.strip().rstrip(".")) for choice in probe["choices"]}
        after = story[story.rfind(stem.removeprefix("At the end, the ").split()[1]) :]
        assert positions[probe["choices"][probe["label"]]] >= 0, probe
        assert _answer(probe) in story or _answer(probe) in after


def test_the_place_is_named_in_the_story(by_kind):
    for probe in by_kind["place"]:
        assert _answer(probe).split(" ", 1)[1] in probe["question"], probe


def test_the_count_follows_from_the_numbers_in_the_story(by_kind):
    number = {word: value for value, word in enumerate(words.NUMBERS)}
    checked = 0
    for probe in by_kind["count"]:
        person, answer = re.search(r"At the end, (.*) had$", probe["question"])[1], _answer(probe)
        count, kind = answer.split(" ", 1)
        singular = next(row[0] for row in words.COUNTED if kind in row[:2])
        many = next(row[1] for row in words.COUNTED if kind in row[:2])
        start = re.search(rf"(\w+) (?:\w+|pulled up) (\w+) {many}[ .]", probe["question"])
        gifts = re.findall(
            rf"(\w+) gave (\w+) (?:{singular}|{many}) to ([^,.]+?)(?:, |\.)", probe["question"]
        )
        if start and start[1] == person and gifts:
            lost = len(
                re.findall(
                    rf"ate one (?:{singular}|of the {many})|One {singular} (?:got|fell)",
                    probe["question"],
                )
            )
            assert number[count] == number[start[2]] - sum(number[n] for _, n, _ in gifts) - lost, (
                probe
            )
            checked += 1
        elif any(person in receiver for _, _, receiver in gifts):
            assert count in {n for _, n, receiver in gifts if person in receiver}, probe
            checked += 1
    assert checked > 13


def test_number_and_pronoun_probes_have_the_expected_answers(by_kind):
    assert {_answer(probe) for probe in by_kind["number"]} == {"were tired"}
    assert {_answer(probe) for probe in by_kind["pronoun"]} == {"he was", "she was"}


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match=r"Unknown stories split 'tests'\. Did you mean 'test'"):
        stories.documents("tests")
