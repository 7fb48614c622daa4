"""The tables of docs/serving.md, what other libraries do with exports: every use is tried again of
which the library is here.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import libraries  # noqa: E402 (its folder is no package)
import where_it_runs  # noqa: E402

sys.path.remove(SCRIPTS)

SLOW = ("`torch.compile`",)  # some minutes of a C++ compiler
USES = [pytest.param(use, marks=pytest.mark.slow if use in SLOW else ()) for use in libraries.USES]


def cells(name: str = where_it_runs.MODELS[0]) -> dict[str, list[str]]:
    """The cells by row, as the document has them of a model."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    found = re.search(f"<!-- begin libraries {name} -->\n(.*?)<!-- end", page, re.DOTALL)
    assert found is not None
    rows = [line.strip("| ").split(" | ") for line in found[1].splitlines() if line[:1] == "|"]
    assert rows[0] == list(where_it_runs.STRUCTURES)
    return {use: own for use, *own in rows[2:]}


@pytest.mark.parametrize("name", where_it_runs.MODELS)
def test_every_use_has_a_row_with_a_finding_for_every_structure(name) -> None:
    assert list(cells(name)) == list(libraries.USES)
    for own in cells(name).values():
        assert len(own) == len(where_it_runs.STRUCTURES)
        assert all(re.fullmatch(r"yes|no|nothing to \w+|[\d.]+%", one) for one in own)


@pytest.fixture(scope="module")
def models(tiny_llama):
    """A tiny model of every structure."""
    return dict(where_it_runs.structures(str(tiny_llama), samples=2, seq_len=32))


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_library_that_is_here_gives_what_the_table_says(use, models) -> None:
    """Of a change of logits, that there is one: how large it is depends on the model."""
    if find_spec(library := libraries.NEEDS.get(use, "transformers")) is None:
        pytest.skip(f"{library} is not installed")
    found = [libraries.cell(use, models[one], one) for one in where_it_runs.STRUCTURES]
    assert [kind(one) for one in found] == [kind(one) for one in cells()[use]]


def kind(cell: str) -> str:
    return re.sub(r"[\d.]+%", "changed", cell)
