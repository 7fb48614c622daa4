"""Multiple choice: which continuation the model scores highest, in total and per character.

Items are built in or in a .jsonl file (see lrcore/data/questions.py). Conventions are lm-eval's: a
choice follows the question after a space, trailing blanks of the question belong to the choice, and
the normalised score divides by the choice's characters. A question with a blank "_"
(WinoGrande) is completed by each choice, and the text after the blank is scored.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
import yaml

from ..data.questions import BUILTIN_TASKS, continuations, images_of, read_items, solved
from ..data.tokens import encoded
from ..errors import InputError
from ..models.images import encoder_of, shown
from ..models.load import LoadedModel
from ..places import expanded
from ..progress import Progress
from ..settings import check_least
from .evaluate import measured_with, window_losses
from .needle import is_needle, needle_items
from .protocols import prefix_token
from .settings import TaskSettings

MOST_SHOTS, MOST_ITEMS = 1000, 100_000  # what is built in would be made without an end


@dataclass(frozen=True)
class Share:
    """Accuracy on some items, in [0, 1], with its standard error."""

    items: int
    accuracy: float
    error: float

    @classmethod
    def of(cls, right: Sequence[bool]) -> "Share":
        """right: of every item, whether its answer is; at least one."""
        n, accuracy = len(right), sum(right) / len(right)
        return cls(n, accuracy, math.sqrt(accuracy * (1 - accuracy) / max(n - 1, 1)))


@dataclass(frozen=True)
class TaskResult:
    """Accuracy of a model on a task of multiple choice.

    accuracy: share of items whose labelled choice has the highest score; accuracy_normalised: per
    character (acc_norm of lm-eval). Both in [0, 1]. chance: accuracy of random guessing. error:
    standard error of `accuracy`. nonfinite: items with a NaN or infinite score; they count as
    wrong. cut: items whose question was truncated on the left to fit the context. groups: the
    accuracy on the items of each group, where the task has groups; an item may be in several.
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
    groups: Mapping[str, Share] = field(default_factory=dict)

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
    """Accuracy of `model` on multiple choice.

    task: a built-in one, a .jsonl file, or "needle-TOKENS" (see lrcore/evaluation/needle.py).
    items: only the first so many; None: all. batch: choices per forward pass. shots: solved
    examples before every question. Raises InputError as `read_items` and `with_examples` do, for
    items or batch below 1, more than 100,000 items or 1,000 shots, where a choice exceeds the
    context, and as `ImageEncoder` does.
    """
    check_least("batch", batch, 1)
    check_least("shots", shots, 0)
    if items is not None:
        check_least("items", items, 1)
    for name, number, most in (("shots", shots, MOST_SHOTS), ("items", items or 0, MOST_ITEMS)):
        if number > most:
            raise InputError(f"{name} = {number:,}: at most {most:,} can be asked for.")
    chosen = with_examples(model, task, items, shots)
    pairs = [pair for item in chosen for pair in continuations(item)]
    encode = encoder_of(model, images_of(chosen))
    encoded = [encode_pair(model, *pair, encode) for pair in pairs]
    context = model.context or max(len(ids) for ids, _ in encoded)
    # one token more than the context: the last is predicted, never read
    rows = [(ids[-(context + 1) :], scored) for ids, scored in encoded]
    if any(scored >= len(ids) for ids, scored in rows):
        raise InputError(
            f"A choice alone is longer than the context of '{model.name}' ({context} tokens). Use "
            "a model with a longer one."
        )
    scores = iter(likelihoods(model, rows, batch, progress, encode))
    judged = [_judged(item, list(islice(scores, len(item["choices"])))) for item in chosen]
    cut = iter([len(ids) > context + 1 for ids, _ in encoded])
    n, whole = len(chosen), Share.of([one.right for one in judged])
    protocol = {"task": task, "items": n, "shots": shots, "special_tokens": False}
    return TaskResult(
        task,
        n,
        whole.accuracy,
        sum(one.right_normalised for one in judged) / n,
        sum(1 / len(item["choices"]) for item in chosen) / n,
        whole.error,
        sum(not one.finite for one in judged),
        sum(any(list(islice(cut, len(item["choices"])))) for item in chosen),
        protocol | measured_with(model),
        _by_group(chosen, [one.right for one in judged]),
    )


@dataclass(frozen=True)
class _Judged:
    """An answered item. finite: whether all scores are; else neither answer is right."""

    right: bool
    right_normalised: bool
    finite: bool


def _judged(item: dict[str, Any], scores: list[float]) -> _Judged:
    lengths = [len(text.strip()) for _, text in continuations(item)]
    normalised = [score / n for score, n in zip(scores, lengths, strict=True)]
    if not all(map(math.isfinite, scores)):
        return _Judged(False, False, False)
    return _Judged(best(scores) == item["label"], best(normalised) == item["label"], True)


def _by_group(items: list[dict[str, Any]], right: list[bool]) -> dict[str, Share]:
    names = dict.fromkeys(name for item in items for name in item.get("groups", []))
    pairs = list(zip(items, right, strict=True))
    return {
        name: Share.of([own for item, own in pairs if name in item.get("groups", [])])
        for name in names
    }


