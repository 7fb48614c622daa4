"""Calibration and evaluation text: built in, local files, hub data sets; and token windows."""

from lrcore.data.stories import probes as stories_probes
from lrcore.data.texts import BUILTIN, Texts, load_texts
from lrcore.data.tokens import Tokenised, tokenise, tokenise_all
from lrcore.data.windows import Windows, make_windows

DATASETS = tuple(BUILTIN)

__all__ = [
    "BUILTIN",
    "DATASETS",
    "Texts",
    "Tokenised",
    "Windows",
    "load_texts",
    "make_windows",
    "stories_probes",
    "tokenise",
    "tokenise_all",
]
