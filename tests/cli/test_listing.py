"""The cached output of `methods`, computed once for a version of the code."""

import os

import pytest

import lrcore
from lrcore.cli import listing, main
from lrcore.system.errors import ResourceError


@pytest.mark.parametrize("output_flags", [[], ["--json"]])
def test_a_second_listing_comes_from_the_cache(output_flags, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    assert main(["methods", *output_flags]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(
        lrcore, "list_methods", lambda: pytest.fail("computed again"), raising=False
    )
    assert main(["methods", *output_flags]) == 0
    assert capsys.readouterr().out == first
    assert "modegpt" in first


def test_changed_code_is_listed_again(monkeypatch, tmp_path):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "PACKAGE", tmp_path / "code")
    source = tmp_path / "code" / "one.py"
    source.parent.mkdir()
    source.write_text("1")
    assert listing.cached("rows", lambda: (1, 2)) == [1, 2]
    assert listing.cached("rows", lambda: (3,)) == [1, 2]
    os.utime(source, ns=(1, 1))
    assert listing.cached("rows", lambda: (3,)) == [3]


def test_a_cache_that_cannot_be_written_is_ignored(monkeypatch, tmp_path):
    def full(*_):
        raise ResourceError("no room")

    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    monkeypatch.setattr(listing, "keep_value", full)
    assert listing.cached("rows", lambda: [1]) == [1]
    assert listing.cached("rows", lambda: [2]) == [2]
