"""scripts/install.py, which installs with uv and the settings of pip, and with pip if uv fails."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import install

PIP_CONFIG = r"""global.index-url='https://mirror.example/simple'
global.extra-index-url='\nhttps://a.example/simple\nhttps://b.example/simple'
global.find-links='/not/this'
:env:.find-links='/wheels'
global.cert='/ca.crt'
list.format='columns'
"""


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Record the executed commands; uv succeeds unless its return code is set."""
    ran: list[list[str]] = []
    monkeypatch.setattr(install, "UV_ENDS_WITH", 0, raising=False)

    def run(command: list[str], **_) -> subprocess.CompletedProcess:
        ran.append(command)
        code = install.UV_ENDS_WITH if "uv" in command else 0
        return subprocess.CompletedProcess(command, code, stdout=PIP_CONFIG)

    monkeypatch.setattr(install.subprocess, "run", run)
    return ran


def test_uv_receives_the_settings_of_pip(commands) -> None:
    assert install.main(["-r", "requirements.txt"]) == 0
    last = commands[-1]
    assert last[1:5] == ["-m", "uv", "pip", "install"]
    assert last[-2:] == ["-r", "requirements.txt"]
    flags = list(pairwise(last))
    assert ("--default-index", "https://mirror.example/simple") in flags
    assert ("--index", "https://a.example/simple") in flags
    assert ("--index", "https://b.example/simple") in flags
    assert ("--find-links", "/wheels") in flags
    assert "/not/this" not in last


def test_pip_installs_the_packages_if_uv_fails(commands, monkeypatch) -> None:
    monkeypatch.setattr(install, "UV_ENDS_WITH", 2)
    assert install.main(["--no-deps", "-r", "requirements.txt"]) == 0
    assert commands[-1][2] == "pip"
    assert commands[-1][-3:] == ["--no-deps", "-r", "requirements.txt"]


def test_pip_settings_of_this_machine_are_read() -> None:
    assert all(isinstance(value, str) for value in install.pip_settings().values())
