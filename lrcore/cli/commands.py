"""The command line: the same recipes as the page, the same names as the package.

Heavy imports wait until a command runs.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import Cancelled, InputError
from ..shortage import shortage
from . import cache, compress, evaluate, export, generate, runs, sweep, transform
from .console import leave_streams, prepare_streams, progress, say

app = typer.Typer(
    help="Low-rank compression of transformer language models.\n\n"
    "MODEL is a built-in model (demo-llama, demo-opt, smollm2-135m), a folder, a .gguf file, a hub "
    "id, or a .gguf file of a hub repository (org/model/file.gguf). "
    "DATA is a built-in set (stories, python-docs), a .txt, .jsonl, .json or .parquet file, or a "
    "hub data set name:config:split.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for one in (compress, generate, evaluate, sweep, transform, export, cache):
    app.add_typer(one.app)
app.add_typer(runs.app, name="runs")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lrcore {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """What stands before a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 for bad input or where disk or memory do not
    suffice (one `error:` line), 130 where cancelled, 1 for a fault of ours.

    LRCORE_DEBUG=1 shows the traceback of a fault.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    progress.begin()
    prepare_streams()
    try:
        os.getcwd()  # a folder that is gone ends libraries without a sentence
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        result = typer.main.get_command(app).main(
            args=given, prog_name=_program(given), standalone_mode=False
        )
        if result == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()  # what cannot be written is said here, and not while Python ends
        return result if isinstance(result, int) else 0
    except InputError as error:
        return _stop(f"error: {error}", 2)
    except typer.TyperException as error:
        return _stop(f"error: {error.format_message().rstrip('.')}. See --help.", 2)
    except (Cancelled, KeyboardInterrupt, typer.Abort):
        return _stop("cancelled", 130)
    except BrokenPipeError:  # the reader, such as `head`, has what it wanted
        leave_streams()
        return 0
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # what a shell asked to complete
            raise
        leave_streams()
        return 0
    except Exception as error:
        if short := shortage(error):
            return _stop(f"error: {short}", 2)
        if os.environ.get("LRCORE_DEBUG"):
            raise
        return _stop(f"error: {type(error).__name__}: {error} (LRCORE_DEBUG=1 shows where)", 1)


def _program(given: Sequence[str]) -> str:
    """How it was called: by the installed command, or as a module. Shells complete a command."""
    called = Path(sys.argv[0]).stem == "lrcore" or any(one.endswith("-completion") for one in given)
    return "lrcore" if called else "python -m lrcore"


def _stop(message: str, code: int) -> int:
    progress.clear()
    say(message)
    leave_streams()
    return code
