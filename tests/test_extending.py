"""Code blocks of docs/extending.md, run section by section."""

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import workbench.app.app
from lrcore.compression.evidence.measure import EVIDENCE
from lrcore.methods import METHODS
from lrcore.models.architectures import ARCHITECTURES
from lrcore.ranks.policies import POLICIES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
SECTIONS = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
}
FILE = re.compile(r"# (\S+)\.py\n")


@pytest.fixture
def preserved_tables(tmp_path, monkeypatch) -> Iterator[None]:
    """Restore the tables and modules after the test."""
    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path))
    monkeypatch.setattr(workbench.app.app, "TABS", workbench.app.app.TABS)
    saved_tables = [(table, dict(table)) for table in (METHODS, POLICIES, EVIDENCE, ARCHITECTURES)]
    modules = set(sys.modules)
    yield
    for table, rows in saved_tables:
        table.clear()
        table.update(rows)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__loader__", None) is PAGE:
            del sys.modules[name]


def install(path: str, code: str) -> None:
    """Install a block that names its file as that module."""
    name = path.replace("/", ".")
    module = ModuleType(name)
    module.__package__, module.__loader__ = name.rpartition(".")[0], PAGE
    sys.modules[name] = module
    exec(compile(code, path, "exec"), vars(module))


def test_the_page_has_the_announced_sections() -> None:
    assert [name.split(":")[0] for name in SECTIONS] == [
        "A policy",
        "A method",
        "A model family",
        "A tab",
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_blocks_of_a_section_run(section: str, preserved_tables) -> None:
    assert SECTIONS[section], "no example"
    names: dict = {"__name__": section}
    for code in SECTIONS[section]:
        if named := FILE.match(code):
            install(named[1], code)
        else:
            exec(compile(code, f"{PAGE.name}, {section}", "exec"), names)


def test_the_method_of_the_page_satisfies_the_contract(preserved_tables) -> None:
    """Run the checks of tests/methods/test_contract.py for a method without variants."""
    path = PAGE.parents[1] / "tests" / "methods" / "test_contract.py"
    spec = importlib.util.spec_from_file_location("contract", path)
    contract = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contract)
    code = next(code for code in SECTIONS["A method"] if FILE.match(code))
    install(FILE.match(code)[1], code)
    row = sys.modules["lrcore.methods.wanda_svd"].METHOD
    contract.ROWS = contract.ROWS | {row.name: row}
    checks = [
        check
        for name, check in vars(contract).items()
        if name.startswith("test_") and [*inspect.signature(check).parameters] == ["method", "kind"]
    ]
    assert len(checks) >= 4
    for check in checks:
        for kind in contract.KINDS:
            check((row.name, {}), kind)
