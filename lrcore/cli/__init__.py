"""Command line, `python -m lrcore`, with the recipes of the page and the names of the package."""

from .commands import main

__all__ = ["main"]
