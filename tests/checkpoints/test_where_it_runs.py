"""The table of docs/serving.md, what runs where: some of its cells are measured again."""

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
from lrcore import targets
from lrcore.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import by_method  # noqa: E402 (its folder is no package)
import environments  # noqa: E402
import optimum_exports  # noqa: E402
import transformers_versions  # noqa: E402
import where_it_runs  # noqa: E402

sys.path.remove(SCRIPTS)

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
RUN_AGAIN = {  # a row of those that no other test has
    "low-rank pairs": ("transformers", "mla"),
    "narrower MLPs, by layer": ("transformers",),
}


def table(section: str) -> list[list[str]]:
    """Cells by row, as the document has them; the header first."""
    found = re.search(f"<!-- begin {section} -->\n(.*?)<!-- end", PAGE, re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def rows(section: str) -> dict[tuple[str, str], list[str]]:
    """Cells by structure and target."""
    return {(one, target.strip("`")): rest for one, target, *rest in table(section)[1:]}


def made_of(structure: str) -> set[str]:
    """What a row of the tables consists of, as targets.py names it."""
    changes = where_it_runs.STRUCTURES[structure]
    if changes is None:
        return set()
    own = METHODS[changes["method"]].own_structures()
    own &= lrcore.TARGETS[changes.get("target", targets.DEFAULT)].native
    return {targets.QUANTISED} if "4 bits" in structure else own


@pytest.mark.parametrize("name", where_it_runs.MODELS)
def test_every_structure_has_a_row_for_every_target(name) -> None:
    known = rows(f"where {name}")
    assert list(known) == [
        (structure, target)
        for structure in where_it_runs.STRUCTURES
        for target in where_it_runs.TARGETS
    ]
    for (_, target), (tokens, perplexity, *_) in known.items():
        assert target in lrcore.TARGETS
        assert tokens in ("all", "refused")
        assert perplexity == "–" or abs(float(perplexity.rstrip("%"))) < 0.2


def test_the_table_is_what_exports_of_the_demo_model_do() -> None:
    known = rows("where demo-llama")
    for structure, model in where_it_runs.structures("demo-llama", samples=2):
        for target in where_it_runs.TARGETS:
            refused = known[structure, target][0] == "refused"
            if refused or target in RUN_AGAIN.get(structure, ()):
                cell = where_it_runs.cell(model, target)
                assert bool(cell.why) == refused
                if not refused:
                    assert cell.same[0] == cell.same[1] == 48
                    assert abs(cell.perplexity) < 1e-3


def test_what_vllm_runs_natively_gives_the_same_tokens_there() -> None:
    known, native = rows("vllm smollm2-135m"), lrcore.TARGETS["vllm"].native
    assert known.keys() == {(structure, "vllm") for structure in where_it_runs.STRUCTURES}
    for (structure, _), (tokens, perplexity, *_) in known.items():
        assert tokens == "all" or not made_of(structure) <= native
        assert perplexity == "–" or abs(float(perplexity.rstrip("%"))) < 0.2
    assert made_of("pairs in 4 bits") <= native


@pytest.mark.parametrize("name", where_it_runs.MODELS)
def test_exports_load_on_the_oldest_release_that_is_allowed_and_the_one_of_here(name) -> None:
    header, *found = table(f"transformers {name}")
    assert header[1:] == list(where_it_runs.STRUCTURES)
    assert {cell for _, *cells in found for cell in cells} == {"yes"}
    assert tuple(version for version, *_ in found) == transformers_versions.VERSIONS
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (allowed,) = [Requirement(line) for line in lines if line.startswith("transformers")]
    (oldest,) = [one.version for one in allowed.specifier if one.operator == ">="]
    first, *_, last = map(Version, transformers_versions.VERSIONS)
    assert first == Version(f"{oldest}.0")
    assert last >= Version(transformers.__version__)


@pytest.mark.parametrize("name", where_it_runs.MODELS)
def test_optimum_takes_every_structure_without_code_and_none_with(name) -> None:
    """Of SmolLM2 not all structures were tried."""
    header, *found = table(f"optimum {name}")
    tried = [one for one in where_it_runs.STRUCTURES if name == "demo-llama" or one in header]
    assert header == tried != []
    titles = [library.title for library in optimum_exports.LIBRARIES.values()]
    assert {title: set(cells) for title, *cells in found} == {
        f"{title}, {kind}": {cell}
        for title in titles
        for kind, cell in (("stock", "yes"), ("with code", "no"))
    }


@pytest.mark.parametrize("name", where_it_runs.MODELS)
def test_every_method_has_a_row_as_latents_and_in_llama_cpp(name) -> None:
    header, *found = table(f"mla {name}")
    assert header == list(by_method.MLA_HEADER)
    assert [title for title, *_ in found] == list(by_method.MLA)
    for *_, tokens, logits, perplexity in found:
        assert tokens == "all"
        assert float(logits) < 1e-4
        assert abs(float(perplexity.rstrip("%"))) < 0.01
    header, *found = table(f"llama.cpp {name}")
    assert header == list(by_method.GGUF_HEADER)
    assert list(dict.fromkeys(title for title, *_ in found)) == list(by_method.GGUF)
    for _, kind, *_, tokens, perplexity in found:
        assert tokens == "all" or re.fullmatch(r"\d+ of 48", tokens)
        assert abs(float(perplexity.rstrip("%"))) < (0.2 if kind == "`f16`" else 2)


def test_the_dense_demo_model_has_the_rows_of_those_tables_again() -> None:
    dense = lrcore.load("demo-llama")
    latents, file = (table(f"{section} demo-llama")[1] for section in ("mla", "llama.cpp"))
    again = by_method.as_latents("dense", dense)
    assert again[:-2] == latents[:-2]
    assert float(again[-2]) < 1e-5
    if find_spec("xllamacpp") is not None:
        assert by_method.as_file("dense", dense, "f16")[:-1] == file[:-1]


def test_an_environment_sees_the_packages_of_this_one_and_is_made_once(
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
