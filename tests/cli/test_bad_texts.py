"""Invalid texts on the command line: one error line, exit code 2, nothing written.

Each case of a table contains one error.
"""

import json

import pytest

from lrcore.data import text_files as files
from lrcore.data import tokens

WORDS = "Once upon a time there was a girl. " * 20
TEXTS: dict[str, tuple[str, str | bytes]] = {
    "empty": (".txt", ""),
    "blank": (".txt", " \n\t\n"),
    "too short": (".txt", "Once"),
    "binary": (".txt", bytes(range(256)) * 4),
    "UTF-16": (".txt", WORDS.encode("utf-16")),
    "Latin-1": (".txt", (WORDS + "é").encode("latin-1")),
    "UTF-8 and Latin-1": (".txt", WORDS.encode() + "ä".encode("latin-1")),
    "cut within a character": (".txt", (WORDS + "€").encode()[:-1]),
    "no known extension": (".csv", WORDS),
    "compressed": (".txt.gz", WORDS),
    "JSON: empty": (".json", ""),
    "JSON: cut short": (".json", '[{"text": "a'),
    "JSON: an object": (".json", json.dumps({"text": WORDS})),
    "JSON: no rows": (".json", "[]"),
    "JSON: null": (".json", "null"),
    "JSON: lists of lists": (".json", json.dumps([[WORDS]])),
    "JSON: numbers": (".json", "[1, 2]"),
    "JSON: rows of null": (".json", "[null]"),
    "JSON: mixed rows": (".json", json.dumps([WORDS, {"text": WORDS}])),
    "JSON: nested objects": (".json", json.dumps([{"text": {"text": WORDS}}])),
    "JSON: nested too deep": (".json", "[" * 100_000 + "]" * 100_000),
    "JSON: the same key twice": (".json", '[{"text": "%s", "text": 5}]' % WORDS),  # noqa: UP031
    "JSON: a number of 5,000 digits": (".json", "[" + "1" * 5000 + "]"),
    "JSON: no field is text": (".json", '[{"a": 1, "b": 2}]'),
    "JSON: two fields are text": (".json", '[{"a": "x", "b": "y"}]'),
    "JSON: half a surrogate": (".json", json.dumps([{"text": "\ud800" * 100}])),
    "JSON: not UTF-8": (".json", b'["\xff"]'),
    "JSON lines: cut short": (".jsonl", '{"text": "a"}\n{"te'),
    "JSON lines: rows of other fields": (".jsonl", '{"text": "a"}\n{"words": "b"}'),
    "JSON lines: a list": (".jsonl", '["a"]'),
    "JSON lines: text is a number": (".jsonl", '{"text": 5}'),
    "JSON lines: blank": (".jsonl", "\n\n"),
    "JSON lines: nested too deep": (".jsonl", "[" * 100_000),
    "parquet: a text": (".parquet", WORDS),
    "parquet: cut short": (".parquet", b"PAR1" + b"\0" * 50),
}


@pytest.mark.parametrize("name", TEXTS)
def test_invalid_texts_are_refused(name, refused, tiny_llama, tmp_path):
    ending, content = TEXTS[name]
    file = tmp_path / f"text{ending}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    window_flags = ["--samples", 2, "--seq-len", 16]
    refused("compress", tiny_llama, "--data", file, "--out", tmp_path / "out", *window_flags)


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".json", ".parquet"])
def test_a_file_that_is_too_large_for_the_memory_is_not_read(
    ending, refused, tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "free_memory", lambda: (2 if ending == ".parquet" else 16) * 10**9)
    monkeypatch.setitem(files.READERS, ending, lambda _: pytest.fail("the file was read"))
    file = tmp_path / f"text{ending}"
    with file.open("wb") as made:
        made.truncate(2**30)
    message = refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)
    assert "are free" in message


def test_a_text_that_is_too_large_for_the_memory_is_not_tokenized(
    refused, tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(tokens, "free_memory", lambda: 10**6)
    file = tmp_path / "text.txt"
    file.write_text("Once " * 20_000)
    message = refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)
    assert "MB are free" in message


@pytest.mark.parametrize("target", ["nothing", "folder", "itself"])
def test_links_without_a_text_are_refused(target, refused, tiny_llama, tmp_path):
    (tmp_path / "folder").mkdir()
    file = tmp_path / "text.txt"
    file.symlink_to("text.txt" if target == "itself" else target)
    refused("evaluate", tiny_llama, "--data", file, "--seq-len", 16)
