"""The commands that let models write. Heavy imports wait until a command runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import check_file, write_text
from ..generation_settings import GenerationSettings
from .arguments import AsJson, Loading, ModelOrFolder
from .console import print_json, progress, show
from .flags import flags

app = typer.Typer()


@app.command()
@flags(loading=("revision", "dtype", "device", "merge_factors"))
def generate(
    model: ModelOrFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    generation: GenerationSettings,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt. Prints it and, as it is made, what follows."""
    import lrcore

    loaded, settings = loading.load(model), generation.to_dict()
    pieces = lrcore.stream(loaded, prompt, **settings)
    if as_json:
        print_json({"model": model, "prompt": prompt, "text": "".join(pieces), **settings})
        return
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


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

    Same settings and seed; the table goes to a CSV file.
    """
    if csv is not None:
        check_file(csv)
    progress.waits_for("load")
    import lrcore

    texts = lrcore.read_prompts(prompts)
    loaded = [loading.load(name) for name in models]
    rows = lrcore.answers(loaded, texts, generation, progress=progress)
    values: dict[str, Any] = {"prompts": len(texts)}
    if csv is not None:
        write_text(csv, lrcore.answers_csv(rows))
        values["csv"] = str(csv)
    show(as_json, values, "answers", rows)
