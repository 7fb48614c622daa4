"""Multiple choice: which continuation the model scores highest, in total and per character.

Local files are .jsonl with {"question", "choices", "label"}; "stories" is built in. Conventions are
lm-eval's: a choice follows the question after a space, trailing blanks of the question belong to
the choice, and the normalised score divides by the choice's characters. A question with a blank "_"
(WinoGrande) is completed by each choice, and the text after the blank is scored.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ..data import stories_probes
from ..errors import InputError, unknown
from ..models.load import LoadedModel
from ..progress import Progress
from ..settings import check_least
from .evaluate import measured_with, window_losses
from .needle import is_needle, needle_items
from .protocols import prefix_token
from .settings import TaskSettings

BUILTIN_TASKS = ("stories",)
# one underscore that begins a word, "so _ always"; a line of underscores is no blank to fill
_BLANK = re.compile(r"(?<!\S)_(?!_)")


@dataclass(frozen=True)
class TaskResult:
    """Accuracy of a model on a task of multiple choice.

    accuracy: share of items whose labelled choice has the highest score; accuracy_normalised: per
    character (acc_norm of lm-eval). Both in [0, 1]. chance: accuracy of random guessing. error:
    standard error of `accuracy`. nonfinite: items with a NaN or infinite score; they count as
    wrong. cut: items whose question was truncated on the left to fit the context.
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_items(task: str, count: int | None = None) -> list[dict[str, Any]]:
    """The first `count` items of a built-in task or a .jsonl file.

    Raises InputError where the task is unknown, or the file is missing, empty or has an invalid
    line.
    """
    if task in BUILTIN_TASKS:
        return stories_probes("test", count)
    path = Path(task).expanduser()
    if path.suffix != ".jsonl" or not path.is_file():
        if path.suffix == ".jsonl":
            raise InputError(f"No file '{path}'. Relative paths start at {Path.cwd()}.")
        raise unknown(
            "task",
            task,
            BUILTIN_TASKS,
            'Otherwise needle-TOKENS, or a .jsonl file of {"question", "choices", "label"}.',
        )
    lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    if not lines:
        raise InputError(
            f"'{path}' has no items. Each line is one JSON object with question, choices and label."
        )
    return [
        _item(line, f"line {number} of '{path}'")
        for number, line in enumerate(lines[:count], start=1)
    ]


def _item(line: str, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is not valid JSON: {error}. Each line is one object with question, choices "
            "and label."
        ) from error
    fields = item if isinstance(item, dict) else {}
    choices, label = fields.get("choices"), fields.get("label")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise InputError(
            f"{where} has no list of at least two choices. An item reads {{'question': ..., "
            f"'choices': [...], 'label': 0}}."
        )
    known = type(label) is int and 0 <= label < len(choices)
    if not isinstance(fields.get("question"), str) or not known:
        raise InputError(
            f"{where}: question must be text and label the right choice's index, 0 to "
            f"{len(choices) - 1}; got {label!r}."
        )
    return fields


def score_choices(
    model: LoadedModel,
    task: str,
    items: int | None = None,
    batch: int = 16,
    progress: Progress | None = None,
    shots: int = 0,
) -> TaskResult:
    """Accuracy of `model` on multiple choice.

    task: "stories", a .jsonl file, or "needle-TOKENS" (see lrcore/evaluation/needle.py). items:
    only the first so many; None: all. batch: choices per forward pass. shots: solved examples
    before every question. Raises InputError as `read_items` and `with_examples` do, for items or
    batch below 1, and where a choice exceeds the context.
    """
    check_least("batch", batch, 1)
    check_least("shots", shots, 0)
    if items is not None:
        check_least("items", items, 1)
    chosen = with_examples(model, task, items, shots)
    pairs = [pair for item in chosen for pair in continuations(item)]
    encoded = [encode_pair(model, *pair) for pair in pairs]
    context = model.context or max(len(ids) for ids, _ in encoded)
    # one token more than the context: the last is predicted, never read
    rows = [(ids[-(context + 1) :], scored) for ids, scored in encoded]
    if any(scored >= len(ids) for ids, scored in rows):
        raise InputError(
            f"A choice alone is longer than the context of '{model.name}' ({context} tokens). Use "
            "a model with a longer one."
        )
    scores = likelihoods(model, rows, batch, progress)
    right, right_normalised, bad, cut, at = 0, 0, 0, 0, 0
    for item in chosen:
        own = slice(at, at + len(item["choices"]))
        at = own.stop
        raw = scores[own]
        lengths = [len(text.strip()) for _, text in continuations(item)]
        finite = all(map(math.isfinite, raw))
        bad += not finite
        cut += any(len(ids) > context + 1 for ids, _ in encoded[own])
        right += finite and best(raw) == item["label"]
        normalised = [score / n for score, n in zip(raw, lengths, strict=True)]
        right_normalised += finite and best(normalised) == item["label"]
    n, accuracy = len(chosen), right / len(chosen)
    chance = sum(1 / len(item["choices"]) for item in chosen) / n
    protocol = {
        "task": task,
        "items": n,
        "shots": shots,
        "special_tokens": False,
        **measured_with(model),
    }
    error = math.sqrt(accuracy * (1 - accuracy) / max(n - 1, 1))
    return TaskResult(task, n, accuracy, right_normalised / n, chance, error, bad, cut, protocol)


