"""`import lrcore` is quick: its public names come from their modules when they are read."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import fresh
import pytest

import lrcore
from lrcore.cli import main

SLOW = {"torch", "transformers", "pandas", "numpy", "datasets", "gradio", "huggingface_hub"}
# What a process has imported after some code, as one line.
LOADED = "import sys; print(' '.join({name.partition('.')[0] for name in sys.modules}))"


def loaded(code: str) -> set[str]:
    run = [sys.executable, "-c", f"{code}\n{LOADED}"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["compress", "--help"], ["compress", "--no"]])
def test_help_and_wrong_options_wait_for_no_import(arguments):
    assert not loaded(f"from lrcore.cli import main; main({arguments})") & SLOW


@pytest.mark.parametrize("wrong", [["--ratio", "2"], ["--method", "a4"], ["--policy", "even"]])
def test_a_wrong_value_waits_for_no_import(wrong):
    """Once a listing of the methods is kept, as `methods` and other recipes leave it."""
    assert main(["methods"]) == 0
    arguments = ["compress", "demo-llama", "--out", "never", *wrong]
    code = f"from lrcore.cli import main; assert main({arguments}) == 2"
    assert not loaded(code) & SLOW


def test_the_list_of_runs_waits_for_no_model(tmp_path):
    code = f"from lrcore.cli import main; assert main(['runs', '--folder', {str(tmp_path)!r}]) == 0"
    assert not loaded(code) & (SLOW - {"torch", "numpy"})


def test_the_list_of_methods_waits_for_no_model():
    assert not loaded("from lrcore.cli import main; main(['methods'])") & (
        SLOW - {"torch", "numpy"}
    )


def test_a_public_name_is_not_replaced_by_the_module_that_shares_it():
    """In a process that has torch and transformers, and nothing of this project yet."""
    code = """
import sys
assert "torch" in sys.modules and "lrcore" not in sys.modules
import lrcore
import lrcore.generate, lrcore.analyse, lrcore.methods, lrcore.policies
from lrcore import errors, generate
assert all(map(callable, (generate, lrcore.analyse, lrcore.methods, lrcore.policies)))
assert lrcore.errors.InputError is lrcore.InputError and errors is lrcore.errors
"""
    done = fresh.outside().run(["-c", code], os.environ, Path(lrcore.__file__).parents[1])
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_read_and_listed():
    assert set(lrcore.__all__) <= set(dir(lrcore))
    assert all(getattr(lrcore, name) is not None for name in lrcore.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        _ = lrcore.no_such


def test_a_type_checker_sees_the_modules_that_the_names_come_from():
    """The imports under TYPE_CHECKING are the table."""
    source = Path(lrcore.__file__).read_text(encoding="utf-8")
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == lrcore._HOME
    assert seen.keys() | {"methods", "policies"} == {*lrcore.__all__, "METHODS", "POLICIES"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, ("PASSIVE", "5000")), ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None))],
)
def test_threads_give_up_their_core_where_they_wait_for_long(given, wanted):
    """With another process on the machine a decomposition would take up to thirty times as long."""
    code = "import os, lrcore; print([os.environ.get(f'{n}') for n in ('OMP_WAIT_POLICY', "
    code += "'GOMP_SPINCOUNT')])"
    named = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    own = {name: value for name, value in os.environ.items() if name not in named}
    done = subprocess.run(
        [sys.executable, "-c", code], env=own | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(list(wanted))
