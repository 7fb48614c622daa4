"""A set of prompts answered by several models with the same settings: one row per prompt and model, and the table as CSV."""

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .calibrate import Progress, silent
from .data import load_texts
from .errors import InputError
from .generate import stream
from .models.load import LoadedModel


def read_prompts(path: str | Path) -> list[str]:
    """Prompts from a .txt file (one per line), or .jsonl and .json as data sets are read. Raises InputError where there is none."""
    path = Path(path).expanduser()
    if path.suffix == ".txt" and path.is_file():
        prompts = path.read_text(encoding="utf-8-sig").split("\n")
    else:
        prompts = load_texts(str(path)).documents
    found = [prompt.rstrip("\r\n") for prompt in prompts if prompt.strip()]
    if not found:
        raise InputError(f"'{path}' has no prompts: all of its lines are blank.")
    return found


def answers(
    models: Sequence[LoadedModel], prompts: Sequence[str], max_new_tokens: int = 64, temperature: float = 0.0, top_p: float = 1.0,
    seed: int = 0, progress: Progress | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per prompt and model, in that order: prompt, model, answer, tokens, seconds, tokens_per_second, same_as_first.

    The settings are those of `generate`; every answer starts from the same seed. tokens: of the answer, as the tokenizer counts them.
    same_as_first: whether the answer is, word for word, that of the first model.
    """
    progress, rows = progress or silent, []
    total = len(prompts) * len(models)
    for prompt in prompts:
        first = None
        for model in models:
            progress("answers", len(rows), total)
            began = time.perf_counter()
            answer = "".join(stream(model, prompt, max_new_tokens, temperature, top_p, seed))
            seconds = time.perf_counter() - began
            tokens = len(model.tokenizer(answer, add_special_tokens=False, verbose=False).input_ids) if answer else 0
            first = answer if first is None else first
            rows.append(
                {"prompt": prompt, "model": model.name, "answer": answer, "tokens": tokens, "seconds": round(seconds, 4),
                 "tokens_per_second": round(tokens / seconds, 2), "same_as_first": answer == first}
            )  # fmt: skip
    progress("answers", total, total)
    return rows


def answers_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `answers` as CSV, one line per prompt and model."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["prompt", "model", "answer"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
