"""Write the folder of a Hugging Face Space: the page and the files that it reads.

    python scripts/space.py FOLDER
    hf upload OWNER/NAME FOLDER --repo-type space

FOLDER must be new or empty. The Space installs requirements.txt and runs `python app.py`; the front
matter of README.md contains its settings.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("README.md", "LICENSE", "CITATION.cff", "app.py", "requirements.txt")
FOLDERS = ("assets", "docs", "lrcore", "workbench")  # docs: linked from README.md
WITHOUT = shutil.ignore_patterns("__pycache__", ".*")


def write_space(folder: Path) -> None:
    """Copy the files of the page to a folder. Raises SystemExit if it has files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"error: {folder} is not an empty folder; name a new one.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=WITHOUT)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    write_space(Path(sys.argv[1]))
