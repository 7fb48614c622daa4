"""Figures of the size rules: files, functions, lines and import circles of packages.

    python scripts/sizes.py [folder ...]

The default folders are lrcore and workbench.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINES, PARAMETERS, COLUMNS = 60, 6, 100
PRAGMA = re.compile(r"  # (noqa|type: ignore).*")
Import = tuple[str, str]


@dataclass(frozen=True)
class Function:
    """A function and its position; the lines include decorators and docstring."""

    position: str
    name: str
    lines: int
    parameters: int


def sources(folder: Path) -> list[Path]:
    """Return all Python files in a folder."""
    return sorted(folder.rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    """Yield all functions in a file, including nested ones; self and cls are not parameters."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) + len(node.args.kwonlyargs) - (names[:1] in (["self"], ["cls"]))
            yield Function(f"{path}:{node.lineno}", node.name, node.end_lineno - first + 1, count)


def _length(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def long_lines(path: Path) -> list[str]:
    """Return positions of lines with more than COLUMNS characters, not counting pragmas."""
    lines = [PRAGMA.sub("", line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [f"{path}:{number}" for number, line in enumerate(lines, 1) if len(line) > COLUMNS]


def imports(package: Path) -> dict[str, set[str]]:
    """Return the modules of a package that each module imports.

    Imports in functions and under TYPE_CHECKING count, too.
    """
    paths = {_module(path, package): path for path in sources(package)}
    return {
        name: {_nearest(target, paths) for target in _targets(path, name)} - {name, ""}
        for name, path in paths.items()
    }


def circles(package: Path) -> list[list[str]]:
    """Return groups of modules that import each other in a circle."""
    reach = {name: set(targets) for name, targets in imports(package).items()}
    for middle in reach:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    circles = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in reach if a in reach[a]}
    return [list(group) for group in sorted(circles)]


def _module(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(path: Path, name: str) -> Iterator[str]:
    """Yield the full names that a file imports: modules, or names in modules."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _nearest(target: str, modules: dict[str, Path]) -> str:
    """Return the module of a full name; "" for other packages."""
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target


def figures(folders: list[Path]) -> dict[str, object]:
    """Return the figures by name."""
    files = [path for folder in folders for path in sources(folder)]
    longest = max(files, key=_length)
    all_functions = [function for path in files for function in functions(path)]
    largest = max(all_functions, key=lambda function: function.lines)
    packages = [folder for folder in folders if (folder / "__init__.py").is_file()]
    return {
        "files": len(files),
        "longest file": f"{longest} ({_length(longest)} lines)",
        "longest function": f"{largest.position} {largest.name} ({largest.lines} lines)",
        f"functions over {LINES} lines": sum(f.lines > LINES for f in all_functions),
        f"functions with more than {PARAMETERS} parameters": sum(
            f.parameters > PARAMETERS for f in all_functions
        ),
        f"lines over {COLUMNS} columns": sum(len(long_lines(path)) for path in files),
        "import circles": [group for package in packages for group in circles(package)],
    }


if __name__ == "__main__":
    named = sys.argv[1:] or ["lrcore", "workbench"]
    for name, value in figures([Path(word) for word in named]).items():
        print(f"{name}: {value}")
