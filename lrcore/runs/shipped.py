"""Sweeps that ship: the tables of papers, by name."""

from pathlib import Path

from ..errors import InputError

FOLDER = Path(__file__).parent.parent / "recipes"


def shipped_sweeps() -> list[str]:
    """The names of the sweeps that ship: tables of papers, for `Sweep.read`."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def sweep_file(path: str | Path) -> Path:
    """The file of a sweep: at a path, or of one that ships, by its name. Raises InputError where
    there is neither.
    """
    file, shipped = Path(path), FOLDER / f"{path}.yaml"
    if file.is_file():
        return file
    if str(path) in shipped_sweeps():
        return shipped
    raise InputError(
        f"No sweep file at '{path}'. Check the path; a sweep is a recipe with lists (methods, "
        f"policies, ratios, ...) or rows. By name there are: {', '.join(shipped_sweeps())}."
    )
