"""Commands in the README and docs/command_line.md, run in their order."""

import os
import re
import shlex
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import fresh
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def lines(language: str, page: str = README) -> list[str]:
    return [
        line.partition(" # ")[0].strip()
        for block in blocks(language, page)
        for line in block.splitlines()
        if line.strip()
    ]


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory) -> Path:
    """Return a working folder outside the repository."""
    return tmp_path_factory.mktemp("reader")


def run(words: list[str], folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = fresh.project().run(words, environment, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", lines("bash", COMMANDS))
def test_commands_of_the_command_line_page_run(command: str, somewhere: Path) -> None:
    words = shlex.split(command)
    printed = run(words[1:], somewhere)
    assert printed.strip()
    if words[3] == "heal":  # healing improves the perplexity, as described
        before, after = (
            float(re.search(rf"perplexity_{when} +([\d.]+)", printed)[1])
            for when in ("before", "after")
        )
        assert after < before


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_of_the_readme_run(code: str, somewhere: Path) -> None:
    printed = run(["-c", code], somewhere).splitlines()
    assert [line.split()[0] for line in printed[:3]] == ["0.1", "0.2", "0.3"]
    assert float(printed[3]) > 1
    assert len(" ".join(printed[4:])) > 40


def test_outputs_of_examples_are_ignored_by_git() -> None:
    commands = [shlex.split(line)[3:] for line in lines("bash", COMMANDS)]
    named = [
        words[words.index(flag) + 1]
        for words in commands
        for flag in ("--out", "--html")
        if flag in words
    ]
    named += [words[2] for words in commands if words[0] in ("quantize", "slice", "export")]
    named += re.findall(r'save\(\w+, "(.*?)"', "".join(blocks("python")))
    assert len(named) > 6
    assert {Path(name).parts[0] for name in named} == {"out"}
    assert "/out/" in (ROOT / ".gitignore").read_text().splitlines()


def test_commands_of_the_readme_are_also_on_the_command_line_page() -> None:
    assert {line.split()[0] for line in lines("bash")} == {"make", "python"}
    commands = [line for line in lines("bash") if line.startswith("python")]
    assert commands
    assert commands == [line for line in lines("bash", COMMANDS) if line in commands]


def test_the_readme_is_short_and_shows_make_run_and_make_test() -> None:
    assert len(README.splitlines()) <= 110
    assert {line.split()[1] for line in lines("bash") if line.startswith("make")} == {"run", "test"}


@pytest.mark.slow
def test_make_run_serves_the_page() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"GRADIO_SERVER_PORT": str(port)}
    server = subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline, page = time.monotonic() + 180, ""
        while "gradio" not in page.lower() and time.monotonic() < deadline:
            time.sleep(1)
            try:
                page = (
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read().decode()
                )
            except OSError:
                continue
        assert "gradio" in page.lower()
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=30)


def test_make_test_runs_the_linter_and_all_tests() -> None:
    """A dry run, because `make test` runs this file."""
    dry_run = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "ruff check" in dry_run
    assert re.findall(r'-m pytest .*-m ("not browser"|browser)', dry_run) == [
        '"not browser"',
        "browser",
    ]  # together, all tests


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!http)[^)#]+)\)", README))))
def test_linked_files_of_the_readme_exist(path: str) -> None:
    assert (ROOT / path).is_file()
