"""Deployment as a Space: the front matter of the README, and storage of runs."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from workbench.app.start import STORED, keep_in_storage

ROOT = Path(__file__).resolve().parents[2]
IN_SPACE = {"SPACE_ID": "owner/name"}
SPACE = """
import atexit, runpy, sys
from pathlib import Path
from workbench.app.start import keep_in_storage
storage = Path(sys.argv.pop())
keep_in_storage.__defaults__ = (storage,)

@atexit.register
def record():
    from huggingface_hub.constants import HF_HOME
    (storage / "hub.txt").write_text(HF_HOME)

runpy.run_path("app.py", run_name="__main__")
"""


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


def test_storage_is_set_before_huggingface_hub_is_imported_by_gradio_app(tmp_path) -> None:
    script = f"""
import runpy, sys
from pathlib import Path
import workbench
import workbench.app.start

def build_app():
    from huggingface_hub.constants import HF_HOME
    return HF_HOME

assert "huggingface_hub" not in sys.modules
workbench.build_app = build_app
workbench.app.start.keep_in_storage.__defaults__ = (Path({str(tmp_path)!r}),)
folder = runpy.run_path("app.py", run_name="page")["demo"]
assert Path(folder).parent == Path({str(tmp_path)!r}), folder
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in STORED
    } | IN_SPACE
    call = [sys.executable, "-c", script]
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def write(folder: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, str(ROOT / "scripts" / "space.py"), str(folder)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_folder_of_a_space_serves_the_page_and_keeps_downloads_in_its_storage(tmp_path) -> None:
    """The hub's library reads its folder when it is imported, which must be later."""
    folder, storage = tmp_path / "space", tmp_path / "data"
    storage.mkdir()
    assert write(folder).returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name not in STORED}
    environment |= IN_SPACE | {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": str(port)}
    call = [sys.executable, "-c", SPACE, str(storage)]
    server = subprocess.Popen(call, cwd=folder, env=environment)
    try:
        page, deadline = b"", time.monotonic() + 240
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/", headers={"Host": "owner-name.hf.space"}
        )
        while b"gradio" not in page and time.monotonic() < deadline and server.poll() is None:
            time.sleep(0.5)
            with suppress(OSError):
                page = urllib.request.urlopen(request, timeout=30).read()
        assert b"gradio" in page
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
        assert (storage / "runs").is_dir()
        assert Path((storage / "hub.txt").read_text()).parent == storage
    finally:
        server.kill()
        server.wait()


def test_an_existing_folder_is_not_overwritten_by_a_space(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = write(tmp_path)
    assert done.returncode != 0
    assert done.stderr == f"error: {tmp_path} is not an empty folder; name a new one.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
