"""Every sentence of the source that is put together, with a place of the server in each gap: where
others reach the page, none of them is told.
"""

import ast
from pathlib import Path

import pytest

from lrcore.system.path_access import restrict_paths, strip_paths

ROOT = Path(__file__).parents[2]
FILES = [file for name in ("lrcore", "workbench") for file in sorted((ROOT / name).rglob("*.py"))]
ERRORS = {"InputError", "ResourceError", "ValueError", "OSError", "RuntimeError", "unknown"}
HIDDEN = "secluded"  # part of every place below
TOKEN = "hf_verysecret"


def sentences():
    """The texts that errors are made of, as their parts: text, or None for a gap."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node, "func", None)
            called = getattr(name, "id", getattr(name, "attr", ""))
            if isinstance(node, ast.Call) and called in ERRORS:
                for text in node.args:
                    if isinstance(text, ast.JoinedStr):
                        parts = text.values
                        yield [p.value if isinstance(p, ast.Constant) else None for p in parts]


def filled(parts, path: str):
    """The sentence with the path in one gap after the other, and a letter in the others. What goes
    on from a word, a slash or a full stop is no path of its own.
    """
    for at, part in enumerate(parts):
        before = (parts[at - 1] or "x")[-1] if at else " "
        if part is None and not (before.isalnum() or before in "/\\."):
            yield "".join(path if i == at else (text or "x") for i, text in enumerate(parts))


@pytest.fixture
def confined(tmp_path, monkeypatch):
    root = tmp_path / HIDDEN / "of two words"
    root.mkdir(parents=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", f"http://{HIDDEN}.internal:8080")
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{HIDDEN}@proxy.internal:8080")
    restrict_paths([root])
    yield root
    restrict_paths([])


def test_no_sentence_tells_a_place_of_the_server(confined):
    paths = (
        f"/srv/{HIDDEN}/model.safetensors",
        f"/{HIDDEN}/x",
        f"{confined}/model",
        f"C:\\{HIDDEN}\\x.txt",
        f"http://{HIDDEN}.internal:8080",
        f"http://user:{HIDDEN}@proxy.internal:8080",
        TOKEN,
    )
    tried, templates = 0, list(sentences())
    assert len(templates) > 300
    for parts in templates:
        for path in paths:
            for sentence in filled(parts, path):
                stripped = strip_paths(sentence)
                assert HIDDEN not in stripped, stripped
                assert TOKEN not in stripped, stripped
                tried += 1
    assert tried > 3000