def with_examples(
    model: LoadedModel, task: str, items: int | None, shots: int
) -> list[dict[str, Any]]:
    """The first `items` of a task, each question after the same `shots` solved examples, a blank
    line after each.

    Examples of "stories" are of its calibration split; those of a file are its first items, which
    are then not asked. Raises InputError where a file has no more items than examples, and for
    examples of a needle.
    """
    if is_needle(task):
        if shots:
            raise InputError(f"Task '{task}' is long text, not examples: leave out shots.")
        return needle_items(model, task, items)
    if not shots:
        return read_items(task, items)
    if task in BUILTIN_TASKS:
        examples, chosen = stories_probes("calibration", shots), read_items(task, items)
    else:
        whole = read_items(task, None if items is None else items + shots)
        examples, chosen = whole[:shots], whole[shots:]
    if not chosen:
        raise InputError(
            f"'{task}' has {len(examples)} items, all of them examples: ask for fewer shots."
        )
    solved = "".join(f"{_solved(one)}\n\n" for one in examples)
    return [{**item, "question": solved + item["question"]} for item in chosen]


def _solved(item: dict[str, Any]) -> str:
    """The question with its right choice."""
    context, text = continuations(item)[int(item["label"])]
    return (context.rstrip() if text[0].isspace() else context) + text


def best(scores: list[float]) -> int:
    """The place of the largest, the first of equals."""
    return max(range(len(scores)), key=scores.__getitem__)


def continuations(item: dict[str, Any]) -> list[tuple[str, str]]:
    """(context, scored text) of each choice."""
    question, choices = item["question"], item["choices"]
    blank = _BLANK.split(question)
    if len(blank) == 2 and blank[1].strip():
        return [(blank[0] + choice, blank[1]) for choice in choices]
    return [(question, choice if choice[0].isspace() else f" {choice}") for choice in choices]


def encode_pair(model: LoadedModel, context: str, continuation: str) -> tuple[list[int], int]:
    """Tokens of both together, and how many of the last belong to the continuation.

    An empty context becomes the prefix token. Raises InputError where the tokenizer has none.
    """
    stripped = context.rstrip()
    continuation, context = context[len(stripped) :] + continuation, stripped
    encode = model.tokenizer
    whole = encode(context + continuation, add_special_tokens=False, verbose=False).input_ids
    begin = (
        len(encode(context, add_special_tokens=False, verbose=False).input_ids) if context else 0
    )
    if begin == 0:
        whole, begin = [prefix_token(model), *whole], 1
    return whole, max(1, len(whole) - begin)


def likelihoods(
    model: LoadedModel,
    rows: list[tuple[list[int], int]],
    batch: int,
    progress: Progress | None = None,
) -> list[float]:
    """log p of the last `scored` tokens of each row (tokens, scored), in nats.

    Rows of similar length share a batch, padded on the right, which a causal model does not see.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    scores = [math.nan] * len(rows)
    for start in range(0, len(rows), batch):
        chosen = order[start : start + batch]
        longest = max(len(rows[i][0]) for i in chosen)
        tokens = torch.tensor([rows[i][0] + [0] * (longest - len(rows[i][0])) for i in chosen])
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
        config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
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
