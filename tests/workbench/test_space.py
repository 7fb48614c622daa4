"""Deployment as a Space: the front matter of the README, and storage of runs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from workbench.app.start import STORED, keep_in_storage

ROOT = Path(__file__).resolve().parents[2]
IN_SPACE = {"SPACE_ID": "owner/name"}


@pytest.fixture(scope="module")
def front() -> dict:
    return yaml.safe_load((ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def test_versions_meet_the_requirements_of_the_project(front) -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (gradio,) = [Requirement(line) for line in lines if line.startswith("gradio")]
    assert front["sdk"] == "gradio"
    assert front["sdk_version"] in gradio.specifier
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert front["python_version"] in SpecifierSet(project["requires-python"])


def test_the_front_matter_requests_storage_and_is_valid(front) -> None:
    assert front["suggested_storage"] in ("small", "medium", "large")
    assert front["license"] == "apache-2.0"
    assert len(front["short_description"]) <= 60  # limit of the hub
    assert (ROOT / front["app_file"]).is_file()


def test_a_space_with_storage_saves_runs_there(tmp_path) -> None:
    environment = dict(IN_SPACE)
    keep_in_storage(environment, tmp_path)
    storage_variables = {name: str(tmp_path / folder) for name, folder in STORED.items()}
    assert environment == IN_SPACE | storage_variables


@pytest.mark.parametrize(
    ("environment", "storage"),
    [({}, "."), (IN_SPACE, "none"), (IN_SPACE | dict.fromkeys(STORED, "/elsewhere"), ".")],
    ids=["on a machine", "without storage", "set already"],
)
def test_without_storage_no_folder_is_moved(environment, storage, tmp_path) -> None:
    after = dict(environment)
    keep_in_storage(after, tmp_path / storage)
    assert after == environment


def test_storage_is_set_before_huggingface_hub_is_imported(tmp_path) -> None:
    script = f"""
import os, runpy, sys
from pathlib import Path
import workbench.app.start
assert "huggingface_hub" not in sys.modules
workbench.app.start.keep_in_storage.__defaults__ = (Path({str(tmp_path)!r}),)
assert "demo" in runpy.run_path("app.py", run_name="page")
from huggingface_hub.constants import HF_HOME
assert Path(HF_HOME).parent == Path({str(tmp_path)!r}), HF_HOME
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in STORED
    } | IN_SPACE
    call = [sys.executable, "-c", script]
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
