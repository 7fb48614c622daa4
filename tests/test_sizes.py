"""The size rules: what fits one screen. The figures: `python scripts/sizes.py`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import sizes  # noqa: E402 (its folder is no package)

sys.path.remove(str(ROOT / "scripts"))
PACKAGES = [ROOT / "lrcore", ROOT / "workbench"]
FILES = [path for package in PACKAGES for path in sizes.sources(package)]
OF_PAGE = [path for kind in ("js", "css") for path in (ROOT / "assets").glob(f"*.{kind}")]
OF_PAGE += (ROOT / "lrcore").rglob("*.html")


def test_functions_fit_a_screen_and_take_few_parameters() -> None:
    functions = [function for path in FILES for function in sizes.functions(path)]
    assert [f for f in functions if f.lines > sizes.LINES or f.parameters > sizes.PARAMETERS] == []


def test_no_line_is_long() -> None:
    assert [line for path in FILES + OF_PAGE for line in sizes.long_lines(path)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    assert sizes.circles(package) == []
