"""Write assets/stories: python scripts/make_stories.py (a minute)."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stories

FOLDER = Path(__file__).parent.parent / "assets" / "stories"


def write(name: str, rows: Sequence[Any]) -> None:
    """Write a row per line, with the same bytes at each run."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    for split in stories.SIZES:
        write(f"stories.{split}.jsonl.gz", stories.documents(split))
    for split in ("calibration", "test"):
        write(f"questions.{split}.jsonl.gz", stories.probes(split))
