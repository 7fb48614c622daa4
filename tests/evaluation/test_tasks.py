"""Multiple-choice scores, compared with a plain loop, and with lm-eval if installed."""

import json

import pytest
import torch

import lrcore
from lrcore.cli import main
from lrcore.evaluation.tasks import (
    continuations,
    encode_pair,
    few_shot_items,
    likelihoods,
    lm_eval,
    needle_items,
    read_items,
)

ITEMS = [
    {
        "question": "Tom and his sister went to the",
        "choices": ["park", "small dog", "tall tree"],
        "label": 0,
    },
    {"question": "She gave three apples to ", "choices": ["her friend, and two", "a"], "label": 1},
    {
        "question": "Ben was older than Tom so _ was in the tree.",
        "choices": ["Ben", "Tom"],
        "label": 0,
    },
]


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    return path


@torch.inference_mode()
def log_likelihood(model, ids, scored):
    logits = model.network(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(logits[t - 1, ids[t]]) for t in range(len(ids) - scored, len(ids)))


def test_scores_equal_those_of_a_plain_loop(model, file):
    right = normalized = 0
    for item in ITEMS:
        raw, lengths = [], []
        for context, text in continuations(item):
            context, text = context.rstrip(), context[len(context.rstrip()) :] + text
            before = model.tokenizer(context, add_special_tokens=False).input_ids
            full_ids = model.tokenizer(context + text, add_special_tokens=False).input_ids
            raw.append(log_likelihood(model, full_ids, len(full_ids) - len(before)))
            lengths.append(len(text.strip()))
        right += raw.index(max(raw)) == item["label"]
        normalized_scores = [score / n for score, n in zip(raw, lengths, strict=True)]
        normalized += normalized_scores.index(max(normalized_scores)) == item["label"]
    result = lrcore.score_choices(model, str(file), batch=2)
    assert (result.accuracy, result.accuracy_normalised) == (right / 3, normalized / 3)
    assert result.chance == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
    assert (result.items, result.nonfinite, result.cut) == (3, 0, 0)


def test_batches_of_rows_of_different_lengths_give_the_same_scores(model):
    rows = [encode_pair(model, *pair) for item in ITEMS for pair in continuations(item)]
    assert likelihoods(model, rows, 8) == pytest.approx(
        [log_likelihood(model, *row) for row in rows], rel=1e-4
    )


def test_a_blank_is_filled_and_the_rest_is_scored():
    assert continuations(ITEMS[2]) == [
        ("Ben was older than Tom so Ben", " was in the tree."),
        ("Ben was older than Tom so Tom", " was in the tree."),
    ]
    assert continuations({"question": "The ____ is", "choices": ["a", " b"]}) == [
        ("The ____ is", " a"),
        ("The ____ is", " b"),
    ]


def test_spaces_before_a_choice_belong_to_it(model):
    ids, scored = encode_pair(model, "She gave ", "apples")
    assert model.tokenizer.decode(ids[-scored:]) == " apples"
    ids, scored = encode_pair(model, "", "apples")
    assert ids[0] == model.tokenizer.bos_token_id
    assert scored == len(ids) - 1


def test_the_beginning_of_a_long_question_is_cut(model, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(
        json.dumps(
            {"question": "Tom and his sister. " * 60, "choices": ["park", "dog"], "label": 0}
        )
    )
    assert lrcore.score_choices(model, str(path)).cut == 1


def test_the_demo_model_scores_better_than_chance_on_its_probes():
    result = lrcore.score_choices(lrcore.load("demo-llama"), "stories", items=24)
    assert result.accuracy > result.chance + 0.2
    json.dumps(result.to_dict(), allow_nan=False)


def test_few_shot_examples_precede_each_question(model, file, tmp_path):
    """The first items of a file are examples with the right choices, and are not scored."""
    solved_examples = (
        "Tom and his sister went to the park\n\nShe gave three apples to a\n\n"
        + ITEMS[2]["question"]
    )
    path = tmp_path / "by_hand.jsonl"
    path.write_text(json.dumps({**ITEMS[2], "question": solved_examples}) + "\n")
    result, by_hand = (
        lrcore.score_choices(model, str(task_file), shots=shots)
        for task_file, shots in ((file, 2), (path, 0))
    )
    assert (result.items, result.accuracy) == (1, by_hand.accuracy)
    assert result.protocol["shots"] == 2
    examples = few_shot_items(model, str(file), 1, 2)
    assert [item["question"] for item in examples] == [solved_examples]
    with pytest.raises(lrcore.InputError, match="use fewer shots"):
        lrcore.score_choices(model, str(file), shots=3)


def test_needles_are_spread_over_texts_that_fit():
    model = lrcore.load("demo-llama")
    items = needle_items(model, "needle-200", 5)
    assert items == needle_items(model, "needle-200", 5)
    depths = []
    for item in items:
        question, right = item["question"], item["choices"][item["label"]]
        assert question.count(right) == 1
        assert all(choice not in question for choice in item["choices"] if choice != right)
        full_ids = model.tokenizer(question + right, add_special_tokens=False).input_ids
        assert 150 < len(full_ids) <= 200
        depths.append(question.index("The secret number") / len(question))
    assert depths == sorted(depths)
    assert depths[0] == 0
    assert depths[-1] > 0.5
    assert lrcore.score_choices(model, "needle-200", items=2).chance == 0.25
    for task, options, words in (
        ("needle-100000", {}, "at most needle-"),
        ("needle-3", {}, "at least needle-64"),
        ("needle-200", {"shots": 1}, "use shots = 0"),
    ):
        with pytest.raises(lrcore.InputError, match=words):
            lrcore.score_choices(model, task, **options)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 .* not valid JSON"),
        ('{"question": "a", "choices": ["b"], "label": 0}', "two choices"),
        ('{"question": "a", "choices": ["b", "c"], "label": 2}', "0 to 1; got 2"),
        ('{"choices": ["b", "c"], "label": 1}', "question must be text"),
        ("[]", "two choices"),
        ("", "no items"),
    ],
)
def test_invalid_items_are_reported(line, words, tmp_path):
    path = tmp_path / "wrong.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(lrcore.InputError, match=words):
        read_items(str(path))


