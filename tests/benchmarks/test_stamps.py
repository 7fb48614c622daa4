"""Stamps of measurements, and the tables whose code has changed since."""

import ast
import subprocess
from dataclasses import replace

import pytest

from benchmarks import record, report, sample, stale, stamps
from benchmarks.machine import ROOT
from benchmarks.stamps import Stamp, files, fingerprint, shape_of_source

QUALITY = ROOT / "benchmarks" / "perplexity.py"
SOURCE = '''
"""A module."""
import math

def double(x):
    """Return twice x."""
    if x is None:
        raise ValueError("no number")
    return 2 * x

DOUBLE = Method("double", "Doubles each number.", double)
'''


def names(source: str, text: str) -> set[str]:
    paths = files(ROOT / "benchmarks" / source, text)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("Return twice x.", "Double a number.", False),
        ("import math", "from math import pi", False),
        ("no number", "x is missing; give a number", False),
        ("Doubles each number.", "Multiplies by two.", False),
        ('Method("double"', 'Method("twice"', True),
        ("    return 2 * x", "    # twice\n    return 2 * x", False),
        ("2 * x", "3 * x", True),
        ("x is None", "x is not None", True),
        ("double(x)", "double(x, y=0)", True),
    ],
)
def test_only_changes_of_what_is_computed_count(old, new, counts) -> None:
    assert (shape_of_source(SOURCE) != shape_of_source(SOURCE.replace(old, new))) == counts


def test_sources_differ_from_each_other() -> None:
    shapes = [stamps.shape_of(path) for path in files(QUALITY, "fused probed")]
    assert len(set(shapes)) > 0.95 * len(shapes)  # a few packages have no definitions


def test_methods_and_policies_that_a_table_does_not_name_do_not_count() -> None:
    a3, both = names("perplexity.py", "a3 owl"), names("perplexity.py", "a3, flap; owl uniform")
    assert {"lrcore/methods/a3.py", "lrcore/ranks/policies/owl.py"} < a3
    assert both - a3 >= {"lrcore/methods/flap.py", "lrcore/ranks/policies/uniform.py"}
    assert "lrcore/compression/solve/refit.py" in a3
    assert "lrcore/ranks/policies/marginal.py" in names("perplexity.py", "fused probed")


def test_a_benchmark_counts_what_it_imports() -> None:
    assert "lrcore/compression/steps/healing/healing.py" in names("healing.py", "fused")
    formulas = names("gram.py", "a3 modegpt")
    assert "lrcore/methods/modegpt.py" in formulas
    assert not any(name.startswith(("lrcore/evaluation", "workbench")) for name in formulas)
    assert any(name.startswith("workbench/tabs/") for name in names("page_speed.py", ""))


