"""Size limits of functions, lines and imports; `python scripts/sizes.py` prints the sizes."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import sizes  # noqa: E402 (its folder is not a package)

sys.path.remove(str(ROOT / "scripts"))
PACKAGES = [ROOT / "lrcore", ROOT / "workbench"]
FILES = [path for package in PACKAGES for path in sizes.sources(package)]
PAGE_FILES = [path for kind in ("js", "css") for path in (ROOT / "assets").glob(f"*.{kind}")]
PAGE_FILES += (ROOT / "lrcore").rglob("*.html")


def test_functions_fit_a_screen_and_have_few_parameters() -> None:
    functions = [function for path in FILES for function in sizes.functions(path)]
    assert [f for f in functions if f.lines > sizes.LINES or f.parameters > sizes.PARAMETERS] == []


def test_no_line_is_too_long() -> None:
    assert [line for path in FILES + PAGE_FILES for line in sizes.long_lines(path)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_there_are_no_circular_imports(package: Path) -> None:
    assert sizes.circles(package) == []
