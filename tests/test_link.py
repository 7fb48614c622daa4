"""scripts/link.py, which `make setup` runs in .venv."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_lrcore_runs_in_every_folder(tmp_path) -> None:
    venv = tmp_path / "an environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run([venv / "bin/python", ROOT / "scripts/link.py"], check=True)

    libraries = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}  # the new one has none
    where = [venv / "bin/python", "-c", "import lrcore; print(lrcore.__file__)"]
    help_of = [venv / "bin/lrcore", "cache", "-h"]
    for command, expected in ((where, str(ROOT)), (help_of, "Usage: lrcore cache")):
        done = subprocess.run(
            command, cwd=tmp_path, env=libraries, capture_output=True, text=True, check=True
        )
        assert expected in done.stdout
