"""Calibration texts: what the sidebar says of the one that is chosen, and texts that are dropped
on it.
"""

import hashlib
import re
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

import lrcore

from .numbers import count
from .saving_text import short_name
from .store import Store

FOLDER = ".texts"  # in the folder of the runs: texts that were dropped on the page
MOST = 600  # characters of a window that are shown
DROP = "Drop a text of your own, or click"
ENDINGS = [".txt", ".jsonl", ".json"]
FIRST, BEGINS = "The first window", "The text begins"


def note(store: Store, recipe: lrcore.Recipe | None) -> str:
    """How many tokens calibration reads, as HTML; on hover and unfolded the first window, and
    before the text was read how it begins, where that is on this machine.
    """
    if recipe is None:
        return ""
    known = store.peek_calibration(recipe)
    windows, length = (recipe.samples, recipe.seq_len) if known is None else known.tokens.shape
    size = f"{count(windows * length)} tokens: {count(windows)} windows of {count(length)}"
    if (name := short_name(recipe.data)) != recipe.data:  # its box shows where the path begins
        size = f"{escape(name)} · {size}"
    label, window = decoded(store, recipe)
    if not window:
        return f"<div class='note about'>{size}</div>"
    return (
        f"<div class='note about'><details><summary title='{escape(window)}'>{size}</summary>"
        f"<p><b>{label}</b> {escape(window)}</p></details></div>"
    )


def decoded(store: Store, recipe: lrcore.Recipe) -> tuple[str, str]:
    """What is shown of the text, and its name; "" where nothing is known of it."""
    known, dense = store.peek_calibration(recipe), store.peek_dense(recipe)
    if known is not None and dense is not None:
        return FIRST, shortened(known.text(dense.tokenizer))
    try:
        head = store.text_head(recipe)
    except lrcore.InputError:  # Analyse says what is wrong
        head = ""
    return FIRST if recipe.sampling == "first" else BEGINS, shortened(head)


def shortened(window: str) -> str:
    """The beginning of a window, on one line."""
    line = " ".join(window.split())
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"


def take(store: Store, path: str | None) -> list[Any]:
    """Keep a text that was dropped on the page, so that it outlives the server, and choose it: its
    place for the field of the text, and nothing for the place it was dropped on.

    Raises InputError for a file that holds no text.
    """
    if not path:
        return [gr.skip(), gr.skip()]
    given = Path(path)
    if given.suffix.lower() not in ENDINGS:
        raise lrcore.InputError(
            f"'{given.name}' is no text that can be read: its extension is '{given.suffix}'. Known "
            f"here: {', '.join(ENDINGS)}. Convert it, or name a file on the server."
        )
    try:
        content = given.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise lrcore.InputError(
            f"'{given.name}' is not UTF-8 text: it has another encoding or is a binary file. Save "
            "it as UTF-8."
        ) from error
    if not content.strip():
        raise lrcore.InputError(f"'{given.name}' holds no text. Choose a file with text.")
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    kept = store.runs.folder.resolve() / FOLDER / digest / plain(given.name)
    if not kept.exists():
        lrcore.write_text(kept, content)
    # Where others reach the page, names start in the folder of the runs, whose place is not theirs
    # to know.
    return [lrcore.without_paths(str(kept)), None]


def plain(name: str) -> str:
    """A file name of letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]+", "-", name).lstrip(".-") or "text.txt"
