"""Levels of docs/architecture.md, checked in the source without imports."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from levels import Graph, graph, grouped, imports, levels, row_of, rows, sources  # noqa: E402

TABLE = rows()
MODULES = sources()
CORE = [name for name in MODULES if name.startswith("lrcore")]
PAGE = [name for name in MODULES if name.startswith("workbench")]
TENSORS_ONLY = {"lrcore/layers/", "lrcore/methods/", "lrcore/ranks/"}
MEND = "run python scripts/levels.py to update the table of docs/architecture.md"


@pytest.fixture(scope="module")
def needed() -> Graph:
    """Return the modules that each module imports; all sources are parsed."""
    return graph()


def outside(name: str) -> set[str]:
    """Return the top-level packages that a module imports."""
    return {module.split(".")[0] for module, _ in imports(MODULES[name])}


def test_each_module_has_a_row_and_each_row_a_module():
    assert TABLE.keys() == {row_of(name) for name in MODULES}, MEND


def test_modules_import_only_lower_levels_or_their_package(needed):
    higher = [
        f"{name} (level {TABLE.get(row_of(name))}) imports {imported}"
        for name in MODULES
        for imported in sorted(needed[name])
        if row_of(imported) != row_of(name)
        and TABLE.get(row_of(imported), 99) >= TABLE.get(row_of(name), -1)
    ]
    assert higher == [], MEND


@pytest.mark.parametrize("package", ["lrcore", "workbench"])
def test_no_module_imports_itself_indirectly(package, needed):
    needs = {
        name: {imported for imported in imported_modules if imported.startswith(package)}
        for name, imported_modules in needed.items()
        if name.startswith(package)
    }
    circular = sorted(needs.keys() - levels(needs).keys())
    assert not circular, "import cycles and modules that depend on them"


def test_levels_are_as_low_as_the_imports_allow(needed):
    level = levels(grouped(needed, row_of))
    assert max(TABLE.values()) == max(level.values()), MEND


def test_mathematical_modules_import_no_file_libraries():
    files = {"transformers", "safetensors", "huggingface_hub", "datasets", "tokenizers"}
    mathematical = [
        name
        for name in CORE
        if row_of(name) in TENSORS_ONLY
        and not name.startswith(("lrcore.layers.modules", "lrcore.layers.experts"))
    ]
    assert len(mathematical) > 50
    assert [name for name in mathematical if outside(name) & files] == []


def test_the_core_does_not_import_the_page():
    assert [name for name in CORE if outside(name) & {"gradio", "workbench", "app"}] == []


def test_a_single_module_of_the_core_imports_plotly():
    assert [name for name in CORE if "plotly" in outside(name)] == ["lrcore.system.notebooks"]


def test_the_page_uses_no_private_names_of_the_core():
    used = [
        (name, module, part)
        for name in PAGE
        for module, part in imports(MODULES[name])
        if module.split(".")[0] == "lrcore"
    ]
    assert [found for found in used if "._" in found[1] or found[2].startswith("_")] == []
    libraries = {"torch", "transformers", "safetensors"}
    assert [name for name in PAGE if outside(name) & libraries] == []
