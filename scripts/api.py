"""Write docs/api.md: functions and classes of lrcore, commands, and endpoints of the page.

python scripts/api.py [--check]: the contents come from signatures, docstrings, the command-line
parser and the page. --check only compares.
"""

import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from prose import wrap  # noqa: E402

import lrcore  # noqa: E402 (the project need not be installed)

PAGE = ROOT / "docs" / "api.md"
HEAD = """# Public API

Written by `scripts/api.py` from signatures and docstrings; do not edit by hand. The docstrings say
more: shapes, units, and the exceptions raised (`help(lrcore.compress)`).

"""


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring in a line, escaped for a table."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    sentence = re.match(r".{25,}?[.](?=\s[A-Z`]|$)|.*", paragraph)[0]
    return sentence.replace("|", "\\|")


def call(name: str, function: Any) -> str:
    """Return `name(parameter, option=default)`, with names and defaults only."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        value = getattr(default, "__name__", None) or repr(default)
        parts.append(star + parameter.name + ("" if default is parameter.empty else f"={value}"))
    return f"{name}({', '.join(parts)})"


def attributes(kind: type) -> list[str]:
    """Return public fields, properties and methods of a class, without inherited members."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    names += [name for name in vars(kind) if name not in names]
    return [
        f"{name}()" if is_method(inspect.getattr_static(kind, name, None)) else name
        for name in names
        if not name.startswith("_")
    ]


def is_method(member: Any) -> bool:
    return inspect.isroutine(member) and not isinstance(member, cached_property)


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def members(value: Any) -> list[str]:
    """Return the names in a table of names, or in a union of classes."""
    return [getattr(member, "__name__", member) for member in (get_args(value) or value)]


def package() -> str:
    """Return the section about `lrcore.__all__`: functions, classes and tables of names."""
    public = {name: getattr(lrcore, name) for name in lrcore.__all__}
    functions = {name: value for name, value in public.items() if inspect.isroutine(value)}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    constants = {name: public[name] for name in public if name not in functions | classes}
    return (
        "## Functions of lrcore\n\n"
        + table(
            ("call", "what it does"),
            (
                (f"`lrcore.{call(name, f)}`", first_sentence(f.__doc__))
                for name, f in functions.items()
            ),
        )
        + "\n## Classes of lrcore\n\n"
        + table(
            ("class", "what it is", "attributes"),
            (
                (
                    f"`lrcore.{name}`",
                    first_sentence(kind.__doc__),
                    ", ".join(f"`{attribute}`" for attribute in attributes(kind)),
                )
                for name, kind in classes.items()
            ),
        )
        + "\n## Names that settings take\n\n"
        + table(
            ("constant", "names"),
            (
                (f"`lrcore.{name}`", ", ".join(f"`{member}`" for member in members(value)))
                for name, value in constants.items()
            ),
        )
    )


def commands() -> Iterator[tuple[str, str, str]]:
    """Yield (command with arguments, help, flags) of each command of `python -m lrcore`."""
    import typer

    from lrcore.cli.commands import app

    def walk(command: Any, path: str) -> Iterator[tuple[str, str, str]]:
        if hasattr(command, "commands"):
            for name, subcommand in command.commands.items():
                yield from walk(subcommand, f"{path} {name}".strip())
            if not command.invoke_without_command:
                return
        arguments = [
            name if p.required or name.startswith("[") else f"[{name}]"
            for p in command.params
            if p.param_type_name == "argument"
            for name in [p.metavar or p.name.upper()]
        ]
        flags = [max(p.opts, key=len) for p in command.params if p.param_type_name == "option"]
        yield (
            " ".join([f"`{path}", *arguments]) + "`",
            first_sentence(command.help),
            ", ".join(f"`{flag}`" for flag in flags),
        )

    yield from walk(typer.main.get_command(app), "")


def columns() -> Iterator[tuple[str, ...]]:
    """Yield name, meaning, unit and kind of each column of a sweep's table."""
    from lrcore.runs.sweep_rows import COLUMNS

    for name, column in COLUMNS.items():
        yield f"`{name}`", column.about.replace("|", "\\|"), column.unit, column.kind


def endpoints() -> Iterator[tuple[str, str]]:
    """Yield (call, description) of each public endpoint of the page."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LRCORE_CACHE": folder, "LRCORE_RUNS": f"{folder}/runs"}
        from workbench import build_app

        described: Mapping[str, Any] = build_app().get_api_info()["named_endpoints"]
    for name, endpoint in described.items():
        parameters = [
            f"{p['parameter_name']}: {p['python_type']['type']}"
            + (f" = {p['parameter_default']!r}" if p["parameter_has_default"] else "")
            for p in endpoint["parameters"]
        ]
        yield f"`{name}({', '.join(parameters)})`", first_sentence(endpoint["description"])


def page() -> str:
    """Return the text of docs/api.md."""
    return wrap(
        HEAD
        + package()
        + "\n## Commands\n\nEach is called by `python -m lrcore`; `--help` explains its flags.\n\n"
        + table(("command", "what it does", "flags"), commands())
        + "\n## Columns of a sweep\n\nA sweep writes these to table.csv and table.json, on the "
        "command line and on the page. *Planned* figures are counted by formula, *measured* ones "
        "on the running model.\n\n"
        + table(("column", "what it holds", "unit", "kind"), columns())
        + "\n## Endpoints of the page\n\nFor `gradio_client` and, as tools, for MCP. A recipe is a "
        "mapping with the fields of `lrcore.Recipe`; those left out keep their defaults.\n\n"
        + table(("endpoint", "what it does"), endpoints())
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
