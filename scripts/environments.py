"""What the scripts share that call themselves in another environment: their arguments, and virtual
environments. It is imported there, too, where there may be nothing but Python.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_path
from typing import Any


def parser_of(words: str | None, **inside: Any) -> argparse.ArgumentParser:
    """FOLDER, which keeps the environments, the models, and `--inside`, which says that this is
    another environment. words: the docstring of the script; inside: what argparse is told of it.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--inside", **inside)
    return parser


def add_only(parser: argparse.ArgumentParser) -> None:
    """`--only`, of scripts that need not try all structures."""
    parser.add_argument("--only", action="append", default=[], help="a structure; repeatable")


def environment(
    folder: Path, installed: Sequence[str], removed: Sequence[str] = (), alone: bool = False
) -> Path:
    """The Python of a virtual environment, made where it is not there yet.

    installed: by pip; removed: what of that is broken, or not needed. alone: it sees no package of
    the environment that this runs in.
    """
    python = folder / "bin" / "python"
    if python.exists():
        return python
    how = () if alone else ("--without-pip",)
    subprocess.run([sys.executable, "-m", "venv", *how, folder], check=True)
    if not alone:
        (place,) = folder.glob("lib/python*/site-packages")
        (place / "this-project.pth").write_text(f"{get_path('purelib')}\n", encoding="utf-8")
    pip = [python, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", *installed], check=True)
    if removed:
        subprocess.run([*pip, "uninstall", "-q", "-y", *removed], check=True)
    return python
