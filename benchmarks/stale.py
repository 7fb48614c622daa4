"""Tables whose code has changed since they were measured.

    python -m benchmarks.stale [SECTION ...]

Lists the sections that are not of the present code, with the files that differ from the commit of
the measurement; default: all sections of the documents. The exit code is 1 if there are any. Cells
of the record also count as of the present code if a sample of them was repeated with it, except
those of methods whose repeated cells differ by a standard error or more.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .machine import ROOT
from .record import RECORDED, cells_of, measuring_file
from .report import sections, writer
from .stamps import Stamp, files, fingerprint, shape_of, shape_of_source

FILES = 4  # named per section


@dataclass(frozen=True)
class Measurement:
    """The file, the names of methods and policies, and the stamp of a measurement."""

    source: Path
    names: str
    stamp: Stamp | None
    is_sampled: bool = False  # a sample of its model confirms its method for the present code

    @property
    def is_current(self) -> bool:
        """Whether the figure is of the present code."""
        return self.is_sampled or (
            self.stamp is not None and self.stamp.code == fingerprint(self.source, self.names)
        )


@dataclass(frozen=True)
class State:
    """Number of measurements of a section, of those without a stamp among the ones that are not of
    the present code, and changed files of each outdated one.
    """

    count: int
    unknown: int
    outdated: list[tuple[Stamp, list[str]]]

    def __str__(self) -> str:
        """Return the state in words; "" if all measurements are of the present code."""
        parts = [] if self.count else ["no measured cells"]
        if self.outdated:
            commits = sorted({stamp.commit for stamp, _ in self.outdated})
            names = Counter(name for _, changed in self.outdated for name in changed)
            named = [name for name, _ in names.most_common(FILES)]
            named += [f"{len(names) - FILES} more"] if len(names) > FILES else []
            measured = f"{len(self.outdated)} of {self.count}" if self.count > 1 else "measured"
            parts.append(
                f"{measured} at {', '.join(commits)}; changed since: {', '.join(named) or '?'}"
            )
        if self.unknown:
            measured = f"{self.unknown} of {self.count} " if self.count > 1 else ""
            parts.append(f"{measured}measured before stamps were recorded")
        return "; ".join(parts)


def state(section: str, text: str) -> State:
    """Return the state of a section with a text."""
    measured = list(_measurements(section, text))
    old = [found for found in measured if not found.is_current]
    outdated = [
        (found.stamp, changed_files(found.source, found.names, found.stamp.commit))
        for found in old
        if found.stamp
    ]
    return State(len(measured), sum(not found.stamp for found in old), outdated)


def _measurements(section: str, text: str) -> Iterator[Measurement]:
    """Yield the measurements of a section."""
    part = RECORDED.get(section.split()[0])
    if part is None:
        yield Measurement(writer(section), *Stamp.split(text))
        return
    for cell in cells_of(section):
        yield Measurement(measuring_file(part), cell.name, cell.stamp, cell.is_sampled)


@cache
def changed_files(source: Path, names: str, commit: str) -> list[str]:
    """Return the files of a benchmark that differ from a commit; none without git."""
    return [
        path.relative_to(ROOT).as_posix()
        for path in files(source, names)
        if shape_of(path) != _shape_at(commit.rstrip("+"), path)
    ]


@cache
def _shape_at(commit: str, path: Path) -> str | None:
    name = f"{commit}:{path.relative_to(ROOT).as_posix()}"
    done = subprocess.run(["git", "show", name], cwd=ROOT, capture_output=True, check=False)
    return shape_of_source(done.stdout.decode()) if done.returncode == 0 else None


def main() -> int:
    """Print the sections that are not of the present code; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stale", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="such as: speed accuracy")
    names = parser.parse_args().sections
    current, stale = 0, 0
    for page, section, text in sections():
        if names and section not in names and section.split()[0] not in names:
            continue
        words = str(state(section, text))
        current, stale = current + (not words), stale + bool(words)
        if words:
            print(f"{page.relative_to(ROOT)}, {section}: {words}")
    print(f"{current} sections are of the present code, {stale} are not.")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
