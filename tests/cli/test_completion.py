"""Shell completion of commands, options and values."""

import pytest

from lrcore.cli import main


@pytest.fixture
def completed(monkeypatch, capsys):
    """Return a function that gives the completions in bash for a line of `lrcore`."""

    def complete(line: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["/usr/bin/lrcore"])
        monkeypatch.setenv("_LRCORE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"lrcore {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("calib", ["calibrate"]),
        ("compress --sampl", ["--samples", "--sampling"]),
        ("compress demo-llama --budget k", ["kv"]),
        ("export a b --format g", ["gguf"]),
        ("runs ren", ["rename"]),
    ],
)
def test_matching_completions_are_offered(line, offered, completed) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(shell, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/lrcore"])
    monkeypatch.setenv("_LRCORE_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit):
        main([])
    assert "_LRCORE_COMPLETE=complete_" + shell in capsys.readouterr().out.replace("'", "")


def test_completion_is_for_lrcore_if_started_as_a_module(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["/project/lrcore/__main__.py"])
    # the parent process of the tests may not be a shell
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    with pytest.raises(SystemExit):
        main(["--show-completion"])
    assert capsys.readouterr().out.strip().endswith("_lrcore_completion lrcore")
