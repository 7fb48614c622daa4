"""Commands that generate text."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..recipes.generation_settings import GenerationSettings
from ..system.errors import InputError
from ..system.files import check_file, write_text
from .arguments import AsJson, Loading, ModelOrFolder
from .console import print_json, progress, show
from .flags import flags

app = typer.Typer()


@app.command()
@flags(loading=("revision", "dtype", "device", "merge_factors", "ratio"))
def generate(
    model: ModelOrFolder,
    generation: GenerationSettings,
    loading: Loading,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue.", show_default=False)
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Answer messages from standard input, a line each."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt, or chat. The text is printed during generation."""
    if chat == (prompt is not None):
        raise InputError("Enter either --prompt TEXT, or --chat to answer lines of standard input.")
    import lrcore

    loaded, settings = loading.load(model), generation.to_dict()
    if prompt is None:
        messages = _chat(loaded, generation, silent=as_json)
        if as_json:
            print_json({"model": model, "messages": messages, **settings})
        return
    pieces = lrcore.stream(loaded, prompt, **settings)
    if as_json:
        print_json({"model": model, "prompt": prompt, "text": "".join(pieces), **settings})
        return
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _chat(loaded: Any, generation: GenerationSettings, silent: bool) -> list[dict[str, Any]]:
    """Answer the lines of standard input, print the answers unless silent, and return all messages.

    Raises InputError for an input without a line, and like `stream_answer`.
    """
    from ..evaluation.generate import stream_answer

    messages: list[dict[str, Any]] = []
    for line in _lines():
        messages.append({"role": "user", "content": line})
        answer = ""
        for piece, _ in stream_answer(loaded, messages, generation):
            answer += piece
            if not silent:
                print(piece, end="", flush=True)
        if not silent:
            print(flush=True)
        messages.append({"role": "assistant", "content": answer})
    if not messages:
        raise InputError("Standard input has no message. Enter a line per message.")
    return messages


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank, after a mark on a terminal."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


@app.command()
@flags(loading=("dtype", "device", "merge_factors"))
def answers(
    models: Annotated[list[str], typer.Argument(metavar="A [B...]", help="Models or folders.")],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts: .txt (one per line), .jsonl or .json.")
    ],
    generation: GenerationSettings,
    loading: Loading,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a set of prompts with several models.

    All models use the same settings and seed.
    """

    if csv is not None:
        check_file(csv)
    progress.waits_for("load")

    from ..evaluation.answers import answer_prompts, answers_csv, read_prompts

    texts = read_prompts(prompts)
    loaded = [loading.load(name) for name in models]
    rows = answer_prompts(loaded, texts, generation, progress=progress)
    values: dict[str, Any] = {"prompts": len(texts)}
    if csv is not None:
        write_text(csv, answers_csv(rows))
        values["csv"] = str(csv)
    show(as_json, values, "answers", rows)
