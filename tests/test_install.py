"""The wheel of the project, unpacked outside the clone, as after `pip install .`."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import lrcore

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
USE = """
import json, lrcore
from lrcore.compression.analyze import Analysis
from pathlib import Path
from lrcore.models.hub import locate
from lrcore.evaluation.report import page
from low_rank_workbench.base.assets import PLOTLY_JS, STYLE, script
from low_rank_workbench.state.store import FIRST_ANALYSIS
here = Path.cwd()
assert Path(lrcore.__file__).is_relative_to(here) and STYLE.is_relative_to(here)
assert json.loads((locate("demo-llama") / "config.json").read_text())["model_type"] == "llama"
assert (locate("demo-opt") / "model.safetensors").is_file()
assert Analysis.read(FIRST_ANALYSIS).layers and PLOTLY_JS.is_file()
assert script("plot.js") and STYLE.is_file() and "<h1>A</h1>" in page("A")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return the folder of the unpacked wheel, built offline from links, so that the clone is
    unchanged.
    """
    source, out, target = (tmp_path_factory.mktemp(name) for name in ("source", "out", "target"))
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("build", "runs"):
            (source / path.name).symlink_to(path)
    build = [sys.executable, "-c", BUILD, str(out)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(folder)}
    call = [sys.executable, *arguments]
    return subprocess.run(call, cwd=folder, env=env, capture_output=True, text=True)


def test_the_wheel_has_commands_extras_one_version_and_types(installed):
    (info,) = installed.glob("*.dist-info")
    about = Parser().parsestr((info / "METADATA").read_text())
    assert about["Version"] == lrcore.__version__
    extras = {"cluster", "dev", "gguf", "lora", "mcp", "search", "serve", "tasks", "trackio"}
    assert set(about.get_all("Provides-Extra")) == extras
    assert any(requirement.startswith("torch") for requirement in about.get_all("Requires-Dist"))
    commands = (info / "entry_points.txt").read_text()
    assert "lrcore = lrcore.__main__:run" in commands
    assert "low-rank-workbench = low_rank_workbench.app.start:main" in commands
    assert (installed / "lrcore" / "py.typed").is_file()
    assert {path.name for path in installed.iterdir()} == {
        "lrcore",
        "low_rank_workbench",
        info.name,
    }


def test_the_installed_package_finds_its_demo_models_and_files_of_the_page(installed):
    done = run(installed, "-c", USE)
    assert done.returncode == 0, done.stderr


def test_the_command_of_the_page_has_the_options_of_app_py(installed):
    done = run(installed, "-c", "from low_rank_workbench.app.start import main; main()", "-h")
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in ("--port", "--host", "--share"))


def test_files_and_commands_of_the_dockerfile_exist() -> None:
    steps = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (.+) \S+$", steps, re.MULTILINE)
        for name in line.split()
    ]
    included = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    }
    assert all(list(ROOT.glob(name)) and name in included for name in copied)
    installed = re.findall(r"-r (\S+)", steps)
    assert installed
    assert all((ROOT / name).is_file() for name in installed)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    command = json.loads(re.findall(r"^CMD (.+)$", steps, re.MULTILINE)[0])
    assert command[0] in project["project"]["scripts"]
    pin = re.search(r"^torch==\S+", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M)
    assert pin is not None
    assert pin[0] in steps


def test_a_container_handles_the_stop_signal_and_logs_without_delay() -> None:
    """The first process of a container ignores SIGTERM without a handler and is killed ten seconds
    later; output to a pipe is buffered by default.
    """
    steps = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "STOPSIGNAL SIGINT" in steps
    assert "ENV PYTHONUNBUFFERED=1" in steps
