"""`import lrcore` without slow imports: public names are imported when they are used."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main

ROOT = Path(__file__).resolve().parents[1]
SLOW = {"torch", "transformers", "pandas", "numpy", "datasets", "gradio", "huggingface_hub"}
# Code that prints the imported packages of a process in one line.
LOADED = "import sys; print(' '.join({name.partition('.')[0] for name in sys.modules}))"


def loaded(code: str) -> set[str]:
    run = [sys.executable, "-c", f"{code}\n{LOADED}"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["compress", "--help"], ["compress", "--no"]])
def test_help_and_invalid_options_import_no_slow_package(arguments):
    assert not loaded(f"from lrcore.cli import main; main({arguments})") & SLOW


@pytest.mark.parametrize("wrong", [["--ratio", "2"], ["--method", "a4"], ["--policy", "even"]])
def test_an_invalid_value_imports_no_slow_package(wrong):
    """The list of methods is cached, as after `methods` and earlier recipes."""
    assert main(["methods"]) == 0
    arguments = ["compress", "demo-llama", "--out", "never", *wrong]
    code = f"from lrcore.cli import main; assert main({arguments}) == 2"
    assert not loaded(code) & SLOW


def test_the_list_of_runs_imports_no_model_packages(tmp_path):
    code = f"from lrcore.cli import main; assert main(['runs', '--folder', {str(tmp_path)!r}]) == 0"
    assert not loaded(code) & (SLOW - {"torch", "numpy"})


def test_the_list_of_methods_imports_no_model_packages():
    assert not loaded("from lrcore.cli import main; main(['methods'])") & (
        SLOW - {"torch", "numpy"}
    )


def test_all_public_names_can_be_imported_and_are_listed():
    assert set(lrcore.__all__) <= set(dir(lrcore))
    assert all(getattr(lrcore, name) is not None for name in lrcore.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        _ = lrcore.no_such


def test_type_checking_imports_agree_with_the_table_of_modules():
    source = Path(lrcore.__file__).read_text(encoding="utf-8")
    seen = {
        alias.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == lrcore._MODULES
    assert seen.keys() | {"list_methods", "list_policies"} == {*lrcore.__all__}


GUIDES = [
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.*")]
    if path.name != "api.md" and path.suffix in (".md", ".ipynb")
]


def test_public_names_are_few_and_each_is_in_a_guide():
    guides = "".join(path.read_text(encoding="utf-8") for path in GUIDES)
    assert len(lrcore.__all__) <= 46
    assert [name for name in lrcore.__all__ if f"lrcore.{name}" not in guides] == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, ("PASSIVE", "5000")), ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None))],
)
def test_waiting_threads_release_their_core(variables, expected):
    """Otherwise, with a second process on the machine, a decomposition takes up to thirty times as
    long.
    """
    code = "import os, lrcore; print([os.environ.get(f'{n}') for n in ('OMP_WAIT_POLICY', "
    code += "'GOMP_SPINCOUNT')])"
    named = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in named}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(list(expected))
