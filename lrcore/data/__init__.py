"""Calibration and evaluation text: built in, local files, hub data sets; and token windows."""

from .assistant_tokens import Answer, answers, has_generation_tags
from .chat_template import is_rendered, template_key
from .held_out import file_and_split
from .stories import probes as stories_probes
from .text_files import write_texts
from .texts import (
    BUILTIN,
    Texts,
    apart_from,
    check_named,
    held_out,
    load_test_texts,
    load_texts,
    overlapping,
    with_text_field,
)
from .tokenized import Tokenized
from .tokens import bos_token, tokenize, tokenize_all
from .windows import Windows, begin_with, make_windows, windows_aside, with_bos

DATASETS = tuple(BUILTIN)

__all__ = [
    "BUILTIN",
    "DATASETS",
    "Answer",
    "Texts",
    "Tokenized",
    "Windows",
    "answers",
    "apart_from",
    "begin_with",
    "bos_token",
    "check_named",
    "file_and_split",
    "has_generation_tags",
    "held_out",
    "is_rendered",
    "load_test_texts",
    "load_texts",
    "make_windows",
    "overlapping",
    "stories_probes",
    "template_key",
    "tokenize",
    "tokenize_all",
    "windows_aside",
    "with_bos",
    "with_text_field",
    "write_texts",
]
