"""Prompts answered by several models with the same settings: streamed side by side, or a table."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data import load_texts
from ..data.reading import reading
from ..errors import InputError
from ..generate import counted
from ..generation_settings import GenerationSettings
from ..models.load import LoadedModel
from ..places import expanded
from ..progress import Progress, silent


def read_prompts(path: str | Path) -> list[str]:
    """Prompts from a .txt file (one per line), or from .jsonl and .json as data sets are read.

    Raises InputError where the file cannot be read or holds no prompt.
    """
    path = expanded(path)
    if path.suffix == ".txt" and path.is_file():
        with reading(path):
            prompts = path.read_text(encoding="utf-8-sig").split("\n")
    else:
        prompts = list(load_texts(str(path), role="test").documents)
    kept = [prompt.rstrip("\r\n") for prompt in prompts if prompt.strip()]
    if not kept:
        raise InputError(f"'{path}' has no prompts: all of its lines are blank.")
    return kept


@dataclass
class Answer:
    """A model's answer so far; it grows while the model generates.

    seconds: this model's own time, prefill included. tokens: as the model made them; the text may
    have others when it is tokenised.
    """

    model: LoadedModel
    text: str = ""
    seconds: float = 0.0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def grow(self, pieces: Iterator[tuple[str, int]]) -> bool:
        """Append the next piece; False where there is none."""
        began = time.perf_counter()
        piece = next(pieces, None)
        self.seconds += time.perf_counter() - began
        if piece is None:
            return False
        text, self.tokens = piece
        self.text += text
        return True


def in_turns(
    models: Sequence[LoadedModel],
    prompt: str,
    settings: GenerationSettings | None = None,
    **fields: Any,
) -> Iterator[list[Answer]]:
    """Several models answer one prompt, a piece of text from each in turn.

    settings: of every model, seed included; fields: single ones by name, such as `temperature`.
    Yields the list of answers before the first piece and after each. Closing the iterator stops at
    the next token. Raises InputError as `stream` does.
    """
    own = GenerationSettings.of(settings, fields)
    growing = [Answer(model) for model in models]
    streams = [(answer, counted(answer.model, prompt, own)) for answer in growing]
    yield growing
    while streams:
        for one in list(streams):
            answer, pieces = one
            if answer.grow(pieces):
                yield growing
            else:
                streams.remove(one)


def answers(
    models: Sequence[LoadedModel],
    prompts: Sequence[str],
    settings: GenerationSettings | None = None,
    *,
    progress: Progress | None = None,
    **fields: Any,
) -> list[dict[str, Any]]:
    """One row per prompt and model, in that order, with the answer and its speed.

    settings: of every answer, seed included; fields: single ones by name, such as `temperature`.
    A row has prompt, model, answer, tokens, seconds, tokens_per_second, same_as_first (whether the
    text equals the first model's) and error: why there is no answer, such as a prompt beyond the
    context. No model's first forward pass is timed. Raises InputError for settings out of range.
    """
    progress, settings = progress or silent, GenerationSettings.of(settings, fields)
    rows: list[dict[str, Any]] = []
    total = len(prompts) * len(models)
    for model in models if prompts else ():  # a model's first pass sets up what the later ones use
        with suppress(InputError):  # of a prompt that gets no answer: its row says so
            next(counted(model, prompts[0], replace(settings, max_new_tokens=1)), None)
    for prompt in prompts:
        first = None
        for model in models:
            progress("answers", len(rows), total)
            one, error = Answer(model), ""
            try:
                *_, (one,) = in_turns([model], prompt, settings)
            except InputError as refused:
                error = str(refused)
            first = one.text if first is None else first
            rows.append(
                {
                    "prompt": prompt,
                    "model": model.name,
                    "answer": one.text,
                    "tokens": one.tokens,
                    "seconds": round(one.seconds, 4),
                    "tokens_per_second": round(one.tokens_per_second, 2),
                    "same_as_first": not error and one.text == first,
                    "error": error,
                }
            )
    progress("answers", total, total)
    return rows


def answers_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `answers` as CSV, one line per prompt and model."""
    out = io.StringIO()
    writer = csv.DictWriter(
        out, list(rows[0]) if rows else ["prompt", "model", "answer"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
