"""Calibration and evaluation text: built in, local files, hub data sets; and token windows."""

from lrcore.data.files import write_texts
from lrcore.data.held_out import file_and_split
from lrcore.data.stories import probes as stories_probes
from lrcore.data.texts import (
    BUILTIN,
    Texts,
    apart_from,
    check_named,
    held_out,
    load_texts,
    overlapping,
)
from lrcore.data.tokens import Tokenised, tokenise, tokenise_all
from lrcore.data.windows import Windows, make_windows, windows_aside

DATASETS = tuple(BUILTIN)

__all__ = [
    "BUILTIN",
    "DATASETS",
    "Texts",
    "Tokenised",
    "Windows",
    "apart_from",
    "check_named",
    "file_and_split",
    "held_out",
    "load_texts",
    "make_windows",
    "overlapping",
    "stories_probes",
    "tokenise",
    "tokenise_all",
    "windows_aside",
    "write_texts",
]
