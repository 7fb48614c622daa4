"""Tables of exports by target in docs/serving.md, of which some cells are measured again."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers
from packaging.requirements import Requirement
from packaging.version import Version

import lrcore
from lrcore.methods import METHODS
from lrcore.recipes import targets

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import environments  # noqa: E402
import export_methods  # noqa: E402 (its folder is not a package)
import export_targets  # noqa: E402
import optimum_exports  # noqa: E402
import transformers_versions  # noqa: E402

from lrcore.recipes.targets import TARGETS  # noqa: E402

sys.path.remove(SCRIPTS)

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
RUN_AGAIN = {  # a cell per row that no other test covers
    "low-rank pairs": ("transformers", "mla"),
    "narrower MLPs, by layer": ("transformers",),
}


def table(section: str) -> list[list[str]]:
    """Return cells by row of the document, header first."""
    table_rows = re.search(f"<!-- begin {section} -->\n(.*?)<!-- end", PAGE, re.DOTALL)
    assert table_rows is not None
    lines = [line for line in table_rows[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def rows(section: str) -> dict[tuple[str, str], list[str]]:
    """Return cells by structure and target."""
    return {(element, target.strip("`")): values for element, target, *values in table(section)[1:]}


def made_of(structure: str) -> set[str]:
    """Return the structure of a table row, as named in targets.py."""
    changes = export_targets.STRUCTURES[structure]
    if changes is None:
        return set()
    structures = METHODS[changes["method"]].default_structures()
    structures &= TARGETS[changes.get("target", targets.DEFAULT)].native
    return {targets.QUANTIZED} if "4 bits" in structure else structures


@pytest.mark.parametrize("name", export_targets.MODELS)
def test_each_structure_has_a_row_for_each_target(name) -> None:
    table_cells = rows(f"where {name}")
    assert list(table_cells) == [
        (structure, target)
        for structure in export_targets.STRUCTURES
        for target in export_targets.TARGETS
    ]
    for (_, target), (tokens, perplexity, *_) in table_cells.items():
        assert target in TARGETS
        assert tokens in ("all", "refused")
        assert perplexity == "–" or abs(float(perplexity.rstrip("%"))) < 0.2


def test_the_table_agrees_with_exports_of_the_demo_model() -> None:
    table_cells = rows("where demo-llama")
    for structure, model in export_targets.structures("demo-llama", samples=2):
        for target in export_targets.TARGETS:
            refused = table_cells[structure, target][0] == "refused"
            if refused or target in RUN_AGAIN.get(structure, ()):
                cell = export_targets.cell(model, target)
                assert bool(cell.why) == refused
                if not refused:
                    assert cell.same[0] == cell.same[1] == 48
                    assert abs(cell.perplexity) < 1e-3


def test_structures_native_to_vllm_give_the_same_tokens_in_vllm() -> None:
    table_cells, native = rows("vllm smollm2-135m"), TARGETS["vllm"].native
    assert table_cells.keys() == {(structure, "vllm") for structure in export_targets.STRUCTURES}
    for (structure, _), (tokens, perplexity, *_) in table_cells.items():
        assert tokens == "all" or not made_of(structure) <= native
        assert perplexity == "–" or abs(float(perplexity.rstrip("%"))) < 0.2
    assert made_of("pairs in 4 bits") <= native


@pytest.mark.parametrize("name", export_targets.MODELS)
def test_exports_load_in_the_oldest_supported_and_the_installed_transformers(name) -> None:
    header, *table_rows = table(f"transformers {name}")
    assert header[1:] == list(export_targets.STRUCTURES)
    assert {cell for _, *cells in table_rows for cell in cells} == {"yes"}
    assert tuple(version for version, *_ in table_rows) == transformers_versions.VERSIONS
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (allowed,) = [Requirement(line) for line in lines if line.startswith("transformers")]
    (oldest,) = [element.version for element in allowed.specifier if element.operator == ">="]
    first, *_, last = map(Version, transformers_versions.VERSIONS)
    assert first == Version(f"{oldest}.0")
    assert last >= Version(transformers.__version__)


@pytest.mark.parametrize("name", export_targets.MODELS)
def test_optimum_loads_exports_without_custom_code_only(name) -> None:
    """For SmolLM2, the table has some of the structures only."""
    header, *table_rows = table(f"optimum {name}")
    tried = [
        element
        for element in export_targets.STRUCTURES
        if name == "demo-llama" or element in header
    ]
    assert header == tried != []
    titles = [library.title for library in optimum_exports.LIBRARIES.values()]
    assert {title: set(cells) for title, *cells in table_rows} == {
        f"{title}, {kind}": {cell}
        for title in titles
        for kind, cell in (("standard", "yes"), ("with code", "no"))
    }


@pytest.mark.parametrize("name", export_targets.MODELS)
def test_each_method_has_a_row_in_the_tables_of_mla_and_llama_cpp(name) -> None:
    header, *table_rows = table(f"mla {name}")
    assert header == list(export_methods.MLA_HEADER)
    assert [title for title, *_ in table_rows] == list(export_methods.MLA)
    for *_, tokens, logits, perplexity in table_rows:
        assert tokens == "all"
        assert float(logits) < 1e-4
        assert abs(float(perplexity.rstrip("%"))) < 0.01
    header, *table_rows = table(f"llama.cpp {name}")
    assert header == list(export_methods.GGUF_HEADER)
    assert list(dict.fromkeys(title for title, *_ in table_rows)) == list(export_methods.GGUF)
    for _, kind, *_, tokens, perplexity in table_rows:
        assert tokens == "all" or re.fullmatch(r"\d+ of 48", tokens)
        assert abs(float(perplexity.rstrip("%"))) < (0.2 if kind == "`f16`" else 2)


def test_the_rows_of_the_dense_demo_model_are_reproduced() -> None:
    dense = lrcore.load("demo-llama")
    latents, file = (table(f"{section} demo-llama")[1] for section in ("mla", "llama.cpp"))
    row = export_methods.as_latents("dense", dense)
    assert row[:-2] == latents[:-2]
    assert float(row[-2]) < 1e-5
    if find_spec("xllamacpp") is not None:
        assert export_methods.as_file("dense", dense, "f16")[:-1] == file[:-1]


def test_an_environment_sees_the_installed_packages_and_is_created_once(
    monkeypatch, tmp_path
) -> None:
    run, calls = subprocess.run, []

    def without_pip(call, **how: object) -> None:
        calls.append([str(word) for word in call[2:]])
        if "venv" in call:
            run(call, **how)

    monkeypatch.setattr(subprocess, "run", without_pip)
    folder = tmp_path / "venv"
    for _ in range(2):
        python = environments.environment(folder, ("one", "two"), ("three",))
    assert calls == [
        ["venv", "--without-pip", str(folder)],
        ["pip", "install", "-q", "one", "two"],
        ["pip", "uninstall", "-q", "-y", "three"],
    ]
    seen = "from importlib.util import find_spec; print(bool(find_spec('torch')))"
    assert run([python, "-c", seen], capture_output=True, text=True).stdout == "True\n"
