"""Dead code: all definitions in lrcore and workbench must be used there or in scripts, or be
public.
"""

import ast
import re
from pathlib import Path

import lrcore

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for folder in ("lrcore", "workbench") for path in (ROOT / folder).rglob("*.py")
)
OTHERS = [
    ROOT / "app.py",
    ROOT / "docs" / "first_steps.ipynb",
    *(ROOT / "scripts").rglob("*.py"),
    *(ROOT / "benchmarks").rglob("*.py"),
    *(ROOT / "assets").glob("*.js"),
    *(ROOT / "lrcore").rglob("*.html"),
]
CALLED_BY_OTHERS = {"forward", "extra_repr", "describe", "persistent_id", "persistent_load"}
CALLED_BY_OTHERS |= {"reducer_override", "_repr_html_", "reorder_cache", "batch_repeat_interleave"}
"""Methods that torch, transformers, pickle, Jupyter or users of a public object call by name."""
DOCS = "".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.*")
    if path.suffix in (".md", ".ipynb")
)


def uses(path: Path) -> set[str]:
    """Return the identifiers that a file reads, also as strings; an import is not a use."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\w+", text))
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if node.value.isidentifier() else set()
    return names


def used() -> set[str]:
    return set().union(*map(uses, [*SOURCES, *OTHERS]))


def defined(path: Path) -> set[str]:
    """Return functions, classes, methods and module constants of a file, without commands."""
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            commands = [ast.unparse(decorator) for decorator in node.decorator_list]
            if not any(".command(" in command or ".callback(" in command for command in commands):
                names.add(node.name)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("__")}


def test_all_definitions_are_used() -> None:
    known = set(lrcore.__all__) | CALLED_BY_OTHERS | used()
    known |= set(re.findall(r"`(\w+)\(\)`", DOCS))  # methods of public classes, listed in api.md
    assert [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in sorted(defined(path) - known)
    ] == []
