"""Every code block of docs/extending.md runs, section by section, as a reader would follow it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lrcore.methods import METHODS
from lrcore.models.architectures import ARCHITECTURES
from lrcore.policies import POLICIES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
SECTIONS = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}
FILE = re.compile(r"# (\S+)\.py\n")


@pytest.fixture
def tables() -> Iterator[None]:
    """The tables and modules as they were, afterwards."""
    kept = [(table, dict(table)) for table in (METHODS, POLICIES, ARCHITECTURES)]
    modules = set(sys.modules)
    yield
    for table, rows in kept:
        table.clear()
        table.update(rows)
    for name in set(sys.modules) - modules:
        if sys.modules[name].__doc__ == __doc__:
            del sys.modules[name]


def install(path: str, code: str) -> None:
    """A block that names its file, as that module."""
    name = path.replace("/", ".")
    module = ModuleType(name, __doc__)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(code, path, "exec"), vars(module))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_blocks_of_a_section_run(section: str, tables) -> None:
    assert SECTIONS[section], "no worked example"
    names: dict = {"__name__": section}
    for code in SECTIONS[section]:
        if named := FILE.match(code):
            install(named[1], code)
        else:
            exec(compile(code, f"{PAGE.name}, {section}", "exec"), names)
