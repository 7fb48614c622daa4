"""Multiple-choice tasks: accuracy by total and by normalized log-likelihood.

Items are built in or in a .jsonl file (see lrcore/data/questions.py). The conventions are those of
lm-eval: the choice follows the question after a space, trailing spaces of the question belong to
the choice, and the normalized score divides by the number of characters of the choice. In a
question with a blank "_" (WinoGrande), each choice fills the blank, and the text after the blank is
scored.

The tasks "needle-256", "needle-2048", ... hide a sentence in a long text, at evenly spaced depths,
and ask for it at the end of the text.
"""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
import yaml

from ..data import load_texts
from ..data.questions import BUILTIN_TASKS, continuations, images_of, read_items, solved
from ..data.tokens import encoded
from ..models.images import loaded_images, text_encoder
from ..models.load import LoadedModel
from ..system.errors import InputError
from ..system.path_access import expanded
from ..system.progress import Progress
from ..system.settings import check_least
from .evaluate import model_details, window_losses
from .evaluation_settings import TaskSettings
from .protocols import prefix_token

LM_EVAL = "lm-eval:"  # prefix of the tasks of lm-eval
MAX_SHOTS, MAX_ITEMS = 1000, 100_000  # built-in tasks generate any number of items
NEEDLE_TASK = re.compile(r"needle-(\d+)")
NEEDLE_ITEMS = 20  # default number of items
MIN_NEEDLE_TOKENS = 64  # about 30 tokens of needle and question, and some filler
SPARE_TOKENS = 16  # margin: joining texts can change the number of tokens at the joints
NEEDLE_CITIES = ("Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Athens")


@dataclass(frozen=True)
class Accuracy:
    """Accuracy in [0, 1] with its standard error, and the number of items."""

    items: int
    accuracy: float
    error: float

    @classmethod
    def of(cls, is_correct: Sequence[bool]) -> "Accuracy":
        """Return the accuracy for at least one item. is_correct: one entry per item."""
        count, accuracy = len(is_correct), sum(is_correct) / len(is_correct)
        return cls(count, accuracy, math.sqrt(accuracy * (1 - accuracy) / max(count - 1, 1)))


@dataclass(frozen=True)
class TaskResult:
    """Accuracy of a model on a multiple-choice task.

    accuracy: share of items whose labeled choice has the highest score, in [0, 1].
    accuracy_normalised: the same with scores per character (acc_norm of lm-eval). chance: accuracy
    of random guessing. error: standard error of `accuracy`. nonfinite: number of items with a NaN
    or infinite score, which count as wrong. cut: number of items whose question was truncated on
    the left to fit the context. groups: accuracy by group of items, if the task has groups; an item
    can be in several groups.
    """

    task: str
    items: int
    accuracy: float
    accuracy_normalised: float
    chance: float
    error: float
    nonfinite: int
    cut: int
    protocol: dict[str, Any]
    groups: Mapping[str, Accuracy] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_choices(
    model: LoadedModel,
    task: str,
    items: int | None = None,
    batch: int = 16,
    progress: Progress | None = None,
    shots: int = 0,
) -> TaskResult:
    """Return the accuracy of `model` on a multiple-choice task.

    task: a built-in task, a .jsonl file, or "needle-TOKENS". items: number of items, from the
    first; None: all. batch: choices per forward pass. shots: solved examples before each question.
    Raises InputError like `read_items`, `few_shot_items` and `ImageEncoder`, for items or batch
    below 1, for more than 100,000 items or 1,000 shots, and if a choice exceeds the context.
    """
    check_least("batch", batch, 1)
    check_least("shots", shots, 0)
    if items is not None:
        check_least("items", items, 1)
    for name, value, maximum in (("shots", shots, MAX_SHOTS), ("items", items or 0, MAX_ITEMS)):
        if value > maximum:
            raise InputError(f"{name} = {value:,} is too large; use at most {maximum:,}.")
    questions = few_shot_items(model, task, items, shots)
    pairs = [pair for item in questions for pair in continuations(item)]
    encoder = text_encoder(model, images_of(questions))
    tokenized = [encode_pair(model, *pair, encoder) for pair in pairs]
    context = model.context or max(len(ids) for ids, _ in tokenized)
    # one token more than the context: the last token is predicted, not read
    rows = [(ids[-(context + 1) :], scored) for ids, scored in tokenized]
    if any(scored >= len(ids) for ids, scored in rows):
        raise InputError(
            f"A choice is longer than the context of '{model.name}' ({context} tokens). Use a "
            "model with a longer context."
        )
    scores = iter(likelihoods(model, rows, batch, progress, encoder))
    results = [_item_result(item, list(islice(scores, len(item["choices"])))) for item in questions]
    is_truncated = iter([len(ids) > context + 1 for ids, _ in tokenized])
    count, overall = len(questions), Accuracy.of([result.is_correct for result in results])
    protocol = {"task": task, "items": count, "shots": shots, "special_tokens": False}
    return TaskResult(
        task,
        count,
        overall.accuracy,
        sum(result.is_correct_normalized for result in results) / count,
        sum(1 / len(item["choices"]) for item in questions) / count,
        overall.error,
        sum(not result.is_finite for result in results),
        sum(any(list(islice(is_truncated, len(item["choices"])))) for item in questions),
        protocol | model_details(model),
        _by_group(questions, [result.is_correct for result in results]),
    )


