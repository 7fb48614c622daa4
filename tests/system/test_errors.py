"""Articles before names in error messages."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import lrcore
from lrcore.models.architectures import ARCHITECTURES, MULTIMODAL
from lrcore.system.errors import with_article

PACKAGE = Path(lrcore.__file__).parent
AN = {
    "afmoe",
    "exaone_moe",
    "arcee",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "mpt",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "internlm3",
    "internvl",
    "apertus",
    "exaone",
    "axk1",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "olmo_hybrid",
}
OF_A_FEW = {"kind", "UNEVEN"}  # expressions that never begin with a vowel


def test_names_with_an_initial_vowel_sound_have_the_article_an() -> None:
    assert {
        name for name in {**ARCHITECTURES, **MULTIMODAL} if with_article(name)[:2] == "an"
    } == AN
    assert [with_article(name) for name in ("int", "dict", "NoneType", "xglm", "gpt2")] == [
        "an int",
        "a dict",
        "a NoneType",
        "an xglm",
        "a gpt2",
    ]


def test_no_message_has_a_fixed_article_before_an_inserted_name() -> None:
    gaps = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for text, gap in pairwise(parts):
                words = text.value if isinstance(text, ast.Constant) else ""
                if re.search(r"\b[Aa]n? $", words) and isinstance(gap, ast.FormattedValue):
                    gaps.append(ast.unparse(gap.value))
    assert set(gaps) <= OF_A_FEW


@pytest.mark.parametrize(("value", "words"), [(5, "Cannot load an int"), ({}, "load a dict")])
def test_a_refusal_has_the_article_of_the_given_type(value, words) -> None:
    with pytest.raises(lrcore.InputError, match=words):
        lrcore.load(value)
