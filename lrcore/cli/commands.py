"""Command line application and error handling.

Modules that import torch are imported when a command runs.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..recipes.former_names import current_arguments
from ..system.errors import Cancelled, InputError
from ..system.resource_errors import resource_error
from . import cache, compress, evaluate, export, generate, runs, sweep, transform
from .console import leave_streams, prepare_streams, progress, say

app = typer.Typer(
    help="Low-rank compression of transformer language models.\n\n"
    "MODEL is a built-in model (demo-llama, demo-opt, smollm2-135m), a folder, a .gguf file, a hub "
    "id, or a .gguf file of a hub repository (org/model/file.gguf). "
    "DATA is a built-in set (stories, python-docs), a file (.txt, .md, .jsonl, .json, .csv or "
    ".parquet; FILE#FIELD names a field), or a hub data set name:config:split.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for module in (compress, generate, evaluate, sweep, transform, export, cache):
    app.add_typer(module.app)
app.add_typer(runs.app, name="runs")


def _version(is_requested: bool) -> None:
    if is_requested:
        print(f"lrcore {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Options before the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    0: success; 2: invalid input, or a full disk or memory, with a line `error: ...`; 130: canceled;
    1: a bug, with a traceback if LRCORE_DEBUG=1.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    progress.begin()
    prepare_streams()
    try:
        os.getcwd()  # libraries fail without a message if the working folder is deleted
        words = current_arguments(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        result = typer.main.get_command(app).main(
            args=words, prog_name=_program(words), standalone_mode=False
        )
        if result == 130:  # typer returns it for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()  # errors are reported here, not at the exit of Python
        return result if isinstance(result, int) else 0
    except InputError as error:
        return _stop(f"error: {error}", 2)
    except typer.TyperException as error:
        return _stop(f"error: {error.format_message().rstrip('.')}. See --help.", 2)
    except (Cancelled, KeyboardInterrupt, typer.Abort):
        return _stop("canceled", 130)
    except BrokenPipeError:  # the reader, such as `head`, has ended
        leave_streams()
        return 0
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # completion of a shell
            raise
        leave_streams()
        return 0
    except Exception as error:
        if converted := resource_error(error):
            return _stop(f"error: {converted}", 2)
        if os.environ.get("LRCORE_DEBUG"):
            raise
        return _stop(f"error: {type(error).__name__}: {error} (LRCORE_DEBUG=1 shows where)", 1)


def _program(words: Sequence[str]) -> str:
    """Return the name in usage messages: of the installed command or of the module. Shell
    completion always uses the command.
    """
    is_command = Path(sys.argv[0]).stem == "lrcore"
    is_command = is_command or any(word.endswith("-completion") for word in words)
    return "lrcore" if is_command else "python -m lrcore"


def _stop(message: str, code: int) -> int:
    progress.clear()
    say(message)
    leave_streams()
    return code
