"""Docstrings of public functions, which must document exceptions and tensor shapes, checked in the
source.

Public are the names in `lrcore.__all__`, and all functions and methods of lrcore without
underscore.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    path
    for path in sorted((ROOT / "lrcore").rglob("*.py"))
    if "cli" not in path.parts  # docstrings of commands are their help texts
]
SHAPE = re.compile(r"\[[^\[\]]*\]")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[tuple[Function, str]]:
    """Yield public functions and methods with their docstrings; a class describes its
    properties.
    """
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            class_docstring = ast.get_docstring(node) or ""
            for part in node.body:
                if isinstance(part, Function) and part.name == "__post_init__":
                    yield part, class_docstring
                elif isinstance(part, Function) and not part.name.startswith("_"):
                    yield (
                        part,
                        (ast.get_docstring(part) or "") + class_docstring * is_property(part),
                    )


def is_property(node: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in the body of a function, without nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from statements(child)


def raises(node: Function) -> bool:
    """Return whether the body contains a raise statement."""
    return any(isinstance(part, ast.Raise) for part in statements(node))


def has_tensors(node: Function) -> bool:
    """Return whether arguments or result are annotated as tensors, possibly inside another type."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = [part.annotation for part in arguments if part.annotation is not None]
    annotations += [node.returns] if node.returns is not None else []
    words = {
        word for annotation in annotations for word in re.findall(r"\w+", ast.unparse(annotation))
    }
    return bool(words & {"Tensor", "LongTensor"})


def gaps(path: Path) -> list[str]:
    """Return the functions of a file with docstrings that lack "Raises" or a shape in brackets."""
    short = path.relative_to(ROOT / "lrcore").as_posix()
    lacking = []
    for node, text in functions(ast.parse(path.read_text(encoding="utf-8"))):
        if raises(node) and not re.search(r"\bRaises?\b", text):
            lacking.append(f"{short}:{node.name} raises, which its docstring does not mention")
        if has_tensors(node) and not SHAPE.search(text):
            lacking.append(f"{short}:{node.name} has tensors without shapes in its docstring")
    return lacking


def test_public_functions_document_exceptions_and_tensor_shapes():
    assert [gap for path in MODULES for gap in gaps(path)] == []


def test_the_check_reports_missing_documentation(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "lrcore" / "bad.py"
    file.parent.mkdir()
    file.write_text(
        'def half(x: Tensor) -> int:\n    """Half."""\n    raise ValueError\n'
        'def good(x: Tensor) -> Tensor:\n    """Of x [n, d]. Raises ValueError."""\n'
        "    raise ValueError\n"
    )
    assert [line.split()[0] for line in gaps(file)] == ["bad.py:half", "bad.py:half"]
