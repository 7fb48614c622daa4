"""Arguments and virtual environments of scripts that run themselves in a second environment.

It is also imported in that environment, where only Python may be installed.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_path
from typing import Any


def parser_of(description: str | None, **inside: Any) -> argparse.ArgumentParser:
    """Return a parser with the arguments FOLDER, MODEL and `--inside`.

    FOLDER holds the environments; `--inside` marks a call in that environment. description:
    docstring of the script. inside: options of argparse for `--inside`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--inside", **inside)
    return parser


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add `--only`, which selects structures."""
    parser.add_argument("--only", action="append", default=[], help="a structure; repeatable")


def environment(
    folder: Path, installed: Sequence[str], removed: Sequence[str] = (), isolated: bool = False
) -> Path:
    """Return the Python of a virtual environment, which is created if it does not exist.

    installed: packages for pip. removed: installed packages that are broken or not needed.
    isolated: hide the packages of the current environment.
    """
    python = folder / "bin" / "python"
    if python.exists():
        return python
    options = () if isolated else ("--without-pip",)
    subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
    if not isolated:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "this-project.pth").write_text(f"{get_path('purelib')}\n", encoding="utf-8")
    pip = [python, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", *installed], check=True)
    if removed:
        subprocess.run([*pip, "uninstall", "-q", "-y", *removed], check=True)
    return python
