"""Fixtures for tests of invalid input on the command line."""

import pytest

import lrcore
from lrcore.cli import main


@pytest.fixture
def refused(capsys, tmp_path):
    """Return a function that runs a command, checks that it is refused and writes nothing to the
    folder of the test, and returns the error line.
    """

    def run(*arguments):
        before = sorted(tmp_path.rglob("*"))
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        lines = output.err.splitlines()
        assert code == 2, output.err
        assert output.out == ""
        assert lines[-1].startswith("error: ")
        assert lines[-1].endswith((".", "?", "see --help"))
        assert len(lines[-1]) < 1500
        assert sum(line.startswith("error: ") for line in lines) == 1
        assert sorted(tmp_path.rglob("*")) == before
        return lines[-1]

    return run


@pytest.fixture
def quick(story_file):
    return ["--data", story_file, "--samples", 2, "--seq-len", 16]


@pytest.fixture(scope="session")
def compressed(tiny_llama, story_file, tmp_path_factory):
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16, ratio=0.4)
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    return lrcore.save(small, tmp_path_factory.mktemp("compressed") / "model")
