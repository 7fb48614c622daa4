"""Answers of several models to a set of prompts, as a table."""

import csv
import importlib
import io
import json

import pytest

import lrcore
from lrcore.cli import main
from lrcore.evaluation.answers import answer_prompts, answers_csv, stream_answers, stream_chat


@pytest.fixture(scope="module")
def models(tiny_llama, tiny_opt):
    return [lrcore.load(str(folder)) for folder in (tiny_llama, tiny_opt)]


def test_answers_equal_those_of_generate(models):
    settings = {"max_new_tokens": 6, "temperature": 0.8, "top_p": 0.9, "seed": 4}
    rows = answer_prompts([*models, models[0]], ["Once", "Tom, “and”\nBen"], **settings)
    assert [(row["prompt"], row["model"]) for row in rows[:3]] == [
        ("Once", model.name) for model in (*models, models[0])
    ]
    assert rows[1]["answer"] == lrcore.generate(models[1], "Once", **settings)
    assert [row["same_as_first"] for row in rows] == [
        True,
        rows[1]["answer"] == rows[0]["answer"],
        True,
    ] * 2
    assert list(csv.DictReader(io.StringIO(answers_csv(rows))))[5]["prompt"] == "Tom, “and”\nBen"


def test_a_prompt_beyond_the_context_fails_without_affecting_the_others(models):
    rows = answer_prompts(models, ["Once", "Tom went " * 200, "Ben"], max_new_tokens=4)
    assert [bool(row["error"]) for row in rows] == [False, False, True, True, False, False]
    assert "context" in rows[2]["error"]
    assert (rows[3]["answer"], rows[3]["same_as_first"]) == ("", False)
    assert rows[4]["answer"]
    assert [bool(row["error"]) for row in answer_prompts(models[:1], ["a " * 999, "Ben"])] == [
        True,
        False,
    ]
    for wrong in ({"temperature": None}, {"max_new_tokens": None}, {"seed": 2**70}):
        with pytest.raises(lrcore.InputError, match=next(iter(wrong))):
            answer_prompts(models, ["Once"], **wrong)


def test_models_answer_in_turns_and_are_timed_separately(models, monkeypatch):
    clock = iter(range(10**6))
    module = importlib.import_module("lrcore.evaluation.answers")
    monkeypatch.setattr(
        module.time, "perf_counter", lambda: float(next(clock))
    )  # each turn takes one second
    lengths, settings = [], {"max_new_tokens": 5, "temperature": 0.8, "seed": 3}
    for result in stream_answers(models, "Once", **settings):
        lengths.append([len(answer.text) for answer in result])
    assert lengths[0] == [0, 0]
    # the models alternate, one piece each
    assert lengths[1][0] > 0 == lengths[1][1] < lengths[2][1]
    for model, answer in zip(models, result, strict=True):
        assert answer.text == lrcore.generate(model, "Once", **settings)
        pieces = len(list(lrcore.stream(model, "Once", **settings)))
        assert answer.seconds == pieces + 1  # the last turn finds the end
        assert answer.tokens == 5
        assert answer.tokens_per_second == answer.tokens / answer.seconds


def test_counted_tokens_are_the_generated_ones(models) -> None:
    """The text of a sampled answer may have fewer tokens when tokenized again."""
    token_counts = []
    for seed in range(8):
        (row,) = answer_prompts(models[:1], ["Once"], max_new_tokens=9, temperature=2.0, seed=seed)
        assert row["tokens"] == 9
        tokenizer = models[0].tokenizer
        token_counts.append(len(tokenizer(row["answer"], add_special_tokens=False).input_ids))
    assert set(token_counts) != {9}


def test_the_first_forward_pass_of_a_model_is_not_timed(models, monkeypatch) -> None:
    passes: list[str] = []
    module = importlib.import_module("lrcore.evaluation.answers")
    monkeypatch.setattr(module.time, "perf_counter", lambda: passes.append("clock") or 0.0)
    with monkeypatch.context() as patched:
        for name, model in zip("ab", models, strict=True):
            forward = model.network.forward

            def recording_forward(*args, name=name, forward=forward, **kwargs):
                passes.append(name)
                return forward(*args, **kwargs)

            patched.setattr(model.network, "forward", recording_forward)
        answer_prompts(models, ["Once"], max_new_tokens=1)
    assert passes[:3] == ["a", "b", "clock"]


def test_the_command_writes_a_table_of_answers(tiny_llama, tmp_path, capsys):
    prompts, table = tmp_path / "prompts.txt", tmp_path / "table.csv"
    prompts.write_text("Once upon\n\nTom and his\n")
    assert (
        main(
            [
                "answers",
                str(tiny_llama),
                "--prompts",
                str(prompts),
                "--csv",
                str(table),
                "--max-new-tokens",
                "4",
                "--json",
            ]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["answers"]
    assert [row["prompt"] for row in rows] == ["Once upon", "Tom and his"]
    assert [line["answer"] for line in csv.DictReader(table.open())] == [
        row["answer"] for row in rows
    ]
    prompts.write_text("\n \n")
    assert main(["answers", str(tiny_llama), "--prompts", str(prompts)]) == 2
    assert "no prompts" in capsys.readouterr().err


def test_each_model_continues_its_conversation(chat_llama) -> None:
    model = lrcore.load(str(chat_llama))
    conversations = [[{"role": "user", "content": text}] for text in ("Where is Ben?", "A ball")]
    *_, answers = stream_chat([model, model], conversations, max_new_tokens=5)
    alone = []
    for conversation in conversations:
        *_, (answer,) = stream_chat([model], [conversation], max_new_tokens=5)
        alone.append(answer.text)
    assert [answer.text for answer in answers] == alone
    assert alone[0] != alone[1]
