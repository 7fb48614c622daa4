"""Perplexity of a chat model on the assistant's tokens, calibrated on conversations and on text."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lrcore
from lrcore.evaluation.evaluate import Evaluation

from .perplexity import figures_of
from .record import add_cell, read_record
from .report import log, table, with_error, write_section
from .subjects import REAL_MODEL, reference_text

METHODS = ("fused", "modegpt")
RATIOS = (0.2, 0.4)
CALIBRATION, WINDOWS, LENGTH = 500, 16, 512  # conversations to sample from, and windows of tokens
CONVERSATIONS = 64  # measured, after those of the calibration
PROTOCOL = "assistant"
FIGURES = ("chat", "text", "difference")


def chat(models: list[str]) -> None:
    """Measure the missing methods and write the table after each method."""
    if (text := reference_text(models)) is None:
        return
    model = lrcore.load(REAL_MODEL)
    with tempfile.TemporaryDirectory() as folder:
        calibration, measured = _split(text / "alpaca.sample.json", Path(folder))
        settings = lrcore.EvaluationSettings(str(measured), CONVERSATIONS, protocol=PROTOCOL)
        sources = {"chat": str(calibration), "text": str(text / "wikitext2.train.txt")}
        dense = lrcore.evaluate(model, settings)
        for method in METHODS:
            if _key(method, RATIOS[-1]) not in read_record()[REAL_MODEL].get("chat", {}):
                evaluations = {
                    name: list(_compressed(model, method, data, settings))
                    for name, data in sources.items()
                }
                for number, ratio in enumerate(RATIOS):
                    pair = {name: found[number] for name, found in evaluations.items()}
                    cell = _cell(dense=dense, **pair)
                    log(f"chat {method} {ratio} {cell}")
                    add_cell(REAL_MODEL, "chat", _key(method, ratio), cell)
            write_section("chat", section(read_record()[REAL_MODEL]["chat"]))


def _split(rows: Path, folder: Path) -> tuple[Path, Path]:
    """Write the conversations for calibration and for evaluation to two files."""
    conversations = json.loads(rows.read_text(encoding="utf-8"))
    parts = {"calibration": conversations[:CALIBRATION], "measured": conversations[CALIBRATION:]}
    files = [folder / f"{name}.jsonl" for name in parts]
    for file, part in zip(files, parts.values(), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return files[0], files[1]


def _compressed(
    model: lrcore.LoadedModel, method: str, data: str, settings: lrcore.EvaluationSettings
) -> Iterator[Evaluation]:
    """Yield the evaluation at each ratio of a model that is calibrated on a text."""
    recipe = lrcore.Recipe(
        model=REAL_MODEL, data=data, samples=WINDOWS, seq_len=LENGTH, method=method
    )
    factors = lrcore.prepare(model, recipe)
    for ratio in RATIOS:
        compressed = lrcore.compress(model, recipe.with_(ratio=ratio), factors)
        yield lrcore.evaluate(compressed, settings)


def _cell(dense: Evaluation, chat: Evaluation, text: Evaluation) -> dict[str, Any]:
    """Return the perplexities by calibration, and the paired error of their difference."""
    return {
        "dense": round(dense.perplexity, 4),
        "tokens": dense.tokens,
        "chat": figures_of(chat, dense),
        "text": figures_of(text, dense),
        "difference": {
            "perplexity": round(text.perplexity - chat.perplexity, 4),
            "error": figures_of(text, chat)["error"],
        },
    }


def _key(method: str, ratio: float) -> str:
    return f"{method} uniform {ratio}"


def section(cells: Mapping[str, Any]) -> str:
    """Return a row per method and ratio."""
    first = next(iter(cells.values()))
    caption = (
        f"**{REAL_MODEL}**, {first['tokens']:,} tokens of the assistant in {CONVERSATIONS} "
        f"conversations, dense perplexity {first['dense']:.3f}:"
    )
    header = ["removed", "method", "calibrated on conversations", "on text", "text − conversations"]
    rows = [
        [f"{ratio:.0%}", method, *(with_error(cell[name]) for name in FIGURES)]
        for ratio in RATIOS
        for method in METHODS
        if (cell := cells.get(_key(method, ratio)))
    ]
    return f"{caption}\n\n{table(header, rows)}"