def test_a_section_states_commit_date_machine_and_code(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- begin gram -->\nold\n<!-- end gram -->\n", encoding="utf-8")
    text = "| method | s |\n|---|---|\n| a3 | 1.0 |"
    report.write_section("gram", text, page)
    section = page.read_text(encoding="utf-8").partition("begin gram -->\n")[2]
    table, stamp = Stamp.split(section.partition("<!-- end")[0])
    assert table.strip() == text
    assert stamp == stamps.stamp(ROOT / "benchmarks" / "gram.py", text)
    assert str(stale.state("gram", section.partition("<!-- end")[0])) == ""


def test_a_table_of_other_code_is_stale_and_its_files_are_named(monkeypatch) -> None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no git")
    commit = done.stdout.decode().strip()
    text = "| a3 |\n\n"
    section = text + Stamp("2026-01-02", commit, "01234567", "a machine, torch 2.0").line()
    changed = ROOT / "lrcore" / "methods" / "a3.py"
    tree = stamps.shape(ast.parse(SOURCE))
    shape_of = stamps.shape_of
    monkeypatch.setattr(stale, "shape_of", lambda path: tree if path == changed else shape_of(path))
    stale.changed_files.cache_clear()
    found = stale.state("gram", section)
    stale.changed_files.cache_clear()
    ((stamp, paths),) = found.outdated
    assert stamp.machine == "a machine, torch 2.0"
    assert "lrcore/methods/a3.py" in paths


def test_cells_of_the_record_are_judged_separately(monkeypatch) -> None:
    current = record.stamped("tokens", "fused 0.2 0.6", {"perplexity": 2.0})
    old = {"perplexity": 3.0, "measured": str(Stamp("2026-01-02", "0" * 8, "01234567", "x86_64"))}
    cells = {"fused 0.2 0.6": current, "a3 0.2 0.6": old, "svd 0.2 0.6": {"perplexity": 4.0}}
    monkeypatch.setattr(record, "read_record", lambda: {"toy": {"tokens": cells}, "other": {}})
    found = stale.state("tokens toy", "")
    assert (found.count, found.unknown) == (3, 1)
    assert [stamp.commit for stamp, _ in found.outdated] == ["0" * 8]
    line = report.measured_line("tokens toy", "")
    assert "1 of 3 cells earlier" in line
    assert line.startswith("Cells measured 2026-01-02 to ")


def test_each_section_of_the_documents_has_a_file_that_measures_it() -> None:
    for _, section, _ in report.sections():
        part = record.RECORDED.get(section.split()[0])
        assert (record.measuring_file(part) if part else report.writer(section)).is_file()
        assert part is None or record.cells_of(section.split()[0]), section


def test_a_section_without_cells_is_not_of_the_present_code() -> None:
    assert str(stale.state("healed smollm2-135m", "Not measured.")) == "no measured cells"


def test_the_fingerprint_is_that_of_the_files() -> None:
    assert fingerprint(QUALITY, "a3") == fingerprint(QUALITY, "the method a3")
    assert fingerprint(QUALITY, "a3") != fingerprint(QUALITY, "a3 fused")


def test_a_sample_confirms_older_cells_unless_a_figure_differs(monkeypatch) -> None:
    cells = {"a3 owl params 0.2": {"perplexity": 3.0}, "svd uniform params 0.2": {"perplexity": 4}}
    now = stamps.stamp(QUALITY, " ".join(cells))
    for difference, drawn, code, words in (
        (0.4, 1, now.code, ""),
        (0.4, 2, now.code, "2 of 2 measured before stamps were recorded"),  # unfinished
        (1.4, 1, now.code, "1 of 2 measured before stamps were recorded"),  # only this method
        (0.4, 1, "01234567", "2 of 2 measured before stamps were recorded"),
    ):
        differences = {"a3 owl params 0.2": difference}
        found = record.Sample(7, 2, drawn, differences, replace(now, code=code))
        entry = {"cells": cells, "samples": {"cells": found.to_dict()}}
        monkeypatch.setattr(record, "read_record", lambda entry=entry: {"toy": entry})
        assert str(stale.state("quality toy", "")) == words
        assert found.line() == report.measured_line("quality toy", "")


def test_a_repeated_cell_replaces_the_recorded_one(monkeypatch) -> None:
    old = {"perplexity": 3.0, "error": 0.2, "megabytes": 5}
    stored = {"toy": {"cells": {"a3 owl params 0.2": old}}}
    monkeypatch.setattr(sample, "read_record", lambda: stored)
    monkeypatch.setattr(sample, "write_record", lambda _: None)
    sample.add(
        "toy", sample.begun("toy", 1), "a3 owl params 0.2", {"perplexity": 3.1, "error": 0.3}
    )
    assert stored["toy"]["cells"]["a3 owl params 0.2"] == {
        "perplexity": 3.1, "error": 0.3, "megabytes": 5
    }  # fmt: skip
    assert sample.begun("toy", 1).differences == {"a3 owl params 0.2": 0.5}


def test_a_repeated_cell_without_an_error_is_compared_by_its_digits(monkeypatch) -> None:
    stored = {"toy": {"cells": {"a3 owl params 0.2": {"perplexity": 3.0, "error": 0.0}}}}
    monkeypatch.setattr(sample, "read_record", lambda: stored)
    monkeypatch.setattr(sample, "write_record", lambda _: None)
    cell = {"perplexity": 3.0, "error": 0.0}
    sample.add("toy", sample.begun("toy", 1), "a3 owl params 0.2", cell)
    assert sample.begun("toy", 1).differences == {"a3 owl params 0.2": 0.0}