@dataclass(frozen=True)
class _ItemResult:
    """Result of an item. An item with a score that is not finite counts as wrong."""

    is_correct: bool
    is_correct_normalized: bool
    is_finite: bool


def _item_result(item: dict[str, Any], scores: list[float]) -> _ItemResult:
    lengths = [len(text.strip()) for _, text in continuations(item)]
    normalized = [score / n for score, n in zip(scores, lengths, strict=True)]
    if not all(map(math.isfinite, scores)):
        return _ItemResult(False, False, False)
    return _ItemResult(argmax(scores) == item["label"], argmax(normalized) == item["label"], True)


def _by_group(items: list[dict[str, Any]], is_correct: list[bool]) -> dict[str, Accuracy]:
    names = dict.fromkeys(name for item in items for name in item.get("groups", []))
    pairs = list(zip(items, is_correct, strict=True))
    return {
        name: Accuracy.of([correct for item, correct in pairs if name in item.get("groups", [])])
        for name in names
    }


def few_shot_items(
    model: LoadedModel, task: str, items: int | None, shots: int
) -> list[dict[str, Any]]:
    """Return the first `items` of a task, with `shots` solved examples before each question.

    All questions have the same examples, each followed by a blank line. Examples of a built-in task
    are from its calibration split. Examples of a file are its first items, which are not scored.
    Raises InputError if a file has no more items than examples, and for shots of a needle task.
    """
    if is_needle(task):
        if shots:
            raise InputError(f"Task '{task}' has no examples; use shots = 0.")
        return needle_items(model, task, items)
    if not shots:
        return read_items(task, items)
    if task in BUILTIN_TASKS:
        examples = read_items(task, shots, "calibration")
        selected = read_items(task, items)
    else:
        all_items = read_items(task, None if items is None else items + shots)
        examples, selected = all_items[:shots], all_items[shots:]
    if not selected:
        raise InputError(
            f"'{task}' has only {len(examples)} items, which are all examples; use fewer shots."
        )
    prefix, images = "".join(f"{solved(example)}\n\n" for example in examples), images_of(examples)
    return [
        item | {"question": prefix + item["question"], "images": images | item.get("images", {})}
        for item in selected
    ]


def is_needle(task: str) -> bool:
    """Return True if a task is "needle-TOKENS"."""
    return NEEDLE_TASK.fullmatch(task) is not None


