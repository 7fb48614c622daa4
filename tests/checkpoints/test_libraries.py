"""The table of docs/serving.md, what other libraries do with exports: some of it is tried again."""

import re
import sys
from pathlib import Path

import pytest

import lrcore

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import libraries  # noqa: E402 (its folder is no package)
import where_it_runs  # noqa: E402

sys.path.remove(SCRIPTS)

QUICK = ("left-padded batches", "`save_pretrained` again", '`pipeline("text-generation")`')


def cells() -> dict[str, list[str]]:
    """The cells by row, as the document has them."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    found = re.search("<!-- begin libraries -->\n(.*?)<!-- end", page, re.DOTALL)
    assert found is not None
    rows = [line.strip("| ").split(" | ") for line in found[1].splitlines() if line[:1] == "|"]
    assert rows[0] == list(where_it_runs.STRUCTURES)
    return {use: own for use, *own in rows[2:]}


def test_every_use_has_a_row_with_a_finding_for_every_structure() -> None:
    assert list(cells()) == list(libraries.USES)
    for own in cells().values():
        assert len(own) == len(where_it_runs.STRUCTURES)
        assert all(re.fullmatch(r"yes|no|nothing to \w+|[\d.]+%", one) for one in own)


@pytest.mark.parametrize("use", QUICK)
def test_what_needs_no_other_library_holds(use) -> None:
    recipe = lrcore.Recipe("demo-llama", method="care", samples=2, seq_len=64, ratio=0.2)
    model = lrcore.compress(lrcore.load("demo-llama"), recipe)
    at = list(where_it_runs.STRUCTURES).index("cached latents")
    assert libraries.cell(use, model, "cached latents") == cells()[use][at] == "yes"
