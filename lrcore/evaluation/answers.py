"""Answers of several models to the same prompts, as streams or as a table."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data import load_texts
from ..data.chat_template import Messages
from ..data.rows import reading
from ..models.load import LoadedModel
from ..recipes.generation_settings import GenerationSettings
from ..system.errors import InputError
from ..system.path_access import expanded
from ..system.progress import Progress, silent
from .generate import stream_answer, stream_with_counts


def read_prompts(path: str | Path) -> list[str]:
    """Return the prompts of a file: a .txt file with one prompt per line, or .jsonl or .json in the
    format of data sets.

    Raises InputError if the file cannot be read or has no prompts.
    """
    path = expanded(path)
    if path.suffix == ".txt" and path.is_file():
        with reading(path):
            prompts = path.read_text(encoding="utf-8-sig").split("\n")
    else:
        texts = load_texts(str(path), role="test").as_plain_text(
            "Write a row per prompt: prompts are"
        )
        prompts = list(texts.documents)
    non_blank = [prompt.rstrip("\r\n") for prompt in prompts if prompt.strip()]
    if not non_blank:
        raise InputError(f"'{path}' has no prompts: all lines are blank.")
    return non_blank


@dataclass
class Answer:
    """The answer of a model, extended while the model generates.

    seconds: computing time of this model, including prefill. tokens: number of generated tokens;
    tokenizing `text` may give a different number.
    """

    model: LoadedModel
    text: str = ""
    seconds: float = 0.0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def advance(self, pieces: Iterator[tuple[str, int]]) -> bool:
        """Append the next piece. Returns False at the end of the answer."""
        start = time.perf_counter()
        piece = next(pieces, None)
        self.seconds += time.perf_counter() - start
        if piece is None:
            return False
        text, self.tokens = piece
        self.text += text
        return True


def stream_answers(
    models: Sequence[LoadedModel],
    prompt: str,
    settings: GenerationSettings | None = None,
    **fields: Any,
) -> Iterator[list[Answer]]:
    """Yield the answers of several models to a prompt, one piece of text of each model in turn.

    settings: the generation settings of all models, including the seed. fields: single settings by
    name, such as `temperature`. Yields the list of answers before the first piece and after each
    piece. Closing the iterator stops generation at the next token. Raises InputError like `stream`.
    """
    settings = GenerationSettings.of(settings, fields)
    return _in_turn(models, [stream_with_counts(model, prompt, settings) for model in models])


def stream_chat(
    models: Sequence[LoadedModel],
    conversations: Sequence[Messages],
    settings: GenerationSettings | None = None,
    **fields: Any,
) -> Iterator[list[Answer]]:
    """Yield the next answers of several models, like `stream_answers`.

    conversations: the messages {"role", "content"} of each model; the last is the user's. Raises
    InputError like `stream_answer`.
    """
    settings = GenerationSettings.of(settings, fields)
    streams = [
        stream_answer(model, messages, settings)
        for model, messages in zip(models, conversations, strict=True)
    ]
    return _in_turn(models, streams)


def _in_turn(
    models: Sequence[LoadedModel], streams: Sequence[Iterator[tuple[str, int]]]
) -> Iterator[list[Answer]]:
    """Yield the answers of all models before the first piece and after each piece.

    streams: the pieces of each model, with token counts; each model adds one piece in turn.
    """
    answers = [Answer(model) for model in models]
    active = list(zip(answers, streams, strict=True))
    yield answers
    while active:
        for pair in list(active):
            answer, pieces = pair
            if answer.advance(pieces):
                yield answers
            else:
                active.remove(pair)


def answer_prompts(
    models: Sequence[LoadedModel],
    prompts: Sequence[str],
    settings: GenerationSettings | None = None,
    *,
    progress: Progress | None = None,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Return one row per prompt and model, in that order, with the answer and its speed.

    settings: the generation settings of all answers, including the seed. fields: single settings by
    name, such as `temperature`. A row has prompt, model, answer, tokens, seconds,
    tokens_per_second, same_as_first (whether the text equals that of the first model) and error
    (why there is no answer, such as a prompt longer than the context). The first forward pass of
    each model is not timed. Raises InputError for settings out of range.
    """
    progress, settings = progress or silent, GenerationSettings.of(settings, fields)
    rows: list[dict[str, Any]] = []
    total = len(prompts) * len(models)
    for model in models if prompts else ():  # the first forward pass is slower
        with suppress(InputError):  # the row of this prompt reports the error
            next(stream_with_counts(model, prompts[0], replace(settings, max_new_tokens=1)), None)
    for prompt in prompts:
        first_text = None
        for model in models:
            progress("answers", len(rows), total)
            answer, error = Answer(model), ""
            try:
                *_, (answer,) = stream_answers([model], prompt, settings)
            except InputError as reason:
                error = str(reason)
            first_text = answer.text if first_text is None else first_text
            rows.append(
                {
                    "prompt": prompt,
                    "model": model.name,
                    "answer": answer.text,
                    "tokens": answer.tokens,
                    "seconds": round(answer.seconds, 4),
                    "tokens_per_second": round(answer.tokens_per_second, 2),
                    "same_as_first": not error and answer.text == first_text,
                    "error": error,
                }
            )
    progress("answers", total, total)
    return rows


def answers_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `answer_prompts` as CSV, one line per prompt and model."""
    buffer = io.StringIO()
    writer = csv.DictWriter(
        buffer, list(rows[0]) if rows else ["prompt", "model", "answer"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
