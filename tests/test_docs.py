"""Checks of the documents: wrapped prose, current generated pages, links and terms."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import structures_of

import lrcore
from lrcore.compression.evidence.layer_probes import SHARES
from lrcore.models.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import api  # noqa: E402
import architectures as families  # noqa: E402
from prose import wrap  # noqa: E402

from lrcore.methods import METHODS  # noqa: E402

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_prose_is_wrapped_at_100_columns(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert wrap(text) == text, f"python scripts/prose.py {path} wraps it"


@pytest.mark.slow
def test_the_page_of_the_public_api_is_current() -> None:
    current = api.PAGE.read_text(encoding="utf-8") == api.page()
    assert current, "run python scripts/api.py to update docs/api.md"


def test_the_page_of_families_is_current() -> None:
    current = families.PAGE.read_text(encoding="utf-8") == families.page()
    assert current, "run python scripts/architectures.py to update docs/architectures.md"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("methods.md", "compresses each slot separately to {} ranks"),
        ("methods.md", "whose {} probes of each slot"),
        ("methods.md", "Here {} ranks of each slot are measured"),
    ],
)
def test_pages_state_the_number_of_probed_ranks(page: str, words: str) -> None:
    read = " ".join((ROOT / "docs" / page).read_text().split())
    counts = (str(len(SHARES.all)), {4: "four", 5: "five"}[len(SHARES.all)])
    assert any(words.format(count) in read for count in counts)


def test_each_method_has_a_paper_to_cite() -> None:
    page = (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    words = " ".join(used for used, *_ in rows)
    assert {name for name in METHODS if f"`{name}`" not in words} == {"fused"}
    keys = [row[-1].strip("` |") for row in rows]
    entries = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8").split("\n\n")
    assert keys == [re.match(r"@\w+\{(\w+),", entry)[1] for entry in entries]
    assert all(entry.count("{") == entry.count("}") for entry in entries)


def test_all_families_were_measured_with_all_methods_and_passed() -> None:
    record = json.loads((ROOT / "docs" / "architectures.json").read_text(encoding="utf-8"))
    missing = ", ".join(sorted(ARCHITECTURES.keys() - record.keys()))
    assert not missing, families.UNMEASURED.format(missing)
    assert record == {
        family: {"a": [1, 1]} | {letter: [len(structures_of(family))] * 2 for letter in "bcde"}
        for family in ARCHITECTURES
    }


def test_all_causal_model_types_of_transformers_are_listed() -> None:
    record = json.loads(families.TYPES.read_text(encoding="utf-8"))
    if record["transformers"] == families.transformers.__version__:
        assert record["types"].keys() == families.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
    assert families.REFUSED.keys() <= record["types"].keys() - ARCHITECTURES.keys()
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in record["types"])


def test_a_family_that_was_not_measured_is_reported(monkeypatch) -> None:
    new = ARCHITECTURES | {"toyllama": replace(ARCHITECTURES["llama"], note="new")}
    monkeypatch.setattr(families, "ARCHITECTURES", new)
    with pytest.raises(SystemExit, match="toyllama: in the table of families but not yet measured"):
        families.page()


def test_all_public_names_are_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert not {name for name in lrcore.__all__ if f"`lrcore.{name}" not in page}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_existing_files(path: Path) -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)", path.read_text(encoding="utf-8"))
    assert not {link for link in links if not (path.parent / link).is_file()}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_use_the_terms_of_the_field(path: Path) -> None:
    private = (
        r"\bhouse\b|public words|late cells|\bshelf\b|\bwish\b|codes of|leaves? the house"
        r"|even ranks"
        r"|waits? on disk|\bturned\b|\blets? go\b|\bbears?\b|is beaten|\battended\b|\bstrip\b"
    )
    assert not re.findall(private, path.read_text(encoding="utf-8"), re.IGNORECASE)
