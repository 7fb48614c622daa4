"""Tables of exports in other libraries in docs/serving.md, tested again for installed libraries."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import export_targets  # noqa: E402
import libraries  # noqa: E402 (its folder is not a package)

pytestmark = pytest.mark.one_in(2)

sys.path.remove(SCRIPTS)

SLOW = ("`torch.compile`",)  # compiles C++ for minutes
USES = [pytest.param(use, marks=pytest.mark.soak if use in SLOW else ()) for use in libraries.USES]


def cells(name: str = export_targets.MODELS[0]) -> dict[str, list[str]]:
    """Return the cells of a model by row of the document."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    results = re.search(f"<!-- begin libraries {name} -->\n(.*?)<!-- end", page, re.DOTALL)
    assert results is not None
    rows = [line.strip("| ").split(" | ") for line in results[1].splitlines() if line[:1] == "|"]
    assert rows[0] == list(export_targets.STRUCTURES)
    return {use: row for use, *row in rows[2:]}


@pytest.mark.parametrize("name", export_targets.MODELS)
def test_each_use_has_a_row_with_a_result_for_each_structure(name) -> None:
    assert list(cells(name)) == list(libraries.USES)
    for row in cells(name).values():
        assert len(row) == len(export_targets.STRUCTURES)
        assert all(re.fullmatch(r"yes|no|nothing to \w+|[\d.]+%", structure) for structure in row)


@pytest.fixture(scope="module")
def models(tiny_llama):
    """Return a tiny model of each structure."""
    return dict(export_targets.structures(str(tiny_llama), samples=2, seq_len=32))


@pytest.mark.parametrize("use", USES)
def test_installed_libraries_give_the_results_in_the_table(use, models) -> None:
    """Only compare whether logits change, because the size of the change depends on the model."""
    if find_spec(library := libraries.NEEDS.get(use, "transformers")) is None:
        pytest.skip(f"{library} is not installed")
    results = [
        libraries.cell(use, models[structure], structure) for structure in export_targets.STRUCTURES
    ]
    assert [kind(structure) for structure in results] == [
        kind(structure) for structure in cells()[use]
    ]


def kind(cell: str) -> str:
    return re.sub(r"[\d.]+%", "changed", cell)
