"""Calibration texts in the sidebar: a note about the chosen text, and uploaded texts."""

import hashlib
import re
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.calibration.calibrate import TextPreview
from lrcore.compression.solve.tokens_needed import tokens_needed
from lrcore.recipes.history import about_tokens
from lrcore.system.files import write_text
from lrcore.system.path_access import strip_paths

from .. import words
from ..base.numbers import count, plural
from ..state.store import Store

FOLDER = ".texts"  # of uploaded texts, in the folder of runs
MAX_CHARACTERS = 600  # of a window
DROP = "Drop a text file here, or click to browse"
ENDINGS = [".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv"]
FIRST_WINDOW, BEGINNING = "The first window", "The text begins"


def text_note(store: Store, recipe: lrcore.Recipe | None) -> str:
    """Return HTML with the number of calibration tokens and, on hover, the first window.

    Until the text is read, the beginning of a local text replaces the first window.
    """
    if recipe is None:
        return ""
    size = window_sentence(store, recipe)
    few_tokens = few_tokens_note(store, recipe)
    name = words.spectra.short_name(recipe.data)
    if name != recipe.data:  # the field shows only the beginning of a path
        size = f"{escape(name)} · {size}"
    label, window = decoded(store, recipe)
    if not window:
        return f"<div class='note about'>{size}{few_tokens}</div>"
    return (
        f"<div class='note about'><details><summary title='{escape(window)}'>{size}</summary>"
        f"<p><b>{label}</b> {escape(window)}</p></details>{few_tokens}</div>"
    )


def few_tokens_note(store: Store, recipe: lrcore.Recipe) -> str:
    """Return HTML with a sentence if a loaded model needs more calibration tokens, else ""."""
    calibration, dense = store.peek_calibration(recipe), store.peek_dense(recipe)
    planned = recipe.samples * recipe.seq_len
    tokens = planned if calibration is None else calibration.tokens.numel()
    try:
        needed = 0 if dense is None else tokens_needed(dense.network, recipe)
    except lrcore.InputError:  # an invalid option, which the plan reports
        return ""
    sentence = about_tokens(tokens, needed)
    return f"<p class='few'>{sentence}</p>" if sentence else ""


def window_sentence(store: Store, recipe: lrcore.Recipe) -> str:
    """Return the number of tokens and windows, and the length of a text that is shorter."""
    calibration = store.peek_calibration(recipe)
    windows, length = recipe.samples, recipe.seq_len
    if calibration is not None:
        windows, length = calibration.tokens.shape
        available = calibration.protocol["tokens_available"]
    else:
        available = preview(store, recipe).tokens
    if available is not None and available < length:
        return f"{count(available)} tokens, fewer than one window of {count(length)}"
    if available is not None and recipe.sampling == "first":
        windows = min(windows, available // length)
    described = f"{plural(windows, 'window')} of {count(length)}"
    if available is not None and available < windows * length:  # random windows overlap
        return f"{described}, from {count(available)} tokens"
    return f"{count(windows * length)} tokens: {described}"


def preview(store: Store, recipe: lrcore.Recipe) -> TextPreview:
    """Return the beginning of the text; empty if it cannot be read, which the analysis reports."""
    try:
        return store.preview_text(recipe)
    except lrcore.InputError:
        return TextPreview()


def decoded(store: Store, recipe: lrcore.Recipe) -> tuple[str, str]:
    """Return a label and a piece of the text; an empty piece until the text is available."""
    calibration, dense = store.peek_calibration(recipe), store.peek_dense(recipe)
    if calibration is not None and dense is not None:
        return FIRST_WINDOW, shortened(calibration.text(dense.tokenizer))
    label = FIRST_WINDOW if recipe.sampling == "first" else BEGINNING
    return label, shortened(preview(store, recipe).beginning)


def shortened(window: str) -> str:
    """Return the beginning of a window on one line."""
    line = " ".join(window.split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 1]}…"


def store_upload(store: Store, path: str | None) -> list[Any]:
    """Store an uploaded text in the folder of runs; return values of the text field and the upload.

    Raises InputError for a file without text.
    """
    if not path:
        return [gr.skip(), gr.skip()]
    upload = Path(path)
    if upload.suffix.lower() not in ENDINGS:
        raise lrcore.InputError(
            f"'{upload.name}' cannot be read as text: its extension is '{upload.suffix}'. Valid "
            f"extensions are {', '.join(ENDINGS)}. Convert it, or name a file on the server."
        )
    try:
        content = upload.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise lrcore.InputError(f"'{upload.name}' is not UTF-8 text. Save it as UTF-8.") from error
    if not content.strip():
        raise lrcore.InputError(f"'{upload.name}' is empty. Choose a file with text.")
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    copy = store.runs.folder.resolve() / FOLDER / digest / file_name(upload.name)
    if not copy.exists():
        write_text(copy, content)
    # If other machines reach the page, names are relative to the folder of runs, whose path they
    # do not see.
    return [strip_paths(str(copy)), None]


def file_name(name: str) -> str:
    """Return a file name of letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]+", "-", name).lstrip(".-") or "text.txt"
