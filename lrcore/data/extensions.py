"""File name extensions of texts."""

from pathlib import Path

GZIP = ".gz"
PLAIN = (".txt", ".md")  # a text without rows
TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def ending(path: Path) -> str:
    """Return the extension of a file, without that of gzip."""
    is_packed = path.suffix.lower() == GZIP
    return (Path(path.stem) if is_packed else path).suffix.lower()
