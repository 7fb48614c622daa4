"""Error messages of the source with secret paths in their placeholders, which must be removed."""

import ast
from pathlib import Path

import pytest

from lrcore.system.path_access import restrict_paths, strip_paths

ROOT = Path(__file__).parents[2]
FILES = [file for name in ("lrcore", "workbench") for file in sorted((ROOT / name).rglob("*.py"))]
ERRORS = {"InputError", "ResourceError", "ValueError", "OSError", "RuntimeError", "unknown"}
HIDDEN = "secluded"  # part of each path below
TOKEN = "hf_verysecret"


def templates_of_errors():
    """Yield the f-strings of errors as lists of parts: text, or None for a placeholder."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node, "func", None)
            called = getattr(name, "id", getattr(name, "attr", ""))
            if isinstance(node, ast.Call) and called in ERRORS:
                for text in node.args:
                    if isinstance(text, ast.JoinedStr):
                        parts = text.values
                        yield [p.value if isinstance(p, ast.Constant) else None for p in parts]


def fill(parts, path: str):
    """Yield the message with the path in one placeholder and a letter in the others.

    Placeholders after a word, a slash or a period are skipped: they cannot start a path.
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


def test_error_messages_disclose_no_path_of_the_server(confined):
    paths = (
        f"/srv/{HIDDEN}/model.safetensors",
        f"/{HIDDEN}/x",
        f"{confined}/model",
        f"C:\\{HIDDEN}\\x.txt",
        f"http://{HIDDEN}.internal:8080",
        f"http://user:{HIDDEN}@proxy.internal:8080",
        TOKEN,
    )
    tested, templates = 0, list(templates_of_errors())
    assert len(templates) > 300
    for parts in templates:
        for path in paths:
            for sentence in fill(parts, path):
                stripped = strip_paths(sentence)
                assert HIDDEN not in stripped, stripped
                assert TOKEN not in stripped, stripped
                tested += 1
    assert tested > 3000