def needle_items(model: LoadedModel, task: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the items of a task "needle-TOKENS".

    The question is a text of at most TOKENS tokens of the tokenizer, with a sentence such as "The
    secret number of Rome is 4821." at the i-th of `count` depths from start to end, followed by the
    question. There are four numbers to choose from. The filler is the test split of "python-docs".
    Raises InputError if the model has fewer than TOKENS positions, or if TOKENS is below 64.
    """
    match = NEEDLE_TASK.fullmatch(task)
    tokens = int(match[1]) if match else 0
    if tokens < MIN_NEEDLE_TOKENS:
        raise InputError(
            f"'{task}' is too short for a needle; use at least needle-{MIN_NEEDLE_TOKENS}."
        )
    if model.context is not None and tokens > model.context:
        raise InputError(
            f"'{task}' has {tokens} tokens, but the context of '{model.name}' is {model.context}. "
            f"Use at most needle-{model.context}."
        )
    # `continuations` would fill in a single underscore as a blank
    filler = load_texts("python-docs", "test").joined()[: 40 * tokens].replace("_", "-")
    ids = encoded(model.tokenizer, filler, add_special_tokens=False).input_ids
    count = count or NEEDLE_ITEMS
    return [_needle_item(model, ids, tokens, index, count) for index in range(count)]


def _needle_item(model: LoadedModel, ids: list[int], tokens: int, index: int, count: int) -> dict:
    rng = random.Random(f"needle/{index}")
    city, numbers = rng.choice(NEEDLE_CITIES), rng.sample(range(1000, 10000), 4)
    label = rng.randrange(4)
    needle = f"The secret number of {city} is {numbers[label]}."
    question = f"Question: what is the secret number of {city}? The secret number of {city} is"
    fixed_tokens = sum(
        len(encoded(model.tokenizer, text, add_special_tokens=False).input_ids)
        for text in (needle, question, f" {numbers[0]}")
    )
    length = max(0, tokens - fixed_tokens - SPARE_TOKENS)
    start = rng.randrange(max(1, len(ids) - length))
    window, depth = ids[start : start + length], round(length * index / max(1, count - 1))
    before, after = (model.tokenizer.decode(part) for part in (window[:depth], window[depth:]))
    return {
        "question": "\n".join(part for part in (before, needle, after, question) if part.strip()),
        "choices": [f" {number}" for number in numbers],
        "label": label,
    }


def argmax(scores: list[float]) -> int:
    """Return the index of the first maximum."""
    return max(range(len(scores)), key=scores.__getitem__)


def encode_pair(
    model: LoadedModel, context: str, continuation: str, encode: Callable[..., Any] | None = None
) -> tuple[list[int], int]:
    """Return the tokens of context and continuation, and the length of the continuation.

    encode: a tokenizer or `ImageEncoder`; None: the tokenizer of the model. An empty context
    becomes the prefix token; raises InputError if the tokenizer has no prefix token.
    """
    # trailing spaces of the context belong to the continuation, as in lm-eval
    stripped = context.rstrip()
    continuation, context = context[len(stripped) :] + continuation, stripped
    encode = encode or model.tokenizer
    tokens = encoded(encode, context + continuation, add_special_tokens=False).input_ids
    context_length = (
        len(encoded(encode, context, add_special_tokens=False).input_ids) if context else 0
    )
    if context_length == 0:
        tokens, context_length = [prefix_token(model), *tokens], 1
    return tokens, max(1, len(tokens) - context_length)


def likelihoods(
    model: LoadedModel,
    rows: list[tuple[list[int], int]],
    batch: int,
    progress: Progress | None = None,
    encoder: Any = None,
) -> list[float]:
    """Return log p of the last `scored` tokens of each row (tokens, scored), in nats.

    encoder: the `ImageEncoder` that returned the tokens, if they contain images. Rows of similar
    length share a batch. They are padded on the right, which does not change the scores of a causal
    model.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    scores = [math.nan] * len(rows)
    for start in range(0, len(rows), batch):
        chosen = order[start : start + batch]
        longest = max(len(rows[i][0]) for i in chosen)
        tokens = torch.tensor([rows[i][0] + [0] * (longest - len(rows[i][0])) for i in chosen])
        with loaded_images(encoder, tokens):
            losses = window_losses(model, tokens, batch).double()  # [b, longest - 1]
        for i, row in zip(chosen, losses, strict=True):
            ids, scored = rows[i]
            scores[i] = -float(row[len(ids) - 1 - scored : len(ids) - 1].sum())
        if progress is not None:
            progress("tasks", min(start + batch, len(rows)), len(rows))
    return scores


def measure_task(
    model: LoadedModel, settings: TaskSettings, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the accuracy of a model on a task.

    The result has accuracy, accuracy_error (its standard error), protocol, and chance unless the
    task is from lm-eval. Raises InputError like `score_choices` and `lm_eval`, and for a task of
    lm-eval without accuracy.
    """
    if not settings.task.startswith(LM_EVAL):
        result = score_choices(
            model, settings.task, settings.items, progress=progress, shots=settings.shots
        )
        return result.to_dict() | {"accuracy_error": result.error}
    name = settings.task.removeprefix(LM_EVAL)
    (figures,) = lm_eval(model, [name], settings.items, shots=settings.shots or None).values()
    if "acc,none" not in figures:
        raise InputError(
            f"'{settings.task}' has no accuracy, only {', '.join(figures)}. Use another task."
        )
    return {
        "accuracy": figures["acc,none"],
        "accuracy_error": figures.get("acc_stderr,none"),
        "protocol": asdict(settings) | model_details(model),
    }


def lm_eval(
    model: LoadedModel,
    tasks: Sequence[str | dict[str, Any]],
    limit: int | None = None,
    batch: int = 8,
    shots: int | None = None,
) -> dict[str, dict[str, float]]:
    """Run lm-eval on a loaded model; returns {task: {metric: value}}.

    tasks: names of tasks, or task configurations, each a mapping or a .yaml file. limit: maximum
    number of items per task. shots: examples before each question; None: default of the task. Data
    are downloaded from the hub. Raises InputError if lm-eval (`pip install lm-eval accelerate`) is
    not installed, a task is unknown, or its data cannot be downloaded.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError(
            f"lm-eval cannot be imported ({error}). Run `pip install lm-eval accelerate`, or use "
            "built-in tasks."
        ) from error
    configs = [
        _task_file(task) if isinstance(task, str) and task.endswith((".yaml", ".yml")) else task
        for task in tasks
    ]
    wrapper = HFLM(
        pretrained=model.network, tokenizer=model.tokenizer, backend="causal", batch_size=batch
    )
    try:
        outcome = simple_evaluate(
            model=wrapper, tasks=configs, limit=limit, bootstrap_iters=0, num_fewshot=shots
        )
    except (OSError, KeyError, ValueError) as error:  # unknown task, or failed download
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"lm-eval could not run {', '.join(map(str, tasks))}: {line} Check the names and the "
            "network."
        ) from error
    return {
        task: {name: value for name, value in row.items() if isinstance(value, float)}
        for task, row in outcome["results"].items()
    }


def _task_file(path: str) -> dict[str, Any]:
    """Read a task of lm-eval from a .yaml file. Tags that run code (!function) are refused."""
    try:
        config = yaml.safe_load(expanded(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"'{path}' cannot be read as a task of lm-eval: {line}. Use YAML without tags such "
            "as !function."
        ) from error
    if not isinstance(config, dict) or "task" not in config:
        raise InputError(
            f"'{path}' has no task name. A task of lm-eval is a mapping with task, dataset_path, "
            "output_type, ..."
        )
    return config
