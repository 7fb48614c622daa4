"""The site of `make docs`: all documents are pages, links lead to pages, and no resources are
loaded from other hosts.
"""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from website import build  # noqa: E402

from benchmarks.rankings import choice_block  # noqa: E402
from benchmarks.report import section_text  # noqa: E402
from lrcore.models.load import DEMO_MODELS  # noqa: E402

pytest.importorskip("material", reason="mkdocs-material is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("website")
    build(folder / "site", folder / "documents")
    return folder / "site"


def address(page: Path) -> str:
    """Return the address of a document in the site; README.md is the index of its folder."""
    path = page.relative_to(ROOT).with_suffix(".html").as_posix()
    return path.replace("README.html", "index.html")


def test_each_document_is_a_page(site) -> None:
    written = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    assert {address(path).removesuffix(".html") for path in ROOT.glob("docs/**/*.md")} <= written
    assert {"index", "CHANGELOG", "CONTRIBUTING", "SECURITY"} <= written
    assert {path.stem for path in ROOT.glob("docs/*.ipynb")} <= {
        Path(name).name for name in written
    }


def test_each_document_is_in_the_navigation(site) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert {address(path) for path in ROOT.glob("docs/**/*.md")} <= set(
        re.findall(r'href="([^"#]+)', first)
    )


def test_a_page_loads_nothing_from_another_host(site) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="([^"]+)', text)
        loaded += re.findall(r'<link[^>]+href="([^"]+)', text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)]


def test_a_broken_link_is_an_error(tmp_path, monkeypatch) -> None:
    import website

    small = tmp_path / "small"
    (small / "docs").mkdir(parents=True)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (small / "mkdocs.yml").write_text(settings[: settings.index("nav:")], encoding="utf-8")
    (small / "README.md").write_text("[there](docs/nowhere.md)", encoding="utf-8")
    monkeypatch.setattr(website, "ROOT", small)
    with pytest.raises(SystemExit, match="1 warning"):
        build(tmp_path / "site", tmp_path / "documents")


SUBJECTS = (*DEMO_MODELS, "stories260K")


def test_the_tables_of_advice_follow_from_the_benchmark_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "record.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    # subjects with all columns: trained models are measured in part, and random ones are omitted
    measured = {title: measurements for title, measurements in record.items() if title in SUBJECTS}
    assert page.count("<!-- begin choice ") == len(measured) > 2
    for title, measurements in measured.items():
        block = page.split(f"<!-- begin choice {title} -->\n")[1].split("<!-- end")[0]
        assert block == section_text(f"choice {title}", choice_block(title, measurements))