def with_examples(
    model: LoadedModel, task: str, items: int | None, shots: int
) -> list[dict[str, Any]]:
    """The first `items` of a task, each question after the same `shots` solved examples, a blank
    line after each.

    Examples of a built-in task are of its calibration split; those of a file are its first items,
    which are then not asked. Raises InputError where a file has no more items than examples, and
    for examples of a needle.
    """
    if is_needle(task):
        if shots:
            raise InputError(f"Task '{task}' is long text, not examples: leave out shots.")
        return needle_items(model, task, items)
    if not shots:
        return read_items(task, items)
    if task in BUILTIN_TASKS:
        examples = read_items(task, shots, "calibration")
        chosen = read_items(task, items)
    else:
        whole = read_items(task, None if items is None else items + shots)
        examples, chosen = whole[:shots], whole[shots:]
    if not chosen:
        raise InputError(
            f"'{task}' has {len(examples)} items, all of them examples: ask for fewer shots."
        )
    before, images = "".join(f"{solved(one)}\n\n" for one in examples), images_of(examples)
    return [
        item | {"question": before + item["question"], "images": images | item.get("images", {})}
        for item in chosen
    ]


def best(scores: list[float]) -> int:
    """The place of the largest, the first of equals."""
    return max(range(len(scores)), key=scores.__getitem__)


def encode_pair(
    model: LoadedModel, context: str, continuation: str, encode: Callable[..., Any] | None = None
) -> tuple[list[int], int]:
    """Tokens of both together, and how many of the last belong to the continuation.

    encode: called as a tokenizer is; None: the model's. An empty context becomes the prefix token.
    Raises InputError where the tokenizer has none.
    """
    stripped = context.rstrip()
    continuation, context = context[len(stripped) :] + continuation, stripped
    encode = encode or model.tokenizer
    whole = encoded(encode, context + continuation, add_special_tokens=False).input_ids
    begin = len(encoded(encode, context, add_special_tokens=False).input_ids) if context else 0
    if begin == 0:
        whole, begin = [prefix_token(model), *whole], 1
    return whole, max(1, len(whole) - begin)


def likelihoods(
    model: LoadedModel,
    rows: list[tuple[list[int], int]],
    batch: int,
    progress: Progress | None = None,
    encoder: Any = None,
) -> list[float]:
    """log p of the last `scored` tokens of each row (tokens, scored), in nats. encoder: what made
    the tokens, where they may have images.

    Rows of similar length share a batch, padded on the right, which a causal model does not see.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    scores = [math.nan] * len(rows)
    for start in range(0, len(rows), batch):
        chosen = order[start : start + batch]
        longest = max(len(rows[i][0]) for i in chosen)
        tokens = torch.tensor([rows[i][0] + [0] * (longest - len(rows[i][0])) for i in chosen])
        with shown(encoder, tokens):
            losses = window_losses(model, tokens, batch).double()  # [b, longest - 1]
        for i, row in zip(chosen, losses, strict=True):
            ids, scored = rows[i]
            scores[i] = -float(row[len(ids) - 1 - scored : len(ids) - 1].sum())
        if progress is not None:
            progress("tasks", min(start + batch, len(rows)), len(rows))
    return scores


def answer(
    model: LoadedModel, settings: TaskSettings, progress: Progress | None = None
) -> dict[str, Any]:
    """Accuracy of a model on a task by its settings: accuracy, accuracy_error (its standard error),
    chance (None where lm-eval does not say) and protocol.

    Raises InputError as `score_choices` and `lm_eval` do, and for a task of lm-eval's without
    accuracy.
    """
    if not settings.task.startswith(LM_EVAL):
        result = score_choices(
            model, settings.task, settings.items, progress=progress, shots=settings.shots
        )
        return result.to_dict() | {"accuracy_error": result.error}
    name = settings.task.removeprefix(LM_EVAL)
    (figures,) = lm_eval(model, [name], settings.items, shots=settings.shots or None).values()
    if "acc,none" not in figures:
        raise InputError(f"'{settings.task}' has no accuracy: {', '.join(figures)}.")
    return {
        "accuracy": figures["acc,none"],
        "accuracy_error": figures.get("acc_stderr,none"),
        "protocol": asdict(settings) | measured_with(model),
    }


LM_EVAL = "lm-eval:"  # before the name of a task of lm-eval's
LM_EVAL_TASKS = (
    "arc_challenge",
    "arc_easy",
    "boolq",
    "hellaswag",
    "lambada_openai",
    "mmlu",
    "openbookqa",
    "piqa",
    "winogrande",
)


def lm_eval(
    model: LoadedModel,
    tasks: Sequence[str | dict[str, Any]],
    limit: int | None = None,
    batch: int = 8,
    shots: int | None = None,
) -> dict[str, dict[str, float]]:
    """Results of lm-eval on a loaded model, {task: {metric: value}}; data come from the hub.

    tasks: names of lm-eval's tasks, or configurations: a mapping, or a .yaml file of one. limit:
    the most items per task. shots: examples before every question; None: as the task says. Raises
    InputError where lm-eval (`pip install lm-eval accelerate`) is
    not installed, a task is unknown or its data cannot be fetched.
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
    wrapped = HFLM(
        pretrained=model.network, tokenizer=model.tokenizer, backend="causal", batch_size=batch
    )
    try:
        outcome = simple_evaluate(
            model=wrapped, tasks=configs, limit=limit, bootstrap_iters=0, num_fewshot=shots
        )
    except (OSError, KeyError, ValueError) as error:  # unknown, or its data cannot be fetched
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
    """A task of lm-eval's from a .yaml file, without tags (!function) that run code."""
    try:
        config = yaml.safe_load(expanded(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"'{path}' cannot be read as a task of lm-eval's: {line}. It is YAML without tags "
            "such as !function."
        ) from error
    if not isinstance(config, dict) or "task" not in config:
        raise InputError(
            f"'{path}' names no task. A task of lm-eval's is a mapping with task, dataset_path, "
            "output_type, ..."
        )
    return config
