"""The walks of docs/architecture.md, in which each stop is called by the one above it, at the same
or a lower level.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from levels import row_of, rows  # noqa: E402

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Follow one value")[2].partition("\n## ")[0]
LEVELS = rows()


@dataclass(frozen=True)
class Stop:
    depth: int
    path: str
    function: str

    @property
    def level(self) -> int:
        name = self.path.removesuffix(".py").replace("/", ".")
        return LEVELS[row_of(name)]

    @property
    def source(self) -> str:
        """Source of the function, or of all methods of this name in the file."""
        tree = ast.parse((ROOT / self.path).read_text(encoding="utf-8"))
        sources = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == self.function
        ]
        assert sources, f"{self.path} has no function {self.function}"
        return "\n".join(sources)


def read_walks() -> list[list[Stop]]:
    """Return the stops of each walk; a walk begins after a paragraph that ends in a colon."""
    walks = []
    for line in SECTION.splitlines():
        if re.match(r"\S.*:$", line):
            walks.append([])
        elif stop := re.match(r"( *)\d+\. `([\w/]+\.py):(\w+)`", line):
            walks[-1].append(Stop(len(stop[1]) // 3, stop[2], stop[3]))
    return walks


def test_there_are_three_walks_of_at_most_a_dozen_stops() -> None:
    assert len(read_walks()) == 3
    assert all(3 <= len(walk) <= 12 for walk in read_walks())
    assert sum(map(len, read_walks())) == SECTION.count(".py:")


@pytest.mark.parametrize("walk", read_walks(), ids=["command line", "slider", "start"])
def test_each_stop_is_called_by_the_one_above_it(walk: list[Stop]) -> None:
    above: list[Stop] = []
    for stop in walk:
        assert stop.source
        above = above[: stop.depth]
        assert len(above) == stop.depth
        if above:
            caller = above[-1]
            assert re.search(rf"\b{stop.function}\b", caller.source), (caller, stop)
            assert stop.level <= caller.level, (caller, stop)
        above.append(stop)
