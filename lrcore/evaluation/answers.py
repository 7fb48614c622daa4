"""Prompts answered by several models with the same settings: one in turns, as the answers grow,
or a set of them as a table.
"""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import load_texts
from ..errors import InputError
from ..generate import stream
from ..models.load import LoadedModel
from ..progress import Progress, silent


def read_prompts(path: str | Path) -> list[str]:
    """Prompts from a .txt file (one per line), or .jsonl and .json as data sets are read.

    Raises InputError where there is none.
    """
    path = Path(path).expanduser()
    if path.suffix == ".txt" and path.is_file():
        prompts = path.read_text(encoding="utf-8-sig").split("\n")
    else:
        prompts = load_texts(str(path)).documents
    found = [prompt.rstrip("\r\n") for prompt in prompts if prompt.strip()]
    if not found:
        raise InputError(f"'{path}' has no prompts: all of its lines are blank.")
    return found


@dataclass
class Answer:
    """What a model has answered so far.

    seconds: of this model's own turns, reading the prompt included.
    """

    model: LoadedModel
    text: str = ""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Of the answer, as the tokenizer counts them."""
        return (
            len(self.model.tokenizer(self.text, add_special_tokens=False, verbose=False).input_ids)
            if self.text
            else 0
        )

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def grow(self, pieces: Iterator[str]) -> bool:
        """Take the next piece; False where there is none."""
        began = time.perf_counter()
        piece = next(pieces, None)
        self.seconds += time.perf_counter() - began
        self.text += piece or ""
        return piece is not None


def in_turns(models: Sequence[LoadedModel], prompt: str, **settings: Any) -> Iterator[list[Answer]]:
    """Several models answer one prompt, a piece of text from each in turn.

    settings: those of `generate`; each starts from the same seed.

    Yields the answers, which grow, before the first piece and after each. Closing the iterator
    stops the work at the next token.
    """
    found = [Answer(model) for model in models]
    streams = [(one, stream(one.model, prompt, **settings)) for one in found]
    yield found
    while streams:
        for one in list(streams):
            answer, pieces = one
            if answer.grow(pieces):
                yield found
            else:
                streams.remove(one)


def answers(
    models: Sequence[LoadedModel],
    prompts: Sequence[str],
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One row per prompt and model, in that order: prompt, model, answer, tokens, seconds,
    tokens_per_second, same_as_first.

    The settings are those of `generate`; every answer starts from the same seed. same_as_first:
    whether the answer is, word for word, that of the first model.
    """
    progress, rows, total = progress or silent, [], len(prompts) * len(models)
    settings = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    for prompt in prompts:
        first = None
        for model in models:
            progress("answers", len(rows), total)
            *_, (one,) = in_turns([model], prompt, **settings)
            first = one.text if first is None else first
            rows.append(
                {
                    "prompt": prompt,
                    "model": model.name,
                    "answer": one.text,
                    "tokens": one.tokens,
                    "seconds": round(one.seconds, 4),
                    "tokens_per_second": round(one.tokens_per_second, 2),
                    "same_as_first": one.text == first,
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
