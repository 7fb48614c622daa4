"""Built-in technical text: the documentation of the running Python interpreter."""

import ast
import hashlib
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal

from ..system.errors import unknown

Split = Literal["train", "calibration", "test"]
SPLITS = ("train", "calibration", "test")
_SHORTEST = 80  # characters of a docstring; shorter docstrings ("Return self.") are omitted
# nodes that can contain a definition: statements, not expressions
_WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_SKIPPED = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "pydoc_data",
    "ensurepip",
}


def documents(split: Split) -> list[str]:
    """Return docstrings of the standard library (a document per module) and topics of `help()`.

    The split of a module or topic is a stable hash of the name: about 80 % train, 10 % calibration,
    10 % test. Source files are parsed, not imported. Fingerprints differ between Python versions.
    Raises InputError for an unknown split.
    """
    if split not in SPLITS:
        raise unknown("python-docs split", split, SPLITS)
    return [text for name, text in _all_documents() if split_of(name) == split]


def split_of(name: str) -> str:
    """Return the split of a module or topic by name, the same on all machines."""
    bucket = hashlib.sha256(name.encode()).digest()[0]  # 0..255
    return "test" if bucket < 26 else "calibration" if bucket < 52 else "train"


@cache
def _all_documents() -> tuple[tuple[str, str], ...]:
    # Some topics ("else", "if") share a text; it belongs to the split of the last name.
    names = {text: name for name, text in (*_modules(), *_topics())}
    return tuple((name, text) for text, name in names.items())


def _modules() -> list[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIPPED.isdisjoint(parts):
            name = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
            modules.append((name, "\n\n".join(_docstrings(path))))
    return [(name, text) for name, text in modules if text]


def _docstrings(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in old modules
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately invalid files
        return []
    owners = (
        node
        for node in _statements(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    texts = (ast.get_docstring(node) for node in owners)
    return [text for text in texts if text and len(text) >= _SHORTEST]


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the tree and the statements in the order of `ast.walk`, without expressions."""
    queue: deque[ast.AST] = deque([tree])
    while queue:
        node = queue.popleft()
        queue += (part for part in ast.iter_child_nodes(node) if isinstance(part, _WITH_STATEMENTS))
        yield node


def _topics() -> list[tuple[str, str]]:
    return [(f"topic {name}", text.strip()) for name, text in sorted(topics.items())]
