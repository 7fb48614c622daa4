"""Names in documents, docstrings and messages: functions, files and flags that must exist."""

import ast
import importlib
import re
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import typer

import lrcore
from lrcore.cli.commands import app
from lrcore.recipes.former_names import FLAGS
from workbench.server.access import add_options

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("lrcore", "workbench", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
FILES = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
EXAMPLES = re.findall(
    r"^# (\S+\.py)$", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.MULTILINE
)
"""Files that docs/extending.md contains in full; tests/test_extending.py runs them."""
ALSO_FLAGS = {"--measure", "--check", "--methods", "--policies", "--dry-run", "--help", "--no-deps"}
ALSO_FLAGS |= {"--address", "--head", "--index-url"}  # of `ray start` and pip
ALSO_FLAGS |= {"--repo-type"}  # of `hf upload`
ALSO_FLAGS |= {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task"}  # of Slurm
ALSO_FLAGS |= {"--min-nodes"}  # of `ray symmetric-run`
ALSO_FLAGS.update(*FLAGS.values())
"""Flags of scripts/ and of other programs, and former names of flags."""
PAGE = ArgumentParser()
add_options(PAGE)
ALSO_FLAGS |= set(PAGE._option_string_actions)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def exists(dotted: str) -> bool:
    """Return whether lrcore.a.b is a public name with that attribute, or a module."""
    if f"{dotted.replace('.', '/')}.py" in EXAMPLES:
        return True
    value, *parts = lrcore, *dotted.split(".")[1:]
    for part in parts:
        if not hasattr(value, part):
            try:
                importlib.import_module(dotted)
            except ImportError:
                return False
            return True
        value = getattr(value, part)
    return True


@cache
def commands() -> dict[str, set[str]]:
    """Return the flags of each command; subcommands of `runs` are separate commands."""

    def walk(command, path):
        for part, subcommand in getattr(command, "commands", {}).items():
            yield from walk(subcommand, f"{path} {part}".strip())
        yield path, {flag for parameter in command.params for flag in parameter.opts}

    return dict(walk(typer.main.get_command(app), ""))


@cache
def defined(path: str) -> set[str]:
    """Return the names that a module defines or imports at its top level."""
    names = set()
    for node in ast.parse(text(ROOT / path)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def unknown(paths: Iterable[Path], names: Callable[[Path], Iterable[str]]) -> list[str]:
    """Return "file: name" of the names that a check of each file returns."""
    return [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in sorted(names(path))]


def test_names_of_lrcore_exist() -> None:
    def names(path: Path) -> set[str]:
        named = set(re.findall(r"\blrcore(?:\.[a-zA-Z_]\w*)+", text(path)))
        files = {"lrcore.json", "lrcore.pth"}
        return {dotted for dotted in named - files if not exists(dotted)}

    assert unknown([*DOCUMENTS, *SOURCES], names) == []


def test_named_files_exist() -> None:
    ends = {
        "/".join(parts[start:])
        for parts in (file.split("/") for file in [*FILES, *EXAMPLES])
        for start in range(len(parts))
    }

    def names(path: Path) -> set[str]:
        named = set(re.findall(r"[\w./-]*\w/[\w.-]+\.(?:py|md|json|js|css)\b(?!\w)", text(path)))
        return {file for file in named if "://" not in file and file.strip("./") not in ends}

    assert unknown([*DOCUMENTS, *SOURCES], names) == []


def test_functions_named_by_module_exist() -> None:
    """In `a3.qk_svd` or `healing/trainable.add_channel`, the module is the end of a file's path."""

    def names(path: Path) -> set[str]:
        missing = set()
        for module, function in re.findall(r"`([a-z_][\w/]*)\.([a-zA-Z_]\w*)`", text(path)):
            files = [
                file
                for file in FILES
                if f"/{file}".endswith(f"/{module}.py") and "test" not in file
            ]
            if files and not any(function in defined(file) for file in files):
                missing.add(f"{module}.{function}")
        extensions = (".py", ".json", ".md", ".csv", ".html")
        return {dotted for dotted in missing if not dotted.endswith(extensions)}

    assert unknown(DOCUMENTS, names) == []


def test_commands_and_their_flags_exist() -> None:
    def names(path: Path) -> set[str]:
        spans = re.findall(r"`([^`]+)`", text(path))
        spans += re.findall(r"^python .*$", text(path), re.MULTILINE)
        return {span for span in spans if not is_valid_command(span)}

    assert unknown(DOCUMENTS, names) == []


def is_valid_command(span: str) -> bool:
    """Return False for an unknown command of lrcore, and for text with an unknown flag."""
    words = span.replace("python -m lrcore ", "").replace("lrcore ", "").split()
    flags = {flag for flag in words if re.match(r"--[a-z]", flag)}
    if words and words[0] in commands() and "scripts/" not in span:
        subcommand = " ".join(words[:2])
        return flags <= commands()[subcommand if subcommand in commands() else words[0]] | {
            "--help"
        }
    if span.startswith("python -m lrcore "):
        return False
    return flags <= known_flags()


@cache
def known_flags() -> set[str]:
    return set().union(*commands().values(), ALSO_FLAGS)


def test_flags_in_messages_exist() -> None:
    def names(path: Path) -> set[str]:
        strings = [
            node.value
            for node in ast.walk(ast.parse(text(path)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(strings))
        return set(named) - known_flags()

    assert unknown([path for path in SOURCES if "lrcore" in path.parts], names) == []
