"""Stamps of measurements: date, commit, machine and the code behind a figure.

The code is a fingerprint: eight digits of a hash of the syntax trees of the modules in COMPUTING
that a benchmark imports, directly or indirectly. Comments, docstrings, imports, error messages,
sentences and file names do not count, nor do methods and policies that a table does not name.
"""

import ast
import hashlib
import re
import subprocess
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import levels

import lrcore

from .machine import ROOT, machine

# Packages that determine figures. Loading, data and checkpoints are checked bit for bit by tests.
COMPUTING = (
    *(f"lrcore.{name}." for name in ("compression", "evaluation", "layers", "methods", "ranks")),
    *(f"workbench.{name}." for name in ("app", "figures", "jobs", "server", "state", "tabs")),
    *(f"workbench.{name}." for name in ("views", "widgets")),
)
REGISTRIES = ("lrcore.methods", "lrcore.ranks.policies")  # these import a module per row
LINE = re.compile(
    r"Measured\s+(\S+)\s+at\s+commit\s+`(\S+)`,\s+code\s+`(\w+)`,\s+(.+?)\.\s*$", re.DOTALL
)


@dataclass(frozen=True)
class Stamp:
    """Date, commit, fingerprint of the code, and machine of a measurement."""

    date: str
    commit: str  # with "+" if files were changed since the commit
    code: str
    machine: str

    def __str__(self) -> str:
        """Return the stamp as the record stores it."""
        return " ".join(astuple(self))

    @classmethod
    def parse(cls, text: str) -> "Stamp":
        """Read a stamp of the record."""
        return cls(*text.split(" ", 3))

    def line(self) -> str:
        """Return the stamp as a section of a document states it."""
        return (
            f"Measured {self.date} at commit `{self.commit}`, code `{self.code}`, {self.machine}."
        )

    @classmethod
    def split(cls, section: str) -> "tuple[str, Stamp | None]":
        """Return the text of a section of a document without its stamp, and the stamp."""
        line = LINE.search(section)
        if line is None:
            return section, None
        return section[: line.start()], cls(*(" ".join(part.split()) for part in line.groups()))


def stamp(source: Path, names: str) -> Stamp:
    """Return the stamp of a measurement that ends now.

    source: the file of the benchmark. names: text with the names of the measured methods and
    policies.
    """
    today = datetime.now(UTC).date().isoformat()
    return Stamp(today, commit(), fingerprint(source, names), machine())


@cache
def commit() -> str:
    """Return the first digits of the commit, with "+" if sources were changed since; "unknown"
    without git.
    """
    folders = ("lrcore", "workbench", "benchmarks", "scripts")
    try:
        changed = _git("status", "--porcelain", "--", *(f"{folder}/*.py" for folder in folders))
        return _git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return done.stdout.decode().strip()


# ---- the code behind a figure


def fingerprint(source: Path, names: str) -> str:
    """Return eight hexadecimal digits of the code that a benchmark runs."""
    shapes = sorted(shape_of(path) for path in files(source, names))
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:8]


def files(source: Path, names: str) -> list[Path]:
    """Return the files in COMPUTING that a benchmark imports, without methods and policies that
    `names` does not name; all files if it imports none, as it runs the program as a process.
    """
    words, modules = set(re.findall(r"\w+", names)), levels.sources()
    seen, pending = set[str](), _imports_of_benchmark(source)
    while pending:
        name = pending.pop()
        if name in seen or name not in modules or name == "lrcore":
            continue
        seen.add(name)
        imported = _graph()[name]
        if name in REGISTRIES:
            imported = {row for row in imported if _rows(modules[row]) & {"", *words}}
        pending |= imported
    computing = [name for name in modules if f"{name}.".startswith(COMPUTING)]
    return [modules[name] for name in computing if name in seen] or [
        modules[name] for name in computing
    ]


@cache
def _graph() -> levels.Graph:
    """Return the imports of all modules, with those of public names of lrcore."""
    return {
        name: imported | _public_names(levels.sources()[name])
        for name, imported in levels.graph().items()
    }


@cache
def _public_names(path: Path) -> set[str]:
    """Return the modules of the public names of lrcore that a file reads as its attributes."""
    return {
        f"lrcore.{lrcore._MODULES[node.attr]}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "lrcore"
        and node.attr in lrcore._MODULES
    }


def _imports_of_benchmark(source: Path) -> set[str]:
    """Return the imports of a benchmark and of the benchmarks that it imports."""
    seen, pending, imported = set[Path](), [source], set[str]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        imported |= _public_names(path)
        for module, name in levels.imports(path):
            imported |= {module, f"{module}.{name}"}
            part = ROOT / f"{module.replace('.', '/')}.py"
            pending += [part] if module.startswith("benchmarks.") and part.is_file() else []
    return imported


@cache
def _rows(path: Path) -> frozenset[str]:
    """Return the names of the methods or policies that a file defines; {""} if none."""
    names = set[str]()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Method", "Policy"):
            named = [word.value for word in node.keywords if word.arg == "name"]
            names |= {ast.literal_eval(value) for value in (named or node.args)[:1]}
    return frozenset(names or {""})


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def shape_of(path: Path) -> str:
    """Return the syntax tree of a file without the parts that do not count."""
    return shape(_tree(path))


def shape_of_source(text: str) -> str:
    """Return the syntax tree of a source text, as `shape_of`."""
    return shape(ast.parse(text))


def shape(node: Any) -> str:
    """Return a syntax tree as text, the same in all versions of Python."""
    if isinstance(node, list):
        return f"[{','.join(filter(None, map(shape, node)))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if is_text or isinstance(node, ast.Import | ast.ImportFrom) or _is_sentence(node):
        return ""
    if isinstance(node, ast.Raise):
        return "Raise"
    fields = [shape(value) for _, value in ast.iter_fields(node) if value not in (None, [])]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_sentence(node: ast.AST) -> bool:
    """Return whether a node is a text for people, such as the description of a policy."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and " " in text and text.rstrip().endswith(".")
