"""Build the documents as a website: `make docs` writes build/site.

The pages keep their paths (README.md is the first), so that links work as in the repository.
"""

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/**/*.md",
    "docs/*.ipynb",
    "docs/*.json",
    "docs/*.bib",
    "assets/pictures/*",
    "assets/demo-*/README.md",
)
LINKED_FILES = ("LICENSE", "CITATION.cff", "requirements*.txt")


def gather(target: Path) -> None:
    """Copy all pages and their files to an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    for pattern in PAGES + LINKED_FILES:
        for source in ROOT.glob(pattern):
            path = target / source.relative_to(ROOT)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
            if path.suffix == ".ipynb":
                path.with_suffix(".md").write_text(as_page(source), encoding="utf-8")


def as_page(notebook: Path) -> str:
    """Convert a notebook to Markdown."""
    parts = [f"[This page as a notebook]({notebook.name})"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    return "\n\n".join([parts[1], parts[0], *parts[2:]]) + "\n"  # title first


def build(out: Path, pages: Path) -> None:
    """Build the site in `out`. Raises mkdocs.exceptions.Abort for broken links or anchors."""
    from mkdocs.commands.build import build as write
    from mkdocs.config import load_config

    gather(pages)
    settings = {"docs_dir": str(pages), "site_dir": str(out), "strict": True}
    write(load_config(str(ROOT / "mkdocs.yml"), **settings))


def main(arguments: Sequence[str]) -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    out = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    build(out.resolve(), ROOT / "build" / "documents")
    print(f"wrote {out}/index.html")


if __name__ == "__main__":
    main(sys.argv[1:])