def test_unknown_tasks_are_reported(tmp_path):
    with pytest.raises(lrcore.InputError, match="Did you mean 'stories'"):
        read_items("storys")
    with pytest.raises(lrcore.InputError, match="No file"):
        read_items(str(tmp_path / "none.jsonl"))


def test_scores_equal_those_of_lm_eval(model):
    pytest.importorskip(
        "lm_eval.models.huggingface", reason="lm-eval is not installed", exc_type=ImportError
    )
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    wrapped = HFLM(
        pretrained=model.network, tokenizer=model.tokenizer, backend="causal", batch_size=1
    )
    pairs = [pair for item in ITEMS for pair in continuations(item)]
    theirs = wrapped.loglikelihood(
        [Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True
    )
    ours = likelihoods(model, [encode_pair(model, *pair) for pair in pairs], 4)
    assert ours == pytest.approx([score for score, _ in theirs], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "has no task name"),
        ("task: !function x.y", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_invalid_lm_eval_task_files_are_reported(model, tmp_path, text, words):
    pytest.importorskip(
        "lm_eval.models.huggingface", reason="lm-eval is not installed", exc_type=ImportError
    )
    if text is not None:
        (tmp_path / "task.yaml").write_text(text)
    with pytest.raises(lrcore.InputError, match=words):
        lm_eval(model, [str(tmp_path / "task.yaml")])


def test_an_lm_eval_task_file_gives_the_same_word_perplexity(tiny_llama, tmp_path, capsys):
    pytest.importorskip(
        "lm_eval.models.huggingface", reason="lm-eval is not installed", exc_type=ImportError
    )
    documents = [
        "Tom and his sister went to the park. " * 12,
        "She gave  three apples\nto her friend.",
        "Ben was tall.",
    ]
    rows, task = tmp_path / "rows.jsonl", tmp_path / "words.yaml"
    rows.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    metrics = [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")]
    task.write_text(
        json.dumps(
            {
                "task": "words",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(rows)}},
                "test_split": "test",
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "doc_to_target": "{{text}}",
                "metric_list": metrics,
            }
        )
    )
    assert main(["tasks", str(tiny_llama), "--task", f"lm-eval:{task}", "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)["lm_eval"]["words"]
    ours = lrcore.evaluate(lrcore.load(str(tiny_llama)), str(rows), protocol="lm-eval-word")
    for metric in metrics:
        assert getattr(ours, metric["metric"]) == pytest.approx(
            theirs[f"{metric['metric']},none"], rel=1e-6
        )


def test_an_lm_eval_task_gives_the_same_accuracies(tmp_path):
    pytest.importorskip(
        "lm_eval.models.huggingface", reason="lm-eval is not installed", exc_type=ImportError
    )
    from lrcore.data import stories_probes

    path, items = tmp_path / "probes.jsonl", stories_probes("test", 30)
    bare = [
        {
            "question": question["question"],
            "choices": [c.strip() for c in question["choices"]],
            "label": question["label"],
        }
        for question in items
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in bare))
    task = {
        "task": "probes",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    model = lrcore.load("demo-llama")
    theirs, ours = lm_eval(model, [task])["probes"], lrcore.score_choices(model, str(path))
    assert (ours.accuracy, ours.accuracy_normalised) == pytest.approx(
        (theirs["acc,none"], theirs["acc_norm,none"])
    )
