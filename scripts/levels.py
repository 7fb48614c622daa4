"""Write the levels in docs/architecture.md from the imports in the source.

python scripts/levels.py [--check]: the level of a module is 1 above the highest level that it
imports. Descriptions in the table are kept; a new row gets the first line of the module's
docstring. --check writes nothing. The source is read with `ast`, so imports in functions and under
TYPE_CHECKING count, too.
"""

import ast
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
HEAD = "| level | module | content |\n|---|---|---|\n"
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| (.*) \|$", re.MULTILINE)
SPLIT = ("lrcore", "workbench")  # packages with a row for each of their modules
Graph = dict[str, set[str]]  # a name, and the names that it imports


def sources() -> dict[str, Path]:
    """Return all modules by dotted name; a package has the name of its folder."""
    packages = [path for name in ("lrcore", "workbench") for path in (ROOT / name).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted([ROOT / "app.py", *packages])
    }


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of each import in a file; the name is "" for `import module`."""
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
    """Return the project's modules that each module imports.

    `from package import module` imports that module, not the package.
    """
    modules = sources()
    needs: Graph = {name: set() for name in modules}
    for name, path in modules.items():
        for module, part in imports(path):
            needs[name].add(f"{module}.{part}" if f"{module}.{part}" in modules else module)
        needs[name] &= modules.keys() - {name}
    return needs


def row_of(name: str) -> str:
    """Return the table row of a module: its file, or its package."""
    first, *remaining = name.split(".")
    if not remaining:
        single = (ROOT / f"{name}.py").is_file()
        return f"{name}.py" if single else f"{name}/__init__.py" if name in SPLIT else f"{name}/"
    if first not in SPLIT:
        return f"{first}/"
    path = f"{first}/{remaining[0]}"
    return f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"


def grouped(needs: Graph, group: Callable[[str], str]) -> Graph:
    """Return the imports between groups of modules."""
    groups: Graph = {}
    for name, imported in needs.items():
        importer = group(name)
        groups.setdefault(importer, set()).update({group(used) for used in imported} - {importer})
    return groups


def levels(needs: Graph) -> dict[str, int]:
    """Return the level of each name; names in or above an import circle have none."""
    level: dict[str, int] = {}
    while free := [n for n, used in needs.items() if n not in level and used <= level.keys()]:
        for name in free:
            level[name] = 1 + max((level[used] for used in needs[name]), default=-1)
    return level
    return level


def rows() -> dict[str, int]:
    """Return the rows of the table in docs/architecture.md and their levels."""
    return {row: int(level) for level, row, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def summary(row: str) -> str:
    """Return the first sentence of a module's docstring, for a row without a description."""
    path = ROOT / row
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    paragraph = (ast.get_docstring(ast.parse(source)) or "?").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".")


def table(level: Mapping[str, int], descriptions: Mapping[str, str]) -> str:
    """Return the table, lowest level first."""
    ordered = sorted(level, key=lambda row: (level[row], row))
    return HEAD + "".join(
        f"| {level[row]} | `{row}` | {descriptions.get(row) or summary(row)} |\n" for row in ordered
    )


def main(arguments: list[str]) -> int:
    """Write the table; with --check return 1 if it is not current."""
    page, needs = PAGE.read_text(encoding="utf-8"), grouped(graph(), row_of)
    level = levels(needs)
    if circle := sorted(needs.keys() - level.keys()):
        print(f"Import circle, or above one: {', '.join(circle)}")
        return 1
    start = page.index(HEAD)
    end = page.index("\n\n", start) + 1
    descriptions = {row: text for _, row, text in ROW.findall(page)}
    new = page[:start] + table(level, descriptions) + page[end:]
    if "--check" not in arguments:
        PAGE.write_text(new, encoding="utf-8")
    return int("--check" in arguments and new != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
