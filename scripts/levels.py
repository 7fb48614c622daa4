"""Write the levels of docs/architecture.md from the imports in the source.

python scripts/levels.py [--check]: a module stands one level above the highest that it imports.
The descriptions in the table stay; a new row gets the first line of the module's docstring. --check
writes nothing. Nothing is imported: the source is read with `ast`, so imports inside functions and
under TYPE_CHECKING count as any other.
"""

import ast
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
HEAD = "| level | module | what it holds |\n|---|---|---|\n"
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| (.*) \|$", re.MULTILINE)
SPLIT = ("lrcore", "workbench")  # packages with a row for each of their modules
Graph = dict[str, set[str]]  # a name, and the names that it imports


def sources() -> dict[str, Path]:
    """Every module of the project by its dotted name; a package has the name of its folder."""
    packages = [path for name in ("lrcore", "workbench") for path in (ROOT / name).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted([ROOT / "app.py", *packages])
    }


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import of a file, absolute; the name is empty for `import module`."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    imports: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            imports += ((module, alias.name) for alias in node.names)
    return imports


def graph() -> Graph:
    """For every module, the modules of the project that it imports.

    `from package import module` is an import of that module, not of the package.
    """
    modules = sources()
    needs: Graph = {name: set() for name in modules}
    for name, path in modules.items():
        for module, part in imports(path):
            needs[name].add(f"{module}.{part}" if f"{module}.{part}" in modules else module)
        needs[name] &= modules.keys() - {name}
    return needs


def row_of(name: str) -> str:
    """The row of a module in the table: its own file, or the package that it belongs to."""
    first, *rest = name.split(".")
    if not rest:
        single = (ROOT / f"{name}.py").is_file()
        return f"{name}.py" if single else f"{name}/__init__.py" if name in SPLIT else f"{name}/"
    if first not in SPLIT:
        return f"{first}/"
    return f"{first}/{rest[0]}/" if (ROOT / first / rest[0]).is_dir() else f"{first}/{rest[0]}.py"


def grouped(needs: Graph, group: Callable[[str], str]) -> Graph:
    """The same imports between groups of modules."""
    groups: Graph = {}
    for name, others in needs.items():
        own = group(name)
        groups.setdefault(own, set()).update({group(other) for other in others} - {own})
    return groups


def levels(needs: Graph) -> dict[str, int]:
    """One more than the highest level imported; what is in a circle, or above one, has none."""
    level: dict[str, int] = {}
    while free := [n for n, others in needs.items() if n not in level and others <= level.keys()]:
        for name in free:
            level[name] = 1 + max((level[other] for other in needs[name]), default=-1)
    return level


def rows() -> dict[str, int]:
    """Every row of the table in docs/architecture.md, with its level there."""
    return {row: int(level) for level, row, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def summary(row: str) -> str:
    """The first sentence of a module's docstring, for a row without a description."""
    path = ROOT / row
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    paragraph = (ast.get_docstring(ast.parse(source)) or "?").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".")


def table(level: Mapping[str, int], known: Mapping[str, str]) -> str:
    """The table, lowest level first."""
    ordered = sorted(level, key=lambda row: (level[row], row))
    return HEAD + "".join(
        f"| {level[row]} | `{row}` | {known.get(row) or summary(row)} |\n" for row in ordered
    )


def main(arguments: list[str]) -> int:
    """Write the table, or with --check say whether it is current."""
    page, needs = PAGE.read_text(encoding="utf-8"), grouped(graph(), row_of)
    level = levels(needs)
    if circle := sorted(needs.keys() - level.keys()):
        print(f"These import each other, or something that does: {', '.join(circle)}")
        return 1
    start = page.index(HEAD)
    end = page.index("\n\n", start) + 1
    known = {row: text for _, row, text in ROW.findall(page)}
    new = page[:start] + table(level, known) + page[end:]
    if "--check" not in arguments:
        PAGE.write_text(new, encoding="utf-8")
    return int("--check" in arguments and new != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
