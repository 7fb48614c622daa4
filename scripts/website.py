"""The documents as a site: `make docs` writes build/site, which opens from the disk or any server.

The pages keep their places (README.md is the first), so that links are those of the repository.
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
    "docs/*.md",
    "docs/*.ipynb",
    "docs/*.json",
    "assets/pictures/*",
    "assets/demo-*/README.md",
)
OTHERS = ("LICENSE", "CITATION.cff", "requirements*.txt")  # what documents link to


def gather(target: Path) -> None:
    """A copy of all pages and what they show, in an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    for pattern in PAGES + OTHERS:
        for source in ROOT.glob(pattern):
            place = target / source.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
            if place.suffix == ".ipynb":
                place.with_suffix(".md").write_text(as_page(source), encoding="utf-8")


def as_page(notebook: Path) -> str:
    """A notebook as Markdown: its text, and its code in fences."""
    parts = [f"[This page as a notebook]({notebook.name})"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    return "\n\n".join([parts[1], parts[0], *parts[2:]]) + "\n"  # the title first


def build(out: Path, pages: Path) -> None:
    """The site in `out`. Raises mkdocs.exceptions.Abort where a link or an anchor leads nowhere."""
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
